"""Global memory between the lanes of one warp: accesses that no bar.warp.sync orders.

Lanes that go in step carry their accesses out in the order of the text, and today's chips keep that
order for one address. PTX promises it to a lane for its own accesses only (8.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.lane_release_rule import APART, IN_STEP
from b200.chip.describe import mnemonic
from b200.program.module import Instr
from b200.registry import active, lanes_text

if TYPE_CHECKING:
    from b200.checker.observer import Observer

KEPT = 32  # accesses of a warp that are remembered


class Access(NamedTuple):
    """A plain access of one turn. at: an address for each lane of the mask, or one for all. epoch:
    the warp's, up to which a bar.warp.sync of some lanes may order it. low, high: the lowest
    address, and the end of the highest.
    """

    ins: Instr
    mask: int
    at: np.ndarray
    nbytes: int
    write: bool
    epoch: int
    low: int
    high: int

    @property
    def shared(self) -> bool:
        """Whether several lanes have one address."""
        return self.at.size == 1 and self.mask & self.mask - 1 != 0


class GlobalLanes:
    """The rule for one launch. latest: warp -> (its turn, what it has accessed in that)."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.latest: dict[Agent, tuple[int, list[Access]]] = {}

    def access(
        self, agent: Agent, mask: int, at: np.ndarray, nbytes: int, ins: Instr, write: bool
    ) -> None:
        """Lanes of a warp read or write, `nbytes` each."""
        low, high = int(at.min()), int(at.max()) + nbytes
        epoch = agent.epoch + (agent.snapshot is not None)
        new = Access(ins, mask, at, nbytes, write, epoch, low, high)
        turn, before = self.latest.get(agent, (-1, []))
        if turn != agent.turn:
            self.latest[agent] = agent.turn, [new]
            return
        for old in before:
            if (write or old.write) and old.low < new.high and new.low < old.high:
                self._check(agent, old, new)
        if len(before) >= KEPT:
            del before[0]
        before.append(new)

    def _check(self, agent: Agent, old: Access, new: Access):
        if old.write and old.shared or old.ins is new.ins and old.write:
            return  # each lane has stored it; a loop that stores again
        apart = old.at[:, None] - new.at[None, :]
        meet = (apart < new.nbytes) & (apart > -old.nbytes)
        if not meet.any():
            return
        lanes = self._others(agent, old, new, meet)
        if not lanes:
            return
        verb = ("reads", "overwrites")[new.write]
        done = ("read", "stored")[old.write]
        in_step = not lanes & ~agent.in_step
        region = self.observer.machine.memory.find(int(new.at[0]), 1)
        self.observer.found(
            "global",
            f"{mnemonic(new.ins)} {verb} global memory that another lane of the warp has just "
            f"{done}, without bar.warp.sync",
            (
                f"this access: {words.line(new.ins)}, by {words.name(agent)}",
                f"{done} before: {words.line(old.ins)}, by {lanes_text(lanes)}",
                *(() if region is None else (f"in {self.observer.operand(region.base)}",)),
                *((APART,) if agent.in_groups else ()),
                *((IN_STEP,) if in_step else ()),
                "missing: bar.warp.sync (__syncwarp) between the two",
            ),
            new.ins,
            old.ins,
            PORTABILITY if in_step else ERROR,
        )

    @staticmethod
    def _others(agent: Agent, old: Access, new: Access, meet: np.ndarray) -> int:
        """Lanes of an access that another lane of the later one meets."""
        one, other = active(old.mask), active(new.mask)
        if old.at.size == 1:
            meet = np.repeat(meet, len(one), 0)
        if new.at.size == 1:
            meet = np.repeat(meet, len(other), 1)
        found = 0
        i, j = np.nonzero(meet)
        one, other = np.array(one)[i], np.array(other)[j]
        apart = (one != other) & ~np.asarray(agent.in_order(old.epoch, one, other))
        for lane in set(one[apart].tolist()):
            found |= 1 << lane
        return found
