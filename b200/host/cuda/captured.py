"""The graph of a capture that goes on: programs ask for its nodes, and add some."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from b200.host.captures import Capture, KernelWork, Work
from b200.host.cuda.modules import Modules


@dataclass
class Captured:
    """graph: its handle. nodes: one for each work of the capture. A node that the program has added
    itself is a negative number to the capture.
    """

    graph: int
    nodes: list[int] = field(default_factory=list)
    _shown: ctypes.Array | None = field(default=None, repr=False)

    def new(self, capture: Capture) -> list[tuple[Work, tuple[int, ...]]]:
        """What has no node yet, and what it comes after."""
        first = len(self.nodes)
        return list(zip(capture.launches[first:], capture.after[first:], strict=True))

    def handles(self, works: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes of what comes before a work."""
        return tuple(self.nodes[number] if number >= 0 else -number for number in works)

    def works(self, handles: tuple[int, ...]) -> tuple[int, ...]:
        """The capture's numbers of nodes."""
        number = {handle: i for i, handle in enumerate(self.nodes)}
        return tuple(number.get(handle, -handle) for handle in handles)

    def address(self, handles: tuple[int, ...]) -> int:
        """Where handles lie, until the next call."""
        self._shown = (ctypes.c_uint64 * max(1, len(handles)))(*handles)
        return ctypes.addressof(self._shown)


def words_of(modules: Modules, launch: KernelWork) -> tuple[tuple[int, ...], object]:
    """A launch that was prepared, as numbers: its kernel, grid, block, dynamic bytes, and the
    address of its arguments' addresses, which live as long as the second result.
    """
    handle, function = modules.handle_of_kernel(launch.program, launch.kernel)
    data = ctypes.create_string_buffer(launch.params, max(len(launch.params), 1))
    first = ctypes.addressof(data)
    places = [first + parameter.offset for parameter in function.kernel.params]
    array = (ctypes.c_uint64 * max(len(places), 1))(*places)
    shape = launch.shape
    words = (handle, *shape.grid, *shape.block, shape.smem, ctypes.addressof(array))
    return words, (data, array)
