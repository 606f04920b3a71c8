"""Stores on their way from an SM to the L2.

Data travels the other way than answers do, at about half their rate. A sector of which only a part
is written takes longer than a whole one, and so does one that the instruction writes without the
other of its 64 bytes. An SM passes on a sector a clk; when `store_queue` sectors have not reached
the L2, its warps wait. All of this was measured on an H200 (python -m harness h200 stores),
whose stores of half sectors, 16 bytes a lane, run at a third of the rate of whole ones.
"""

from __future__ import annotations

from collections import deque

import numpy as np

SECTOR_SHIFT = 5


class StorePort:
    """The port of an SM's stores. under_way: (when the L2 has them, sectors), in order; sectors:
    their number; free: when the port has passed on what it was given.
    """

    __slots__ = ("under_way", "sectors", "free")

    def __init__(self):
        self.under_way: deque[tuple[float, int]] = deque()
        self.sectors = 0
        self.free = 0.0

    def room(self, at: float, capacity: float) -> float:
        """When the next store is taken that comes at `at`."""
        waiting = self.under_way
        while waiting and (waiting[0][0] <= at or self.sectors > capacity):
            done, sectors = waiting.popleft()
            self.sectors -= sectors
            at = max(at, done)
        return at

    def sent(self, done: float, sectors: int) -> None:
        self.under_way.append((done, sectors))
        self.sectors += sectors


def sectors_of(starts: np.ndarray, nbytes: int) -> tuple[int, int]:
    """(written in part, written whole) of the sectors that rows of `nbytes` touch."""
    begin, end = starts, starts + nbytes
    touched = ((end - 1) >> SECTOR_SHIFT) - (begin >> SECTOR_SHIFT) + 1
    whole = np.maximum((end >> SECTOR_SHIFT) - ((begin + 31) >> SECTOR_SHIFT), 0)
    return int((touched - whole).sum()), int(whole.sum())


def in_part(addresses: np.ndarray, nbytes: int) -> int:
    """How many sectors a warp's stores of `nbytes` at each address, none across two sectors, write
    in part.
    """
    _, lanes = np.unique(np.unique(addresses) >> SECTOR_SHIFT, return_counts=True)
    return int((lanes * nbytes < 1 << SECTOR_SHIFT).sum())


def alone(sectors: np.ndarray) -> float:
    """The share of a warp's sectors, by number, that are the only one of their 64 bytes."""
    _, count = np.unique(sectors >> 1, return_counts=True)
    return float((count == 1).sum() / len(sectors))
