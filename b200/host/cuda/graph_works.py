"""What the nodes of CUDA graphs do that launch nothing: copies, fills, functions of the host. And
the graph of a capture that goes on: programs ask for its nodes, and add some.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from b200.host import refusals
from b200.host.captures import Capture, KernelWork, Work
from b200.host.cuda.modules import Modules
from b200.host.refusals import Refused

KERNEL, COPY, FILL, HOST, CHILD, EMPTY, WAIT, RECORD = range(8)  # cudaGraphNodeType
_HOST_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostWork:
    """What a node does that launches nothing. kind: of its node. words: its parameters, as the C++
    side has them (shim/graph_words.h).
    """

    def __init__(self, kind: int, act: Callable[[], Any], words: tuple[int, ...] = ()):
        self.kind, self._act, self.words = kind, act, words

    def __call__(self) -> None:
        self._act()


def copy_of(at: int, own: Callable[[int], int]) -> HostWork:
    """The copy of 9 words: to and from; bytes of a row; rows, slices; from row to row and from
    slice to slice, at the destination and at the source. own: where the bytes of an address lie.
    """
    to, source, width, height, depth, *steps = struct.unpack("<9Q", ctypes.string_at(at, 72))

    def act() -> None:
        for z in range(depth):
            for y in range(height):
                ahead = (y * steps[i] + z * steps[i + 1] for i in (0, 2))
                there, here = (x + n for x, n in zip((to, source), ahead, strict=True))
                ctypes.memmove(own(there), own(here), width)

    if width * height * depth and not (to and source):
        said = f"expected two addresses, got {to:#x} and {source:#x}"
        raise Refused(refusals.INVALID_VALUE, f"a copy: {said}")
    return HostWork(COPY, act, (to, source, width, height, depth, *steps))


def line_of(to: int, source: int, nbytes: int) -> tuple[int, ...]:
    """The words of a copy of bytes in a row."""
    return (to, source, nbytes, 1, 1, *4 * (nbytes,))


def fill_of(at: int, own: Callable[[int], int]) -> HostWork:
    """The fill of 6 words: address, value, bytes of an element, elements of a row, rows, and bytes
    from row to row. own: as in copy_of.
    """
    to, value, size, width, height, pitch = struct.unpack("<6Q", ctypes.string_at(at, 48))
    if size not in (1, 2, 4) or not to:
        said = f"expected elements of 1, 2 or 4 bytes and an address, got {size} bytes at {to:#x}"
        raise Refused(refusals.INVALID_VALUE, f"a fill: {said}")
    row = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little") * width

    def act() -> None:
        for y in range(height):
            ctypes.memmove(own(to + y * pitch), row, len(row))

    return HostWork(FILL, act, (to, value, size, width, height, pitch))


NAMES = {COPY: "cudaMemcpy", FILL: "cudaMemset"}


def spans(work: HostWork) -> Iterator[tuple[int, int, bool]]:
    """What a copy or a fill accesses: address, bytes, whether they are written."""
    if work.kind == FILL:
        to, _, size, width, height, pitch = work.words
        yield from ((to + y * pitch, width * size, True) for y in range(height))
        return
    to, source, width, height, depth, *steps = work.words
    for z, y in itertools.product(range(depth), range(height)):
        yield source + y * steps[2] + z * steps[3], width, False
        yield to + y * steps[0] + z * steps[1], width, True


def call_of(function: int, data: int) -> HostWork:
    """A function of the host, which takes one pointer."""
    return HostWork(HOST, lambda: _HOST_CALL(function)(data or None), (function, data))


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
