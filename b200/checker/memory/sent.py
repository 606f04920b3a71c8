"""Signals: what strong writes hand over to the strong reads that receive them (PTX ISA 8.8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker.vector_clocks import HB, Agent, join, weakened
from b200.effects import Ordered, Updates
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.accesses import ClusterState
    from b200.checker.memory.global_conflicts import Write

Knowledge = dict["ClusterState", np.ndarray]  # cluster -> clock


def releases(ins: Instr) -> bool:
    return isinstance(ins.effect, Ordered) and ins.effect.releases


def acquires(ins: Instr) -> bool:
    return isinstance(ins.effect, Ordered) and ins.effect.acquires


def tells(ins: Instr) -> bool:
    """Whether an access tells its thread what it has read. Of a reduction nothing hangs on whether
    it comes before another access of the word or after it: another order of the two is as possible,
    so none may count on this one.
    """
    return not isinstance(ins.effect, Updates) or ins.effect.returns


@dataclass(eq=False)
class Signal:
    """A strong write of global memory, or a weak write that is taken for a flag.

    scope: the instruction's scope. clock: the warp's clock, None if it has nothing to hand over.
    arrivals: what the warp has learned of other clusters. lanes: those that write. earlier: the
    releases by the same lanes at the same place before it, with which it is a release pattern (PTX
    ISA 8.8). readers: the strong reads that have received it. write: what the shadow has of it.
    """

    agent: Agent
    ins: Instr
    scope: int
    clock: np.ndarray | None
    arrivals: list[Arrival]
    lanes: int = 0
    earlier: tuple[Signal, ...] = ()
    readers: list[Pending] = field(default_factory=list)
    write: Write | None = None

    @property
    def releases(self) -> bool:
        return releases(self.ins)

    def given(self, far: int) -> np.ndarray | None:
        """The clock that a reader may take over. far: the distance of the reader (scopes.py)."""
        if self.clock is None:
            return None
        if self.releases and self.scope >= far:
            return self.clock
        given = weakened(self.clock, far)
        for release in self.earlier:
            if release.scope >= far and release.clock is not None:
                given = join(given, release.clock)
        return given

    def knowledge(self, far: int) -> Knowledge:
        """The knowledge that a reader may take over. far: the reader's distance (scopes.py)."""
        clock = self.given(far)
        if clock is None:
            return {}
        found: Knowledge = {self.agent.state: clock}
        for arrival in self.arrivals:
            if arrival.before(clock, HB):
                merge(found, arrival.knowledge)
        return found


class Arrival(NamedTuple):
    """Knowledge of other clusters that a warp has learned at one of its epochs."""

    component: int
    epoch: int
    knowledge: Knowledge

    def before(self, clock: np.ndarray, row: int) -> bool:
        known = self.component < clock.shape[1]
        return known and int(clock[row, self.component]) >= self.epoch


class Pending(NamedTuple):
    """A signal that a warp has read at an address."""

    agent: Agent
    epoch: int
    ins: Instr
    signal: Signal
    address: int


def merge(into: Knowledge, knowledge: Knowledge) -> None:
    """Join `knowledge` into `into`. The clocks are shared, so none is changed in place."""
    for cluster, clock in knowledge.items():
        have = into.get(cluster)
        if have is not clock:
            into[cluster] = clock if have is None else join(have.copy(), clock)
