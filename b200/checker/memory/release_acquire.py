"""Signals: what strong writes hand over to the strong reads that receive them (PTX ISA 8.8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker.vector_clocks import HB, at_distance, join, weakened
from b200.effects import Ordered, Updates
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.accesses import ClusterState
    from b200.checker.agent import Agent
    from b200.checker.memory.global_conflicts import Write

Knowledge = dict["ClusterState", np.ndarray]  # cluster -> clock
LATEST = 1024  # arrivals remembered of a warp


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
    learned: what its cluster learns of others. lanes: those that write. earlier: the releases by
    the same lanes at the same place before it, with which it is a release pattern (PTX ISA 8.8).
    readers: the strong reads that have received it. write: what the shadow has of it.
    """

    agent: Agent
    ins: Instr
    scope: int
    clock: np.ndarray | None
    learned: Learned
    lanes: int = 0
    earlier: tuple[Signal, ...] = ()
    readers: list[SignalRead] = field(default_factory=lambda: [])
    write: Write | None = None
    _knowledge: dict[int, Knowledge] = field(default_factory=dict[int, Knowledge])  # by distance

    @property
    def releases(self) -> bool:
        return releases(self.ins)

    def given(self, far: int) -> np.ndarray | None:
        """The clock that a reader may take over. far: the distance of the reader."""
        if self.clock is None:
            return None
        if self.releases and self.scope >= far:
            return at_distance(self.clock, far)
        given = weakened(self.clock, far)
        for release in self.earlier:
            if release.scope >= far and release.clock is not None:
                given = join(given, at_distance(release.clock, far))
        return given

    def knowledge(self, far: int) -> Knowledge:
        """The knowledge that a reader may take over. far: the reader's distance."""
        if far not in self._knowledge:
            clock = self.given(far)
            parts = [] if clock is None else [{self.agent.state: clock}, *self.learned.by(clock)]
            self._knowledge[far] = merged(parts)
        return self._knowledge[far]


def told(agent: Agent, signal: Signal) -> bool:
    """Whether a read by a warp's present lanes tells them more than they have done themselves."""
    return signal.agent is not agent or bool(agent.lanes & ~signal.lanes)


def covers(new: Signal, old: Signal) -> bool:
    """Whether a signal hands over all that one before it on the same place does: the same lanes
    have sent it, and hand over what they had before.
    """
    return new.agent is old.agent and not old.lanes & ~new.lanes


class Arrival(NamedTuple):
    """All that a warp knows of other clusters from one of its epochs on."""

    epoch: int
    knowledge: Knowledge


@dataclass
class Learned:
    """What the warps of a cluster have learned of other clusters, and what they have read but not
    acquired. arrivals: component -> the latest of that warp; each knows what those before it know.
    """

    arrivals: dict[int, deque[Arrival]] = field(default_factory=dict[int, deque[Arrival]])
    pending: list[SignalRead] = field(default_factory=lambda: [])
    seen: set[tuple] = field(default_factory=set[tuple])  # signals received or acquired already

    def add(self, agent: Agent, parts: list[Knowledge]) -> None:
        """A warp learns."""
        arrivals = self.arrivals.setdefault(agent.component, deque(maxlen=LATEST))
        if arrivals:
            parts = [arrivals[-1].knowledge, *parts]
        arrivals.append(Arrival(agent.now(), merged(parts)))

    def by(self, clock: np.ndarray, own: int | None = None) -> Iterator[Knowledge]:
        """What is known of other clusters by somebody with a clock of this one. own: the component
        of the warp whose clock it is: it knows all that it has learned.
        """
        for component, arrivals in self.arrivals.items():
            if component == own:
                yield arrivals[-1].knowledge
            elif component < clock.shape[1]:
                epoch = int(clock[HB, component])
                found = (a.knowledge for a in reversed(arrivals) if a.epoch <= epoch)
                yield next(found, {})


class SignalRead(NamedTuple):
    """A signal that some lanes of a warp have read at an address, in a turn of the warp."""

    agent: Agent
    epoch: int
    ins: Instr
    signal: Signal
    address: int
    lanes: int
    turn: int

    def read_by(self, agent: Agent) -> bool:
        """Whether lanes at a fence have read it, or met who has, or are ordered after them."""
        if self.agent is not agent:
            return agent.knows(HB, self.agent.component, self.epoch)
        return bool(self.turn != agent.turn or self.lanes & agent.lanes)


def merged(parts: list[Knowledge]) -> Knowledge:
    """Several together. Clocks are shared, so none is changed in place."""
    if len(parts) == 1:
        return parts[0]
    clocks: dict[ClusterState, dict[int, np.ndarray]] = {}
    for part in parts:
        for cluster, clock in part.items():
            clocks.setdefault(cluster, {})[id(clock)] = clock
    return {cluster: _joined(list(different.values())) for cluster, different in clocks.items()}


def _joined(clocks: list[np.ndarray]) -> np.ndarray:
    """The join of clocks of one cluster: the latest of them where that knows all that the others
    do, so that warps that have learned the same go on to share it.
    """
    latest = max(clocks, key=np.sum) if len(clocks) > 1 else clocks[0]
    if all(clock is latest or _covers(latest, clock) for clock in clocks):
        return latest
    found = latest.copy()
    for clock in clocks:
        found = join(found, clock)
    return found


def _covers(clock: np.ndarray, other: np.ndarray) -> bool:
    n = other.shape[1]
    return clock.shape[1] >= n and bool((clock[:, :n] >= other).all())
