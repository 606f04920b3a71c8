"""One lane waits, or speaks, for its warp: what acquires and releases by some lanes do not give.

An acquire orders what its own thread does after it (PTX ISA 8.8). What other lanes of the warp do
comes after it only if something orders the lanes in between, as for a release
(lane_release_rule.py): bar.warp.sync, a barrier of the CTA or the cluster, or, by choice, a fence
of every lane. Lanes that have joined again go on together on today's chips; lanes in another branch
do not wait at all.

A warp has one clock, which has what any of its lanes has acquired. From the first acquire by some
lanes on, until something brings the lanes together or all of them acquire, the warp keeps what it
knew before, and what which lanes have acquired.

Tickets: lanes that update one word by one atomic do so in the order of their numbers. Who reads the
result comes after those that have come before, as after any atomic of a release sequence: if the
atomic, or a fence before it, releases and the atomic, or a fence behind it, acquires. A lane knows
nothing of those that come after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.release_acquire import acquires, releases, tells
from b200.checker.vector_clocks import FENCED, HB, lanes_among
from b200.chip.describe import mnemonic
from b200.program.module import Instr
from b200.registry import FULL, active, lanes_text

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment


@dataclass
class LaneAcquires:
    """before: the warp's clock until then, [rows, components]. rows: lanes -> what they have
    acquired, as a row HB. ins: the latest acquire.
    """

    before: np.ndarray
    rows: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    ins: Instr | None = None

    def add(self, lanes: int, row: np.ndarray, ins: Instr | None) -> None:
        self.ins = ins
        have = self.rows.get(lanes)
        if have is not None:
            wide = np.zeros(max(have.size, row.size), np.int32)
            wide[: have.size] = have
            np.maximum(wide[: row.size], row, out=wide[: row.size])
            row = wide
        self.rows[lanes] = row.copy() if have is None else row

    @property
    def lanes(self) -> int:
        """The lanes that have acquired something."""
        return int(np.bitwise_or.reduce(list(self.rows)))

    def unaware(self, lanes: int, component: int, step: int) -> int:
        """Those of some lanes that do not know of a step that the warp knows of."""
        for known, row in ((lanes, self.before[HB]), *self.rows.items()):
            if component < row.size and row[component] >= step:
                lanes &= ~known
        return lanes

    def words(self, unaware: int, in_step: int) -> tuple[str, str, str]:
        """(what a finding says of lanes that do not know, what is missing, its severity). in_step:
        the lanes that have come to the access together.
        """
        what = f"the {mnemonic(self.ins)}" if self.ins is not None else "the wait"
        apart = self.lanes & ~in_step
        return (
            f"by {lanes_text(unaware)}, and {what} of {lanes_text(self.lanes)} acquires for its "
            "own lanes only",
            "missing: bar.warp.sync (__syncwarp) after the wait, or a wait by every lane",
            ERROR if apart else PORTABILITY,
        )


class LaneAcquire(NamedTuple):
    """An acquire by some lanes. every: the others have exited, with accesses left unreleased."""

    lanes: int
    ins: Instr
    every: bool = False


def part_of(warp: CheckedFragment, lanes: int, ins: Instr) -> LaneAcquire | None:
    """What Agent.lane_acquire is while some lanes of a warp acquire; None if all do."""
    live = warp.state.live & ~lanes
    left = warp.observer.agent(warp).touched & ~lanes
    return LaneAcquire(lanes, ins, not live) if live or left else None


def lanes_of(by: Any, cells: np.ndarray, number: int, mask: int) -> int:
    """The lanes that access the words of one record. by: the lane of each word, or one marker
    (shadow.py) for several lanes, which are those of the mask then.
    """
    by = np.asarray(by)
    if by.size != cells.size:
        return mask
    some = 0
    for lane in np.unique(by[cells == number]).tolist():
        some |= 1 << lane if lane < 32 else mask
    return some


def lanes_at(cells: np.ndarray, number: int, mask: int) -> int:
    """The lanes that access one record's cells. cells: a row a lane of the mask, else of any."""
    if cells.ndim < 2 or len(cells) != mask.bit_count():
        return mask
    here = (cells == number).any(1).tolist()
    return sum(1 << lane for lane, meets in zip(active(mask), here, strict=True) if meets)


@dataclass(slots=True, eq=False)
class LaneRelease:
    """A release by some lanes of a warp.

    component: the component that tells who knows of it; it counts releases by these lanes alone.
    left: lanes whose accesses it leaves out. base: accesses up to this epoch are ordered all the
    same. met: accesses up to this epoch were executed before the lanes met at a `.sync`.
    """

    ins: Instr | None
    lanes: int
    component: int
    left: int
    base: int
    met: int


def left_out(of: Agent, step: int, row: np.ndarray) -> tuple[LaneRelease, int] | None:
    """(the release by which somebody knows of an access of warp `of`, the lanes that it and others
    that are known leave out); None if the access is released whole. step: epoch of the access.
    row: what is known, a row of a clock.
    """
    known = int(row[of.component]) if of.component < row.size else 0
    releases = of.lane_releases.get(known)
    if releases is None or step <= releases[-1].base:
        return None
    left = FULL
    for epoch in reversed(of.lane_releases):
        if epoch < step:
            break
        for told in of.lane_releases[epoch]:
            if told.component < row.size and row[told.component] >= epoch:
                left &= told.left
    return (releases[-1], left) if left else None


@dataclass
class Ticket:
    """One atomic of several lanes in a turn of their warp.

    epoch: up to which it hands over what the lanes have done. places: of each lane the address, -1
    for those that take none. acquired: lanes that have taken over what those before them have done.
    """

    turn: int
    epoch: int
    places: np.ndarray
    acquired: int

    def orders(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Whether lanes `other` know of lanes `one`. A marker in place of a lane has no ticket."""
        i, j = np.minimum(one, 31), np.minimum(other, 31)
        same = (self.places[i] == self.places[j]) & (self.places[i] >= 0)
        return same & (i < j) & (one < 32) & lanes_among(self.acquired, other)


def take_ticket(agent: Agent, ins: Instr, mask: int, at: np.ndarray) -> None:
    """Lanes of a warp have carried out an atomic. at: an address for each lane, or one for all."""
    if not tells(ins) or mask & mask - 1 == 0:
        return
    epoch = agent.epoch if releases(ins) else int(agent.clock[FENCED, agent.component])
    if not epoch:
        return  # no fence has put anything before it
    places = np.full(32, -1, np.int64)
    places[active(mask)] = at
    agent.tickets.append(Ticket(agent.turn, epoch, places, mask if acquires(ins) else 0))
