"""A Hopper GPU in place of the software B200: it runs what the DSL's host code launches.

gpu = b200.install(gpu=HopperGpu())  # before the first compile
custom_kernel(data)                  # CUDA tensors
"""

from __future__ import annotations

import time
from dataclasses import replace

from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from b200.program.module import Kernel, Program
from hopper import run


class HopperGpu(Gpu):
    """The Hopper GPU of this process. Raises HopperError if there is none.

    `seconds` of a launch is wall clock, with the set-up of tensor memory and the waiting in it: it
    is no kernel time.
    """

    real = True

    def __init__(self) -> None:
        run.require_gpu()
        super().__init__()
        self._loaded: dict[tuple[int, str], run.HopperKernel] = {}

    def execute(self, program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        key = (id(program), kernel.name)
        if key not in self._loaded:
            self._loaded[key] = run.HopperKernel(program.text, kernel.name)
        start = time.perf_counter()
        self._loaded[key].launch(replace(shape, dependent=False), params)  # each is waited for
        seconds = time.perf_counter() - start
        return Launch(kernel.name, *shape.sizes, seconds)
