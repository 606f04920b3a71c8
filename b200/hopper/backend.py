"""A Hopper GPU under the CuTe DSL's host code, in the place of the emulator's machine.

import b200.hopper.backend
gpu = b200.hopper.backend.install()   # before the first compile
custom_kernel(data)              # CUDA tensors
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import b200
from b200.chip.gpu import Gpu
from b200.hopper.run import Kernel, Shape, require_gpu


@dataclass
class HopperLaunch:
    """Report of a launch. seconds: wall clock, tensor memory's set-up and waiting included: not a
    kernel time.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    seconds: float = 0.0
    counters: dict = field(default_factory=dict)


class HopperGpu(Gpu):
    """The Hopper GPU of this process: what the DSL launches runs there."""

    def __init__(self):
        super().__init__()
        self._loaded: dict[tuple[int, str], Kernel] = {}

    def launch(self, program, name, grid, block, cluster, dynamic_smem, params) -> HopperLaunch:
        key = (id(program), name)
        if key not in self._loaded:
            self._loaded[key] = Kernel(program.text, name)
        report = HopperLaunch(name, tuple(grid), tuple(block), tuple(cluster), dynamic_smem)
        start = time.perf_counter()
        self._loaded[key].launch(
            Shape(tuple(grid), tuple(block), tuple(cluster), dynamic_smem), params
        )
        report.seconds = time.perf_counter() - start
        self.launches.append(report)
        return report


def install() -> HopperGpu:
    """From now on every kernel this process compiles with the DSL runs on this Hopper GPU. Raises
    HopperError.
    """
    require_gpu()
    return b200.install(gpu=HopperGpu())
