"""The words of shared memory that the lanes of one access touch."""

from __future__ import annotations

import numpy as np


class Pattern:
    """Accesses of `nbytes` each at distances from the lowest one, as the shadow indexes them.

    words: that they touch, first to last. index: distances of these words from the first, None
    where they lie in a row. order: of the accesses whose words these are, one for each word.
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


_PATTERNS: dict[tuple, Pattern] = {}
_LANES: dict[tuple, np.ndarray] = {}


def lane_words(
    at: np.ndarray, nbytes: int, lanes: np.ndarray
) -> tuple[slice | np.ndarray, int, int, np.ndarray]:
    """(index of the words, the first, the last, lane of each) of accesses of `nbytes` each: a slice
    where they fill a range, in whatever order, as they mostly do.
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
