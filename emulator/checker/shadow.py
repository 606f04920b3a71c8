"""Shadow memories: for each cell the number of the record that wrote it last, and of those that
read it since.

Shared memory: 16-byte granules for the asynchronous proxy (TMA, bulk copies, tensor core), which
moves nothing
smaller; 4-byte words for generic loads and stores, so that neighbours are told apart. Tensor
memory: half a lane
quarter (16 lanes) by one column.
"""

from __future__ import annotations

import numpy as np

GENERIC_READERS = 8  # warps told apart as readers of a word
GRANULE, WORD = 16, 4
SHUFFLED = 255
HALVES, COLUMNS = 8, 512
LOAD_READERS = 4  # warpgroups told apart as readers of tensor memory


def distinct(numbers: np.ndarray) -> tuple:
    """The different record numbers of an array; 0 among them stands for "nothing"."""
    if numbers.size == 0:
        return ()
    flat = numbers.reshape(-1)
    first = flat[0]
    if (flat == first).all():
        return (int(first),)
    return tuple(np.unique(flat).tolist())


class Range:
    """First and last index used so far of something."""

    __slots__ = ("low", "high")

    def __init__(self):
        self.low, self.high = 1 << 62, -1

    def add(self, low: int, high: int):
        if low < self.low:
            self.low = low
        if high > self.high:
            self.high = high

    def meets(self, low: int, high: int) -> bool:
        return low <= self.high and high >= self.low


class SharedShadow:
    """Shadow of a CTA's shared memory. Indices are granules (offset // 16) or words (offset // 4).

    written: by the async proxy; core, copied: read by the tensor core, by copies out of shared
    memory;
    stored, loaded: words by generic instructions. barriers: words that hold an mbarrier.
    """

    def __init__(self, nbytes: int):
        granules = -(-nbytes // GRANULE) + 1
        self.written = np.zeros(granules, np.int32)
        self.core = np.zeros(granules, np.int32)
        self.copied = np.zeros(granules, np.int32)
        self.stored = np.zeros(granules * 4, np.int32)
        self.loaded = np.zeros((GENERIC_READERS, granules * 4), np.int32)
        self.lane = np.zeros(granules * 4, np.uint8)  # that stored a word; SHUFFLED: by stmatrix
        self.reader = np.zeros(granules * 4, np.uint8)  # that loaded a word last
        self.store_range, self.load_range, self.copy_range = Range(), Range(), Range()

    def stored_in(self, index, low: int, high: int) -> np.ndarray | None:
        """Words [n, 4] of granules that a generic store wrote, None if there are none."""
        if not self.store_range.meets(4 * low, 4 * high + 3):
            return None
        found = self.stored.reshape(-1, 4)[index]
        return found if found.any() else None

    def loaded_in(self, index, low: int, high: int) -> np.ndarray | None:
        if not self.load_range.meets(4 * low, 4 * high + 3):
            return None
        return self.loaded.reshape(GENERIC_READERS, -1, 4)[:, index]

    def clear_generic(self, index, low: int, high: int):
        """An asynchronous write has replaced what generic instructions stored and loaded."""
        if self.store_range.meets(4 * low, 4 * high + 3):
            self.stored.reshape(-1, 4)[index] = 0
        if self.load_range.meets(4 * low, 4 * high + 3):
            self.loaded.reshape(GENERIC_READERS, -1, 4)[:, index] = 0


class TensorShadow:
    """Shadow of a CTA's tensor memory, [half quarters, columns]."""

    def __init__(self):
        self.written = np.zeros((HALVES, COLUMNS), np.int32)
        self.core = np.zeros((HALVES, COLUMNS), np.int32)
        self.loaded = np.zeros((LOAD_READERS, HALVES, COLUMNS), np.int32)
