"""Shadow of shared memory: for each cell what wrote it last, and what has read it since.

There are two kinds of cells: 16-byte granules for the asynchronous proxy (TMA, bulk copies,
tensor core), which moves nothing smaller; 4-byte words for generic loads and stores, so that
neighbours are told apart. Tensor memory has its own (tensor/tensor_shadow.py).
"""

from __future__ import annotations

import numpy as np

GENERIC_READERS = 8  # warps told apart as readers of a word
GRANULE, WORD = 16, 4
SHUFFLED, EVERY = 255, 254  # in place of a lane: several lanes; each of them has stored the word
ALL_LANES = np.array([SHUFFLED], np.uint8)
EACH_LANE = np.array([EVERY], np.uint8)


def distinct(numbers: np.ndarray) -> tuple:
    """The different record numbers of an array; 0 among them stands for "nothing"."""
    raw = numbers.tobytes()  # mostly all alike, which bytes tell faster than numpy
    first = raw[:4]
    if raw == first * (len(raw) // 4):
        return (int.from_bytes(first, "little"),) if raw else ()
    return tuple(set(numbers.reshape(-1).tolist()))


class Blocks:
    """The blocks of 512 bytes that something has touched: they rule most comparisons out."""

    __slots__ = ("bits",)

    def __init__(self):
        self.bits = 0

    def add(self, low: int, high: int) -> None:
        """Note that bytes low to high, both included, were touched."""
        first = low >> 9
        self.bits |= (2 << (high >> 9) - first) - 1 << first

    def meet(self, low: int, high: int) -> int:
        first = low >> 9
        return self.bits & ((2 << (high >> 9) - first) - 1 << first)


class SharedShadow:
    """Shadow of a CTA's shared memory. Indices are granules (offset // 16) or words (offset // 4).

    written: granules written by the async proxy. core: granules read by the tensor core. copied:
    granules read by copies out of shared memory. stored, loaded: words accessed by generic
    instructions. values: what the latest store has left in a word. *_in: the blocks that each of
    these has touched.
    """

    def __init__(self, nbytes: int):
        granules = -(-nbytes // GRANULE) + 1
        self.written = np.zeros(granules, np.int32)
        self.core = np.zeros(granules, np.int32)
        self.copied = np.zeros(granules, np.int32)
        self.stored = np.zeros(granules * 4, np.int32)
        self.values = np.zeros(granules * 4, np.uint32)
        self.loaded = [np.zeros(granules * 4, np.int32) for _ in range(GENERIC_READERS)]
        self.lane = np.zeros(granules * 4, np.uint8)  # lane that stored a word, or SHUFFLED, EVERY
        self.reader = np.zeros(granules * 4, np.uint8)  # lane that loaded a word last
        self._forget_blocks()

    def _forget_blocks(self) -> None:
        self.written_in, self.core_in, self.copied_in = Blocks(), Blocks(), Blocks()
        self.stored_in, self.barriers_in = Blocks(), Blocks()
        self.loaded_in = [Blocks() for _ in range(GENERIC_READERS)]

    def clear(self) -> None:
        """Empty the shadow for the next CTA. New memory would cost more time than clearing it."""
        for cells, blocks in (
            (self.written, self.written_in),
            (self.core, self.core_in),
            (self.copied, self.copied_in),
            (self.stored, self.stored_in),
            *zip(self.loaded, self.loaded_in),
        ):
            if blocks.bits:
                cells.fill(0)
        self._forget_blocks()

    def words(self, of: np.ndarray, index: int | slice | np.ndarray) -> np.ndarray:
        """The words of some granules, as an array [n, 4]."""
        return of.reshape(-1, 4)[index]

    def readers(self, low: int, high: int) -> list[int]:
        """Slots of the warps that may have loaded some of the bytes low to high."""
        return [i for i, blocks in enumerate(self.loaded_in) if blocks.meet(low, high)]
