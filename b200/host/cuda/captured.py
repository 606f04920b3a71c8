"""The graph of a capture that goes on: programs ask for its nodes, and add some."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from b200.host.captures import Capture, KernelWork, Work
from b200.host.cuda.modules import Modules


@dataclass
class Captured:
    """graph: its handle. last: nodes that the next one comes after.

    One order holds for all queues under capture: the graph runs in it, which a GPU may do, too.
    """

    graph: int
    last: tuple[int, ...] = ()
    _taken: int = 0
    _shown: ctypes.Array | None = field(default=None, repr=False)

    def new(self, capture: Capture) -> list[Work]:
        """What was recorded since the last call."""
        found = capture.launches[self._taken :]
        self._taken = len(capture.launches)
        return found

    def address(self) -> int:
        """Where the handles of `last` lie, until the next call."""
        self._shown = (ctypes.c_uint64 * max(1, len(self.last)))(*self.last)
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
