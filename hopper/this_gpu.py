"""Says where a result was measured: device, driver, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from b200 import checkout, records


def describe() -> dict[str, Any]:
    """The GPU of this machine and the software that drives it."""
    import torch
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

    from hopper.run import checked

    properties = torch.cuda.get_device_properties(0)
    number = checked(driver.cuDriverGetVersion())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver_release(),
        "driver_cuda": f"{number // 1000}.{number % 1000 // 10}",
        "torch": torch.__version__,
        "cuda_bindings": importlib.metadata.version("cuda-bindings"),
        "python": platform.python_version(),
    }


def made_by(machine: dict[str, Any]) -> dict[str, str]:
    """What made a result that is measured here: the GPU, and the commit of this checkout, with
    "+" where it was changed; "" outside of one. machine: as `describe` has it.
    """
    return {"device": machine["device"], "commit": checkout.commit(checkout.PACKAGE)}


def write(path: Path, machine: dict[str, Any], **found: Any) -> None:
    """Keep what was found here, with what made it."""
    records.write(path, {"made_by": made_by(machine), "machine": machine, **found})


def _driver_release() -> str:
    """The driver's release as nvidia-smi names it (the kernel module's version)."""
    try:
        with open("/proc/driver/nvidia/version") as lines:
            words = next(lines).split()
    except OSError:
        return _driver_from_smi()
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


def _driver_from_smi() -> str:
    import subprocess

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return "unknown" if done.returncode else (done.stdout.split() or ["unknown"])[0]
