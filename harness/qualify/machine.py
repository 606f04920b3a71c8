"""What this machine is, and whether what the kernel and the clock assume of it is so: JSON lines.

python -m harness.qualify.machine --device cuda
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from b200.hardware import SM_COUNT, SMEM_OPT_IN
from harness.evaluator.case import loading

PACKAGES = ("torch", "nvidia-cutlass-dsl", "cuda-python", "cuda-bindings", "numpy", "matplotlib")
CLUSTER_SIZES = (2, 4, 8, 16)
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k() { ret; }
"""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def software() -> Iterator[dict[str, Any]]:
    now = datetime.datetime.now(datetime.timezone.utc)
    yield {"fact": "date", "value": now.strftime("%Y-%m-%d %H:%M UTC")}
    yield {"fact": "CPU cores", "value": len(os.sched_getaffinity(0))}
    yield {"fact": "python", "value": platform.python_version()}
    for package in PACKAGES:
        yield {"fact": package, "value": _version(package)}


def gpu(assumed_clusters: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """The GPU, as the driver describes it. `assumed`: what the kernel or the clock takes for it.

    assumed_clusters: how many of 1, 2, ... CTAs the submission takes to be resident at a time.
    """
    import torch
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

    from hopper.run import checked
    from hopper.this_gpu import describe

    told = describe()
    for key in ("device", "driver", "driver_cuda", "multiprocessors"):
        assumed = {"multiprocessors": SM_COUNT}.get(key)
        yield {"fact": key, "value": told[key], **({"assumed": assumed} if assumed else {})}
    attributes = driver.CUdevice_attribute
    torch.zeros(1, device="cuda")
    device = checked(driver.cuCtxGetDevice())
    for name, attribute, assumed in (
        (
            "shared memory of a CTA, bytes",
            attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            SMEM_OPT_IN,
        ),
        ("SM clock, kHz", attributes.CU_DEVICE_ATTRIBUTE_CLOCK_RATE, None),
        ("memory clock, kHz", attributes.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, None),
        ("L2, bytes", attributes.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, None),
    ):
        value = checked(driver.cuDeviceGetAttribute(attribute, device))
        yield {"fact": name, "value": value, **({"assumed": assumed} if assumed else {})}
    yield from clusters(assumed_clusters)


def clusters(assumed: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """How many clusters of a size are resident at a time, a CTA of 200 KB an SM."""
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

    from b200.chip.launch import Shape
    from hopper.run import Image, checked, config_of

    image = Image(KERNEL, "k", [])
    for size in CLUSTER_SIZES:
        shape = Shape((size * 1024, 1, 1), (128, 1, 1), (size, 1, 1), 200 << 10)
        image.prepare(shape)
        found = checked(driver.cuOccupancyMaxActiveClusters(image.function, config_of(shape)))
        row = {"fact": f"clusters of {size} at a time", "value": found}
        yield {**row, "assumed": assumed[size]} if size in assumed else row


def assumed_clusters(submission: Path) -> Mapping[int, int]:
    """The submission's table CLUSTERS by the size of a cluster, if it has one."""
    loading.load_kernel(submission)
    return getattr(sys.modules["submission"], "CLUSTERS", {})


def main(argv: list[str] | None = None) -> None:
    parser = Parser("python -m harness.qualify.machine", __doc__)
    parser.add_argument("--device", choices=("cuda", "hopper", "emulator"), required=True)
    parser.add_argument("--submission", type=Path, required=True)
    options = parser.parse_args(argv)
    rows = list(software())
    if options.device == "emulator":
        rows.append({"fact": "device", "value": "a B200 in software", "assumed": None})
    else:
        rows += gpu(assumed_clusters(options.submission))
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
