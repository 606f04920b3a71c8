"""Tells warps that poll memory for ever from warps that poll and make progress.

A warp that waits for an mbarrier or a barrier is parked. A warp that polls memory in a loop is not
parked and may go round for ever. The machine is deterministic: if a fragment comes back to a block
with the same registers as before, and nobody has changed anything, it repeats itself until somebody
does. Until then the fragment `stands`: it is not executed. When all fragments that could run stand,
and nothing is under way, the launch is deadlocked.

A loop with a counter (a time-out, a pause that grows) never has the same registers twice. Its
fragment is taken to stand when it has gone on for LONG blocks, reads the same values at the same
addresses as at the start, and compares one of them.

`Fragment.spin` tells whether a fragment has changed anything: the writer of blocks sets it to None
for each instruction that does (`Effect.changes`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.polls import condition_of, one_round, reads_of
from b200.program.translated import Registers
from b200.registry import FULL, QUIET, Spin, as_bools

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment, WarpState
    from b200.chip.machine import Machine

FIRST = 64  # blocks of a turn before a fragment is looked at
JOINS = 16  # turns of a warp's parts that end where they meet, before that is left out
LOOK = 64  # blocks that it is looked at
LONG = 1 << 15


def quiet(warp: Fragment, before: Spin) -> bool:
    """Whether a fragment has neither changed anything nor looked at an mbarrier in vain since its
    `spin` was `before`. A mark that a failed wait has left long ago is no step.
    """
    return warp.spin is QUIET or warp.spin is before


class Loop:
    """The registers of a fragment at a block, to compare with; taken anew after `limit` blocks."""

    __slots__ = ("pc", "registers", "steps", "limit")

    def __init__(self, pc: int, registers: Registers):
        self.limit = LOOK // 2
        self.take(pc, registers)

    def take(self, pc: int, registers: Registers) -> None:
        self.pc, self.registers, self.steps = pc, registers.copy(), 0


class Spinning:
    """Finds out which fragments stand.

    loops: (warp, lanes) -> the loop of that fragment. standing: warp -> lanes that stand. For each
    warp, since the latest change of anything: blocks, how many it has executed; reads, what it read
    in a round; joins, how many turns of its parts ended where they met. stood: warps that have
    stood before.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.loops: dict[tuple[WarpState, int], Loop] = {}
        self.standing: dict[WarpState, int] = {}
        self.blocks: dict[WarpState, int] = {}
        self.reads: dict[WarpState, list[tuple[object, ...]]] = {}
        self.joins: Counter[WarpState] = Counter()
        self.stood: set[WarpState] = set()
        registers = machine.code.kernel.registers.values()
        self.predicates = [reg.type == "pred" for reg in registers]

    def progress(self) -> None:
        """Something has changed: every fragment that stood is executed again, and waits anew."""
        self.machine.limits.over.clear()
        self.again()

    def again(self) -> None:
        """Every fragment that stood is executed again."""
        if self.loops or self.blocks or self.joins:
            self.joins.clear()
            self.loops.clear()
            self.standing.clear()
            self.blocks.clear()
            self.reads.clear()

    def stands(self, warp: Fragment) -> bool:
        return self.standing.get(warp.state, 0) & warp.mask == warp.mask

    def all_stand(self) -> bool:
        """Whether all fragments that could run stand."""
        return bool(self.standing) and all(map(self.stands, self.machine.order.queue))

    def before_look(self, warp: Fragment) -> int:
        """How many blocks of a turn a fragment executes before `look` is called."""
        return 0 if warp.state in self.stood or self.joins[warp.state] >= JOINS else FIRST

    def look(self, warp: Fragment) -> int | None:
        """Execute some blocks of a fragment, as InOrder.run_blocks does; find out if it stands."""
        order, R, pc, before = self.machine.order, warp.register_file, warp.pc, warp.spin
        for _ in range(LOOK):
            key = warp.state, warp.mask
            loop = self.loops.get(key)
            if loop is None:
                self.loops[key] = Loop(pc, R)
            elif pc == loop.pc and self._same(R, loop.registers, warp.mask):
                self.standing[warp.state] = self.standing.get(warp.state, 0) | warp.mask
                self.stood.add(warp.state)
                return pc
            else:
                loop.steps += 1
                if loop.steps >= loop.limit:
                    loop.limit *= 2
                    loop.take(pc, R)
            after = order.run_some(warp, pc, 1)
            if after is None:
                return None
            pc = after
            if not quiet(warp, before) or order.gives_way:
                return pc
        return pc

    def went_on(self, warp: Fragment, blocks: int) -> int | None:
        """A fragment has executed `blocks` without any effect. Returns what run_blocks returns."""
        done = self.blocks[warp.state] = self.blocks.get(warp.state, 0) + blocks
        before = self.reads.get(warp.state)
        if done < LONG // 2 or before is not None and done < LONG:
            return warp.pc
        steps, goes_on = one_round(self.machine, warp)
        now = self.reads[warp.state] = [r.what for r in reads_of(self.machine, warp, steps)]
        if before is not None:
            self.blocks[warp.state] = LONG // 2
            if now and now == before and condition_of(self.machine, warp, steps).test:
                self.standing[warp.state] = self.standing.get(warp.state, 0) | warp.mask
        return warp.pc if goes_on is not None else None

    def _same(self, registers: Registers, before: Registers, mask: int) -> bool:
        """Whether the lanes of a mask have the same values."""
        for predicate, a, b in zip(self.predicates, registers, before):
            if a is b:
                continue
            if isinstance(a, np.ndarray):
                differ = a != b
                if (differ if mask == FULL else differ & as_bools(mask, differ.size)).any():
                    return False
            elif (a ^ b) & mask if predicate else a != b:
                return False
        return True
