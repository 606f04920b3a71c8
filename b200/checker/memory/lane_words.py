"""The words of shared memory that the lanes of one access touch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


class Pattern:
    """The words that accesses of `nbytes` each touch. The accesses are given as distances in bytes
    from the lowest one.

    words: number of words from the first to the last one touched. index: distances of the touched
    words from the first, None where they fill the range. order: for each touched word, the number
    of the access that touches it.
    """

    __slots__ = ("words", "index", "order")

    def __init__(self, distances: np.ndarray, nbytes: int, phase: int):
        per = max(1, nbytes // 4)
        first = (distances + phase) // 4
        index = (first[:, None] + np.arange(per)).reshape(-1)
        self.order = np.arange(distances.size).repeat(per)
        self.words = int(index.max()) + 1
        if self.words == index.size == np.unique(index).size:
            self.order = self.order[np.argsort(index)]
            index = None
        self.index = index


def part_words(at: np.ndarray, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """(which of some accesses leave out bytes of their words all together, the bytes of these).
    nbytes: of each, fewer than four.
    """
    low = int(at.min()) & ~3
    part, places = _part_words((at - low).astype(np.int64).tobytes(), nbytes)
    return part, places + low


@lru_cache(maxsize=4096)
def _part_words(distances: bytes, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    at = np.frombuffer(distances, np.int64)
    words, inverse = np.unique(at >> 2, return_inverse=True)
    have = np.zeros(words.size, np.int64)  # a bit for each byte
    np.bitwise_or.at(have, inverse, ((1 << nbytes) - 1) << (at & 3))
    part = have[inverse] != 15
    return part, np.unique(at[part][:, None] + np.arange(nbytes))


_PATTERNS: dict[tuple, Pattern] = {}
_LANES: dict[tuple, np.ndarray] = {}


def lane_words(
    at: np.ndarray, nbytes: int, lanes: np.ndarray
) -> tuple[slice | np.ndarray, int, int, np.ndarray]:
    """(index of the words, first word, last word, lane of each word) of accesses of `nbytes` each.
    The index is a slice where the words fill a range, in whatever order, as they mostly do.
    """
    if at.size == 1:
        low = int(at[0]) >> 2
        high = low + max(1, nbytes // 4) - 1
        return slice(low, high + 1), low, high, lanes
    low = int(at.min())
    key = (at - low).tobytes(), nbytes, low & 3
    pattern = _PATTERNS.get(key)
    if pattern is None:
        if len(_PATTERNS) >= 4096:
            _PATTERNS.clear()
            _LANES.clear()
        pattern = _PATTERNS[key] = Pattern(at - low, nbytes, low & 3)
    if lanes.size > 1:
        key = id(pattern), lanes.tobytes()
        by = _LANES.get(key)
        if by is None:
            by = _LANES[key] = lanes[pattern.order]
        lanes = by
    first = low >> 2
    last = first + pattern.words - 1
    index = slice(first, last + 1) if pattern.index is None else pattern.index + first
    return index, first, last, lanes
