"""Whether the threads of CTAs abreast access memory in an order (checker/abreast).

No rule finds anything between two accesses of one place that neither conflict nor are out of order.
This looks for that, thread by thread and in all CTAs at once: a place is accessed by one thread
only, or only read, or only updated by atomics, until

- a barrier for which every warp of the CTA has waited orders all threads: `phase` counts them, or
- bar.warp.sync of all the warp's lanes orders these: `turn` counts them, from each phase's
  beginning.

All else that orders threads counts for nothing here. So what is clean here is clean by the rules;
what is not (NotInOrder) may be a race or not, which the rules say where the CTAs run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from b200 import sparse
from b200.checker.steps import UPDATES, WRITES
from b200.chip.abreast.dropped import NotAbreast
from b200.effects import Effect, Loads, Stores, Updates
from b200.program.translated import Translated

# A stamp is `phase`, `turn` and who has made the access: the warp and, from 1, the lane.
LANES, TURNS = 6, 24  # bits of a lane and of a turn
WHO = 12  # bits of a warp and a lane
SEVERAL = 33  # in place of a lane: several of the warp
ANYBODY = (1 << WHO) - 1  # several warps
LANE = np.arange(1, 33)


class NotInOrder(NotAbreast):
    """Threads of a CTA may access a place in any order, or read what nobody has written."""


@dataclass(eq=False, slots=True)
class Cells:
    """Stamps of the latest write, reads and atomics of each `unit` bytes, 0 for none."""

    written: np.ndarray
    read: np.ndarray
    updated: np.ndarray


@dataclass(eq=False, slots=True)
class _Meeting:
    generation: int
    warps: int = 0  # that wait, or have waited


class ThreadOrder:
    """The accesses of one run of n CTAs with `warps` warps each. unit: bytes of a cell."""

    def __init__(self, n: int, warps: int, unit: int):
        self.warps, self.unit = warps, unit
        self.lanes = np.tile(LANE, n)
        self._time = [1 << TURNS] * warps  # phase and turn of each warp
        self._meetings: dict[int, _Meeting] = {}  # number of a barrier -> the latest
        self._waits: dict[int, _Meeting] = {}  # warp -> for what
        self._cells: dict[int, Cells] = {}

    def cells(self, base: int, nbytes: int) -> Cells:
        """Those of an allocation; of all shared memory at base 0."""
        found = self._cells.get(base)
        if found is None:
            size = nbytes // self.unit + 1
            found = Cells(*(sparse.zeros(size, np.int64) for _ in range(3)))
            self._cells[base] = found
        return found

    # --- what orders ------------------------------------------------------------------------------
    def waits(self, warp: int, number: int, generation: int) -> None:
        """A warp begins to wait at a barrier of the CTA."""
        meeting = self._meetings.get(number)
        if meeting is None or meeting.generation != generation:
            meeting = self._meetings[number] = _Meeting(generation)
        meeting.warps += 1
        self._waits[warp] = meeting

    def passes(self, warp: int) -> None:
        if self._waits.pop(warp).warps == self.warps:
            self._time[warp] = (self._time[warp] >> TURNS) + 1 << TURNS

    def together(self, warp: int) -> None:
        """All lanes of a warp have met at bar.warp.sync."""
        self._time[warp] += 1

    # --- accesses ---------------------------------------------------------------------------------
    def access(
        self, warp: int, cells: Cells, index: np.ndarray, who: Any, way: str, shared: bool
    ) -> None:
        """Threads of a warp access cells. index: [cells of a thread, threads]. who: the lane of
        each thread, or SEVERAL. way: as of steps.py. shared: whether nothing is there before it is
        written. Raises NotInOrder.
        """
        now = self._time[warp]
        mine = warp << LANES | who
        written = cells.written[index]
        same, other = cells.read, cells.updated
        if way == UPDATES:
            same, other = other, same
        alike = same[index]
        self._look(written, warp, mine, now)
        self._look(other[index], warp, mine, now)
        if way == WRITES:
            self._look(alike, warp, mine, now)
            stamps = np.broadcast_to(now << WHO | mine, index.shape)
            cells.written[index] = stamps
            if (cells.written[index] != stamps).any():
                raise NotInOrder("threads store at one place")
            return
        if shared and not written.all():
            raise NotInOrder("shared memory that nobody has written is read")
        self._share(same, index, alike, warp, mine, now)

    @staticmethod
    def _share(
        cells: np.ndarray, index: np.ndarray, before: np.ndarray, warp: int, mine: Any, now: int
    ) -> None:
        """Stamp places that several threads may access at a time, alike."""
        stamps = np.broadcast_to(now << WHO | mine, index.shape)
        several = now << WHO | warp << LANES | SEVERAL
        recent = before >> WHO + TURNS == now >> TURNS
        if recent.any():
            by = before & ANYBODY
            stamps = np.where(recent & (by != mine), several, stamps)
            stamps = np.where(recent & (by >> LANES != warp), now << WHO | ANYBODY, stamps)
        cells[index] = stamps
        if (twice := cells[index] != stamps).any():
            cells[index[twice]] = np.where(
                stamps[twice] & ANYBODY == ANYBODY, stamps[twice], several
            )

    @staticmethod
    def _look(before: np.ndarray, warp: int, mine: np.ndarray, now: int) -> None:
        """Raise NotInOrder unless all the accesses before are in order with these."""
        recent = before >= now >> TURNS << TURNS + WHO
        if not recent.any():
            return
        by = before & ANYBODY
        in_order = (by == mine) | (by >> LANES == warp) & (before < now << WHO)
        if not in_order[recent].all():
            raise NotInOrder("threads access a place with nothing that orders them")


def can_be_judged(code: Translated) -> bool:
    """Whether the order of its threads' accesses is all that a rule for clusters looks at in a
    kernel, but for where its warps meet: it has weak accesses of memory, relaxed atomics that tell
    nobody what they found, and what is apart from memory.
    """
    ops = (op for block in code.structure for op in block.ops)
    effects = (op.ins.effect for op in ops if op.entry is not None and op.entry.style != "pure")
    return all(map(_can_be_judged, effects))


def _can_be_judged(effect: Effect) -> bool:
    if isinstance(effect, Updates):
        return effect.order == "relaxed" and not effect.returns
    if isinstance(effect, (Loads, Stores)):
        return not effect.strong
    return effect.properties.apart


def smallest_access(code: Translated) -> int:
    """The fewest bytes that a thread accesses at once in memory that it shares; at most 4."""
    effects = (op.ins.effect for block in code.structure for op in block.ops)
    sizes = (e.nbytes for e in effects if isinstance(e, (Loads, Stores, Updates)) and not e.private)
    return min((4, *sizes))
