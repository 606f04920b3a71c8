"""Between the lanes of one warp: accesses of memory that no bar.warp.sync orders, and lanes of one
store that write different values to one address, of which any may stay.

Lanes that go in step carry their accesses out in the order of the text, and today's chips keep that
order for one address. PTX promises it to a lane for its own accesses only (8.9).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.lane_release_rule import APART, IN_STEP
from b200.checker.memory.lane_sync import lanes_of
from b200.checker.memory.shadow import EVERY, SHUFFLED
from b200.checker.words import place
from b200.chip.describe import mnemonic
from b200.program.module import Instr
from b200.registry import LaneValues, active, lanes_text

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment
    from b200.checker.memory.shared_memory import SharedRules
    from b200.checker.observer import Observer

OWN = "the wait tells each lane of its own copies only; no chip was asked what others see"


def shared(
    rules: SharedRules,
    new: Record,
    numbers: tuple,
    cells: np.ndarray,
    by: np.ndarray,
    index: slice | np.ndarray,
    lanes: np.ndarray | int,
    at: tuple,
    how: str = "read",
) -> None:
    """Report words that another lane of the warp has stored or copied (or read, if this access
    stores) since the warp's lanes last synchronised. cells: the records of the words. by: the
    shadow that has the lane of each word. lanes: the lanes of this access. how: as in _conflict.
    Nothing is reported if both accesses are narrower than a word: they may be neighbouring
    bytes of it.
    """
    for number in numbers:
        if not number:
            continue
        old = rules.state.records[number]
        step = _made(old, new, how)
        if step is None:
            continue
        if new.narrow and old.narrow or new.kind != "generic" and how == "overwrite":
            continue
        before = by[index]
        other = (before != lanes) & (before != EVERY) & (cells == number)
        if other.any():
            other = other & ~np.asarray(new.agent.in_order(step, before, lanes))
        if not other.any():
            continue
        done = "read" if how == "write" else "copied" if old.kind == "cp.async" else "stored"
        verb = "reads" if how == "read" else "overwrites"
        # One word for several lanes, or for two stores, is in order as long as lanes go in step
        in_step = new.kind == "generic" and _in_step(new.agent, before[other])
        why = OWN if old.kind == "cp.async" else IN_STEP
        if how != "overwrite" and old.kind == "generic":
            lanes_of_both = (*np.atleast_1d(lanes).tolist(), *before[other].tolist())
            in_step = in_step and SHUFFLED in lanes_of_both
        rules.report(
            "race",
            f"{words.thing(new)} {verb} what another lane of the warp has just {done}, "
            "without bar.warp.sync",
            *words.conflict(new, old, place(rules.cta, *at)),
            *((APART,) if new.agent.in_groups is not None else ()),
            *((why,) if in_step else ()),
            "missing: bar.warp.sync (__syncwarp) between the two",
            of=(new, old),
            severity=PORTABILITY if in_step else ERROR,
        )


def sent(
    rules: SharedRules,
    new: Record,
    numbers: tuple,
    index: np.ndarray | slice,
    lanes: np.ndarray | int,
    at: tuple,
) -> None:
    """Report a store over the source of a copy of the warp's own, by lanes that have not waited for
    it: the wait of another lane is that lane's alone (PTX ISA 9.7.9.25.3.3).
    """
    agent = new.agent
    for number in numbers:
        old = rules.state.records[number] if number else None
        if old is None or old.agent is not agent or old.kind not in ("bulk_store", "tma_store"):
            continue
        own = (s for s in agent.streams.values() if s.component == old.component)
        told = next((s.told_of(old.step) for s in own), None)
        if told is None or told.turn != new.turn:
            continue
        places = np.arange(index.start, index.stop) if isinstance(index, slice) else index
        cells = rules.shadow.copied[places >> 2]
        others = lanes_of(lanes, cells, number, agent.in_step) & ~told.lanes
        if not others:
            continue
        in_step = not told.lanes & ~agent.in_step
        rules.report(
            "race",
            f"{words.thing(new)} overwrites what another lane of the warp has just sent, "
            "without bar.warp.sync",
            *words.conflict(new, old, place(rules.cta, *at)),
            f"waited for by {lanes_text(told.lanes)}; this access is by {lanes_text(others)}",
            *((OWN,) if in_step else ()),
            "missing: bar.warp.sync (__syncwarp) between the wait and this access",
            of=(new, old),
            severity=PORTABILITY if in_step else ERROR,
        )


def _made(old: Record, new: Record, how: str) -> int | None:
    """The epoch of this turn at which lanes of the warp have made an access, or have learned that a
    cp.async of theirs is complete: that tells each lane of its own copies only (PTX ISA
    9.7.9.25.3.3). None if another turn, or another warp, has.
    """
    if old.agent is not new.agent:
        return None
    if old.kind == "cp.async" and how == "read":
        told = new.agent.stream("cp_async").told_of(old.step)
        return told.epoch if told is not None and told.turn == new.turn else None
    return old.step if old.turn == new.turn and old.kind == "generic" else None


def _in_step(agent: Agent, lanes: np.ndarray) -> bool:
    """Whether lanes that made an access before are at the present one, too."""
    known = (int(lane) for lane in np.unique(lanes) if lane < EVERY)
    return all(agent.in_step >> lane & 1 for lane in known)


KEPT = 32  # accesses of a warp that are remembered


@dataclass(eq=False)
class TurnAccess:
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

    @cached_property
    def units(self) -> frozenset[int]:
        """The addresses, where each is a multiple of the access's size; else none."""
        return frozenset() if (self.at % self.nbytes).any() else frozenset(self.at.tolist())


class GlobalLanes:
    """The rule for one launch. latest: warp -> (its turn, what it has accessed in that)."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.latest: dict[Agent, tuple[int, list[TurnAccess]]] = {}

    def access(
        self, agent: Agent, mask: int, at: np.ndarray, nbytes: int, ins: Instr, write: bool
    ) -> None:
        """Lanes of a warp read or write, `nbytes` each."""
        low, high = int(at.min()), int(at.max()) + nbytes
        epoch = agent.epoch + (agent.snapshot is not None)
        new = TurnAccess(ins, mask, at, nbytes, write, epoch, low, high)
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

    def _check(self, agent: Agent, old: TurnAccess, new: TurnAccess) -> None:
        if old.write and old.shared or old.ins is new.ins and old.write:
            return  # each lane has stored it; a loop that stores again
        if old.nbytes == new.nbytes and old.units and new.units:
            if old.units.isdisjoint(new.units):  # multiples of one size overlap whole or not at all
                return
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
            f"this access: {words.line(new.ins)}, by {words.name(agent)}",
            f"{done} before: {words.line(old.ins)}, by {lanes_text(lanes)}",
            *(() if region is None else (f"in {self.observer.operand(region.base)}",)),
            *((APART,) if agent.in_groups is not None else ()),
            *((IN_STEP,) if in_step else ()),
            "missing: bar.warp.sync (__syncwarp) between the two",
            at=new.ins,
            other=old.ins,
            severity=PORTABILITY if in_step else ERROR,
        )

    @staticmethod
    def _others(agent: Agent, old: TurnAccess, new: TurnAccess, meet: np.ndarray) -> int:
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


def differ(mask: int, at: np.ndarray, value: LaneValues | tuple, bits: int) -> bool:
    """Whether lanes of one store write different values to one address. at: one address, or one for
    each active lane. value: an array or an int, or a tuple of them.
    """
    if at.size > 1 and len(set(at.tolist())) == at.size or mask & mask - 1 == 0:
        return False
    values = value if isinstance(value, tuple) else (value,)
    varying = [v for v in values if isinstance(v, np.ndarray)]
    if not varying:
        return False
    chosen = active(mask)
    places = at.tolist() if at.size > 1 else at.tolist() * len(chosen)
    first: dict[int, tuple] = {}
    rows = zip(*((v[chosen] & v.dtype.type(bits)).tolist() for v in varying))
    return any(first.setdefault(place, row) != row for place, row in zip(places, rows))


def one_address(warp: CheckedFragment, ins: Instr, where: str) -> None:
    observer = warp.observer
    agent = observer.agent(warp)
    observer.found(
        "race",
        f"lanes of one {mnemonic(ins)} write different values to one address: any of them may stay",
        f"this access: {words.line(ins)}, by {words.name(agent)}",
        f"in {where} memory",
        "missing: an address of its own for each lane, or a guard that leaves one lane",
        at=ins,
    )
