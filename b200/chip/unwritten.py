"""The pattern that global memory holds where nobody has written.

Memory that a program reserves and does not fill (torch.empty, cudaMalloc) starts as PATTERN. There
are two reasons. A kernel's results do not depend on what this process's heap held before. And
unwritten memory can be told from written memory: it still holds the pattern of its place. This
needs no hook in the code that writes (kernels, torch, numpy, C++), and a plain copy of the
allocation keeps the pattern.

A halfword of PATTERN is 0x7F81 to 0x7FFE or 0xFF81 to 0xFFFE: NaN as f16, bf16, and as the upper
half of an f32; far out of bounds as an index. Which of these 252 it is depends on the place alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

UNIT = 2  # bytes of an entry
# Bytes of an allocation that is filled; a larger one is left as fresh pages, zero.
LIMIT = 256 << 20
SMALL = 64 << 10  # bytes of an allocation in which fewer units in a row count
_PERIOD = 1 << 13  # units


def _pattern() -> np.ndarray:
    random = np.random.default_rng(0x7F81)
    low = random.integers(0x81, 0xFF, _PERIOD, np.uint16)
    return low | 0x7F00 | random.integers(0, 2, _PERIOD, np.uint16) << 15


PATTERN = _pattern()  # uint16 [_PERIOD], repeated from the first byte of an allocation on
PATTERN.setflags(write=False)


def fill(data: np.ndarray, start: int = 0) -> None:
    """Make an allocation, uint8 [bytes], unwritten from byte `start` on, unless it is too large."""
    if data.size > LIMIT:
        return
    tile, at = PATTERN.view(np.uint8), start
    while at < data.size:
        within = at % tile.size
        count = min(tile.size - within, data.size - at)
        data[at : at + count] = tile[within : within + count]
        at += count


def pattern_at(units: np.ndarray) -> np.ndarray:
    """The pattern at places in an allocation, in units."""
    return PATTERN[units % _PERIOD]


def find(data: np.ndarray) -> np.ndarray | None:
    """Which units of an allocation, uint8 [bytes], nobody has written: bool [bytes / UNIT]; None
    if there are no such units.

    A single unit may hold the pattern by chance (4-bit data does once in 60,000), so it counts with
    its neighbours: 8 bytes in a row, 4 in a SMALL allocation; in a larger one at least one row of 8
    bytes must be aligned.
    """
    if data.size > LIMIT or data.size < UNIT:
        return None
    small = data.size <= SMALL
    if not small and not _equal(data, np.uint64).any():
        return None
    found = _equal(data, np.uint16)
    return _in_a_row(found, min(found.size, 2 if small else 4)) if found.any() else None


def _equal(data: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Where an allocation holds the pattern, an entry a whole word of `dtype`."""
    tile: np.ndarray = PATTERN.view(dtype)
    words = data[: data.size // tile.itemsize * tile.itemsize].view(dtype)
    found = np.empty(words.size, bool)
    whole = words.size // tile.size * tile.size
    rows = (-1, tile.size)
    np.equal(words[:whole].reshape(rows), tile, out=found[:whole].reshape(rows))
    np.equal(words[whole:], tile[: words.size - whole], out=found[whole:])
    return found


def _in_a_row(found: np.ndarray, count: int) -> np.ndarray | None:
    """Those of the places that have `count` neighbours or more, themselves included."""
    starts: np.ndarray = found[: found.size - count + 1].copy()
    for step in range(1, count):
        starts &= found[step : step + starts.size]
    if not starts.any():
        return None
    kept = np.zeros_like(found)
    for step in range(count):
        kept[step : step + starts.size] |= starts
    return kept
