"""Shadow of a CTA's tensor memory: for each cell the record that wrote it last, and its readers.

A cell is half a quarter of the lanes (16) by one column. Most accesses take whole cells. A
tcgen05.cp of 4x256b, a tcgen05.shift and an MMA with disable-output-lane leave lanes out: what they
have written stands in a layer of single lanes, which is there once it is needed.
"""

from __future__ import annotations

import numpy as np

from b200.checker.memory.shadow import distinct
from b200.chip.tensor.mma import DecodedMma
from b200.chip.tensor.tmem import split
from b200.hardware import TMEM_COLUMNS, TMEM_LANES

HALVES, HEIGHT = 8, 16  # half quarters, and the lanes of each
ROWS = np.arange(0, TMEM_LANES, HEIGHT)  # first lane of each half quarter
LOAD_READERS = 4  # warpgroups told apart as readers
ALL = slice(0, HALVES)
LOWER_HALVES = slice(0, HALVES, 2)  # lanes 0 to 15 of each quarter
Halves = slice | np.ndarray
LaneChoice = np.ndarray | None  # bool [half quarters, 16]: the lanes of an access; None for all


def halves_of(row: int, height: int) -> slice:
    """The half quarters that lanes [row, row + height) lie in."""
    return slice(row // HEIGHT, -(-(row + height) // HEIGHT))


def only(lanes: np.ndarray, halves: Halves = ALL) -> tuple[Halves, LaneChoice]:
    """The half quarters among `halves` of lanes (bool [128]), and which of their lanes."""
    by_half = lanes.reshape(HALVES, HEIGHT)
    among = np.arange(HALVES)[halves]
    touched = among[by_half[among].any(axis=1)]
    by_half = by_half[touched]
    return touched, None if by_half.all() else by_half


def of(lanes: range) -> tuple[Halves, LaneChoice]:
    """The half quarters that some lanes lie in, and which lanes of these that is: None for all."""
    if len(lanes) == TMEM_LANES:
        return ALL, None
    chosen = np.zeros(TMEM_LANES, bool)
    chosen[lanes] = True
    return only(chosen)


def place_of_sum(mma: DecodedMma, i: int) -> tuple[Halves, slice, LaneChoice]:
    """The half quarters, columns and lanes of D that an MMA writes in the i-th of its CTAs."""
    row, column = split(mma.acc.taddr)
    halves: Halves = slice(row // HEIGHT, HALVES, 2) if mma.acc.half else ALL
    columns = slice(column, column + mma.acc.columns // mma.acc.parts)
    if mma.disabled is None:
        return halves, columns, None
    halves, lanes = only(~mma.disabled[i], halves)
    return halves, columns, lanes


class TensorShadow:
    """Arrays are [half quarters, columns] of record numbers.

    written: what wrote all lanes of a cell last. lanes: [half quarters, 16, columns], what has
    written a lane since then, 0 for nothing; None until something has. core: what the tensor core
    has read. loaded: tcgen05.ld, one for each of LOAD_READERS. freed: [columns], the
    tcgen05.dealloc of columns that nobody has now.
    """

    def __init__(self):
        self.written = np.zeros((HALVES, TMEM_COLUMNS), np.int32)
        self.core = np.zeros((HALVES, TMEM_COLUMNS), np.int32)
        self.loaded = np.zeros((LOAD_READERS, HALVES, TMEM_COLUMNS), np.int32)
        self.freed = np.zeros(TMEM_COLUMNS, np.int32)
        self.lanes: np.ndarray | None = None

    def writers(self, halves: Halves, columns: slice, lanes: LaneChoice = None) -> np.ndarray:
        """The latest writer of each cell; of each lane, where single ones have been written."""
        cells = self.written[halves, columns]
        if self.lanes is None:
            return cells
        single = self.lanes[halves, :, columns]
        if not single.any():
            return cells
        found = np.where(single != 0, single, cells[:, None])
        return found if lanes is None else found[lanes]

    def empty(self, halves: Halves, columns: slice) -> np.ndarray:
        """bool [lanes, columns]: what nothing has written."""
        writers = self.writers(halves, columns)
        if writers.ndim == 2:
            writers = writers.repeat(HEIGHT, axis=0)
        return writers.reshape(-1, writers.shape[-1]) == 0

    def wrote(self, number: int, halves: Halves, columns: slice, lanes: LaneChoice = None) -> None:
        """Record `number` has written cells, or some lanes of them."""
        if lanes is None:
            self.written[halves, columns] = number
            self.core[halves, columns] = 0
            self.loaded[:, halves, columns] = 0
            if self.lanes is not None:
                self.lanes[halves, :, columns] = 0
            return
        if self.lanes is None:
            self.lanes = np.zeros((HALVES, HEIGHT, TMEM_COLUMNS), np.int32)
        chosen = self.lanes[halves, :, columns]
        chosen[lanes] = number
        self.lanes[halves, :, columns] = chosen

    def forget(self, columns: slice) -> None:
        """Forget the contents of freed columns: for the next owner nothing is written there."""
        self.written[:, columns] = 0
        self.core[:, columns] = 0
        self.loaded[:, :, columns] = 0
        if self.lanes is not None:
            self.lanes[..., columns] = 0

    def latest(self, halves: Halves, columns: slice) -> int:
        """The number of the latest write to some cells, 0 for none."""
        return max(distinct(self.writers(halves, columns)), default=0)
