"""The heap of kernels: what `malloc` and `new` on the device allocate.

It lives until a kernel frees it, in this launch or a later one (CUDA programming guide, "Dynamic
Global Memory Allocation and Operations").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.chip.unwritten import fill
from b200.errors import Fault

if TYPE_CHECKING:
    from b200.chip.state import GlobalMemory

DEFAULT_LIMIT = 8 << 20  # bytes, as the guide has it
_ALIGNMENT = 16  # of what malloc returns


class Heap:
    """limit: bytes that may be allocated at a time, cudaLimitMallocHeapSize."""

    def __init__(self) -> None:
        self.limit = DEFAULT_LIMIT
        self._blocks: dict[int, np.ndarray] = {}  # by address

    def allocate(self, memory: GlobalMemory, nbytes: int) -> int:
        """The address of `nbytes` that nobody has written; 0 where there is no room for them."""
        used = sum(block.size for block in self._blocks.values())
        if not nbytes or used + nbytes > self.limit:
            return 0
        room = np.empty(nbytes + _ALIGNMENT, np.uint8)
        block = room[-room.ctypes.data % _ALIGNMENT :][:nbytes]
        fill(block)
        address = block.ctypes.data
        self._blocks[address] = block
        self._register(memory, address)
        return address

    def find(self, memory: GlobalMemory, address: int) -> None:
        """Make the block that holds an address legal (a `find_more` of GlobalMemory)."""
        for first, block in self._blocks.items():
            if first <= address < first + block.size:
                self._register(memory, first)

    def _register(self, memory: GlobalMemory, first: int) -> None:
        block = self._blocks[first]
        name = f"{block.size} bytes of malloc in a kernel"
        memory.register(first, block.size, name, data=block)

    def free(self, memory: GlobalMemory, address: int) -> None:
        """Of a null pointer nothing is freed."""
        if not address:
            return
        if self._blocks.pop(address, None) is None:
            raise Fault(f"free of {address:#x}, which malloc in a kernel has not returned")
        memory.retain(lambda region: region.base != address)
