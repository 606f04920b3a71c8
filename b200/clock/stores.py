"""Stores on their way from an SM to the L2.

Stored data reaches the L2 at about half the rate at which answers come back. A sector that is
written in part takes longer than a whole one. So does a sector that the instruction writes without
the other sector of the same 64 bytes. An SM passes on a sector a clk; when `store_queue` sectors
have not reached the L2 yet, its warps wait. All of this was measured on an H200 (python -m lab
h200 stores), whose stores of half sectors, 16 bytes a lane, run at a third of the rate of whole
ones.
"""

from __future__ import annotations

import numpy as np

SECTOR_SHIFT = 5


def sectors_of(starts: np.ndarray, nbytes: int) -> tuple[int, int]:
    """(number of sectors written in part, number written whole) by rows of `nbytes` at `starts`."""
    begin, end = starts, starts + nbytes
    touched = ((end - 1) >> SECTOR_SHIFT) - (begin >> SECTOR_SHIFT) + 1
    whole = np.maximum((end >> SECTOR_SHIFT) - ((begin + 31) >> SECTOR_SHIFT), 0)
    return int((touched - whole).sum()), int(whole.sum())


def in_part(addresses: np.ndarray, nbytes: int) -> int:
    """How many sectors a warp's stores write in part. They write `nbytes` at each address, and none
    of them crosses a sector's end.
    """
    _, lanes = np.unique(np.unique(addresses) >> SECTOR_SHIFT, return_counts=True)
    return int((lanes * nbytes < 1 << SECTOR_SHIFT).sum())


def alone(sectors: np.ndarray) -> float:
    """The share of a warp's sectors, given by their numbers, that it writes without the other
    sector of the same 64 bytes.
    """
    _, count = np.unique(sectors >> 1, return_counts=True)
    return float((count == 1).sum() / len(sectors))
