"""Grids that kernels launch (CUDA programming guide, "CUDA Dynamic Parallelism").

They run one after the other once the grid that launches them has ended. That is an order which a
GPU may choose: nothing makes a child begin before its parent ends, and no kernel waits for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from b200 import sparse
from b200.chip.global_memory import GlobalMemory
from b200.errors import Fault
from b200.program.module import Program

_ALIGNMENT = 64  # of a buffer (the guide, "Parameter Buffer Layout")
LATER = "grids that the kernel has launched ran behind it: what they share was not looked at"


@dataclass(frozen=True)
class ChildGrid:
    """parameters: uint8, which the kernel that launches it has written."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int
    parameters: np.ndarray


class ChildGrids:
    """Those of one machine."""

    def __init__(self) -> None:
        self._made: dict[int, ChildGrid] = {}  # by the address of the parameters
        self._launched: list[ChildGrid] = []

    def make(self, memory: GlobalMemory, program: Program, kernel: str, sizes: list[int]) -> int:
        """The address where the parameters of a grid are to be written. sizes: grid, block, bytes
        of dynamic shared memory.
        """
        nbytes = max(program.kernels[kernel].param_bytes, 1)
        parameters = sparse.aligned(nbytes, _ALIGNMENT)
        (gx, gy, gz, bx, by, bz, smem), address = sizes, parameters.ctypes.data
        self._made[address] = ChildGrid(kernel, (gx, gy, gz), (bx, by, bz), smem, parameters)
        memory.register(address, nbytes, f"the parameters of {kernel}", data=parameters)
        return address

    def launch(self, address: int) -> None:
        if address not in self._made:
            raise Fault(f"launch by a kernel: {address:#x} is no buffer of parameters")
        self._launched.append(self._made.pop(address))

    def take(self) -> list[ChildGrid]:
        """Those that were launched, in their order."""
        taken, self._launched = self._launched, []
        self._made.clear()
        return taken
