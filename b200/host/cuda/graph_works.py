"""What the nodes of CUDA graphs do that launch nothing: copies, fills, functions of the host."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any

from b200.host import refusals
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
