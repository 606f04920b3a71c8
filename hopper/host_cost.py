"""What a call of custom_kernel costs the host, on a machine with a Hopper GPU and the CuTe DSL.

    python -m hopper.host_cost [--json FILE]

Everything is real, from custom_kernel through the DSL's compiled host function (which packs
tensormaps and parameters) to the driver's launch, except the kernel: one with the same parameters
and an empty body, since the GPU cannot run the kernel itself. Time is that of the host, without
waiting for the GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import time
from pathlib import Path

import emulator
from emulator.runtime import Gpu

from . import toolchain
from .machine import describe
from .pack import to_gpu
from .rewrite import TARGET
from .run import checked, require_gpu
from .statements import without_comments

WARM_UP, BATCH, BATCHES = 200, 100, 40  # calls; a batch is shorter than the launch queue


def empty_kernels(text: str) -> str:
    """The module with the parameters and launch bounds of its kernels, and empty bodies, for
    sm_90a.
    """
    text = without_comments(text).replace("\0", "")
    entries = re.findall(r"\.visible\s+\.entry\s+[^{]*", text)
    header = f".version 8.8\n.target {TARGET}\n.address_size 64\n"
    return header + "\n".join(entry + "{\n ret;\n}" for entry in entries)


class EmptyGpu(Gpu):
    """Hands the DSL's host code the empty kernels; the launch is the runtime's own."""

    def __init__(self):
        super().__init__()
        self.libraries: dict[int, object] = {}

    def runtime_functions(self) -> dict:
        return {
            "_cudaLibraryLoadData": self.library_load_data,
            "_cudaLibraryGetKernel": self.library_get_kernel,
            "_cudaKernelSetAttributeForDevice": self.accept,
            "_cudaFuncSetAttribute": self.accept,
            "_cudaGetDevice": self.get_device,
        }

    def library_load_data(self, out, code, *_):
        from cuda.bindings import driver

        image = toolchain.assemble(empty_kernels(self.loading))
        library = checked(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        self.libraries[int(library)] = library
        ctypes.c_uint64.from_address(out).value = int(library)

    def library_get_kernel(self, out, library, name):
        from cuda.bindings import driver

        kernel = checked(driver.cuLibraryGetKernel(self.libraries[library], ctypes.string_at(name)))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(
            driver.cuKernelSetAttribute(limit, 232_448, kernel, checked(driver.cuCtxGetDevice()))
        )
        ctypes.c_uint64.from_address(out).value = int(kernel)


def install() -> EmptyGpu:
    """Take over what loads a kernel, and nothing of what launches it."""
    return emulator.install(check=False, gpu=EmptyGpu())


def measure(kernel, data) -> dict[str, float]:
    """Microseconds a call: the median and the least over batches."""
    import torch

    for _ in range(WARM_UP):
        kernel(data)
    torch.cuda.synchronize()
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(BATCH):
            kernel(data)
        times.append((time.perf_counter() - start) / BATCH * 1e6)
        torch.cuda.synchronize()
    times.sort()
    return {"median_us": times[BATCHES // 2], "least_us": times[0]}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m hopper.host_cost")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--submission", type=Path, default=Path("submission.py"))
    arguments = parser.parse_args(argv)
    require_gpu()
    install()
    from harness.worker import load_kernel
    from reference import generate_input
    from task import PROBLEMS

    kernel = load_kernel(arguments.submission.resolve())
    machine, found = describe(), []
    for problem in PROBLEMS.values():
        benchmark = problem.benchmarks[-1]
        data = to_gpu(generate_input(problem.name, **benchmark.args))
        result = {"problem": problem.name, "case": benchmark.args, **measure(kernel, data)}
        found.append(result)
        print(
            f"{problem.name}: {result['median_us']:.2f} us a call (least {result['least_us']:.2f}),"
            f" measured on the host of an {machine['device']}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "calls": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
