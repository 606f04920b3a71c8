"""A Hopper GPU under the CuTe DSL's host code, in the place of the emulator's machine.

from b200.hopper import backend

gpu = backend.install()  # before the first compile
custom_kernel(data)      # CUDA tensors
"""

from __future__ import annotations

import time

import b200
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch
from b200.hopper.run import Kernel, Shape, require_gpu


class HopperGpu(Gpu):
    """The Hopper GPU of this process: what the DSL launches runs there. `seconds` of a launch are
    wall clock with tensor memory's set-up and waiting: not a kernel time.
    """

    def __init__(self):
        super().__init__()
        self._loaded: dict[tuple[int, str], Kernel] = {}

    def launch(self, program, name, grid, block, cluster, dynamic_smem, params) -> Launch:
        key = (id(program), name)
        if key not in self._loaded:
            self._loaded[key] = Kernel(program.text, name)
        report = Launch(name, tuple(grid), tuple(block), tuple(cluster), dynamic_smem)
        start = time.perf_counter()
        self._loaded[key].launch(
            Shape(tuple(grid), tuple(block), tuple(cluster), dynamic_smem), params
        )
        report.seconds = time.perf_counter() - start
        self.launches.append(report)
        return report


def install() -> HopperGpu:
    """From now on kernels of the DSL run on this Hopper GPU. Raises HopperError."""
    require_gpu()
    return b200.install(gpu=HopperGpu())
