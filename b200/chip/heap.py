"""The heap of kernels: what `malloc` and `new` on the device allocate.

It lives until a kernel frees it, in this launch or a later one (CUDA programming guide, "Dynamic
Global Memory Allocation and Operations").
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np

from b200 import sparse
from b200.chip.unwritten import fill
from b200.errors import Fault

if TYPE_CHECKING:
    from b200.chip.global_memory import GlobalMemory

DEFAULT_LIMIT = 8 << 20  # bytes, as the guide has it
_ALIGNMENT = 16  # of what malloc returns
_KEPT = 256  # blocks that are known after they have been freed


class Heap:
    """limit: bytes that may be allocated at a time, cudaLimitMallocHeapSize."""

    def __init__(self) -> None:
        self.limit = DEFAULT_LIMIT
        self._blocks: dict[int, np.ndarray] = {}  # by address
        self._freed: dict[int, np.ndarray] = {}  # the latest; kept, so that no other gets its place
        # of the launch: what was allocated before it, and what it has allocated, in its order
        self._before: dict[int, np.ndarray] = {}
        self._given: list[np.ndarray] = []
        self._again: Iterator[np.ndarray] = iter(())  # what a second run is given

    def allocate(self, memory: GlobalMemory, nbytes: int) -> int:
        """The address of `nbytes` that nobody has written; 0 where there is no room for them."""
        used = sum(block.size for block in self._blocks.values())
        if not nbytes or used + nbytes > self.limit:
            return 0
        block = next(self._again, None)
        if block is None or block.size != nbytes:
            block = sparse.aligned(nbytes, _ALIGNMENT)
            fill(block)
        self._given.append(block)
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
        block = self._blocks.pop(address, None)
        if block is None:
            raise Fault(
                f"free of {address:#x}, which malloc in a kernel has not returned"
                f"{' since: it is freed already' if address in self._freed else ''}"
            )
        self._freed[address] = block
        if len(self._freed) > _KEPT:
            del self._freed[next(iter(self._freed))]
        memory.retain(lambda region: region.base != address)

    def freed_at(self, address: int) -> str:
        """What is said of an address in a block that has been freed, else ""."""
        for first, block in self._freed.items():
            if first <= address < first + block.size:
                return f"{block.size} bytes of malloc in a kernel, which were freed"
        return ""

    def begins(self) -> None:
        """A launch begins."""
        self._before, self._given = dict(self._blocks), []

    @contextlib.contextmanager
    def again(self, memory: GlobalMemory) -> Generator[None]:
        """Within it the launch is carried out once more: it finds what was allocated before it, and
        what it allocates lies where it lay, with the contents that the caller has left there.
        """
        kept = dict(self._blocks), dict(self._freed), self._given
        self._become(memory, self._before, {})
        self._given, self._again = [], iter(kept[2])
        try:
            yield
        finally:
            self._become(memory, *kept[:2])
            self._given, self._again = kept[2], iter(())

    def _become(
        self, memory: GlobalMemory, blocks: dict[int, np.ndarray], freed: dict[int, np.ndarray]
    ) -> None:
        gone = self._blocks.keys() - blocks.keys()
        self._blocks, self._freed = dict(blocks), freed
        memory.retain(lambda region: region.base not in gone)
