"""Records of accesses, which the shadow memories keep, and the checker's state of a cluster."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker.agent import Agent
from b200.checker.memory.far_fences import FarFences
from b200.checker.memory.shared_flags import SharedFlags
from b200.checker.streams import NEVER
from b200.checker.vector_clocks import HB, ORDER, SHARED_ROWS, TENSOR, Components, join
from b200.chip.state import CTA, Cluster
from b200.chip.sync.mbarrier import MBarrier

if TYPE_CHECKING:
    from b200.checker.barriers.arrivals import Uses
    from b200.checker.memory.weak_order import Edge
    from b200.program.module import Instr

NOTHING = np.zeros((SHARED_ROWS, 0), np.int32)
EXECUTIONS = 1024  # remembered of an access of parts of words
FOLLOWERS = 64  # operations that are looked at which end after another
EVENTS = 24  # remembered of an mbarrier, for the report of a hang


@dataclass(slots=True, eq=False)
class Record:
    """One access, or one asynchronous operation.

    component, step: the access is complete for a warp whose clock has this step of this component.
    epoch: the issuing warp's epoch at issue.
    kind: "generic", "atomic", "tma", "bulk", "mma", "cp", "load", "store", ...
    text: what the access does, in words.
    barrier: the Barrier that completes the access, or None. narrow: it is of fewer than 4 bytes.
    places: the bytes of each of its latest executions, if these leave out bytes of their words.
    lanes: those that make a generic access, each its own; 0 if the warp makes it as one. readers:
    the strong reads of other warps that have received this strong write. sum: of an MMA, its
    accumulator's place, and its shape with K. behind: of an operation of the tensor core, the
    step of the latest MMA before it in its queue; 0 for none. followers: operations of other warps
    that end after this one (tensor/queue_order.py).
    """

    agent: Agent
    ins: Any
    component: int
    step: int
    kind: str
    text: str
    barrier: Barrier | None = None
    narrow: bool = False
    number: int = 0
    epoch: int = 0
    turn: int = 0
    lanes: int = 0
    places: dict[bytes, np.ndarray] = field(default_factory=dict[bytes, np.ndarray])
    readers: list[Record] = field(default_factory=lambda: [])
    followers: list[Record] = field(default_factory=lambda: [])
    sum: Any = None
    behind: int = 0
    empty: bool = False  # it read what nothing had written
    box: Any = None  # tensormap of a TMA load
    inside: float = 0  # share of a load's box inside of the tensor, 0 for no load
    source: str = ""  # tensor that a load reads
    # Of an MMA: (operand, record number of the load that brought it)
    parts: tuple[tuple[str, int], ...] = ()
    start: int = 0  # offset in shared memory of what a tcgen05.cp copies, or a TMA load fills
    overwritten: Record | None = None  # the latest load over a part of this one

    def __post_init__(self):
        self.epoch, self.turn = self.agent.now(), self.agent.turn

    @classmethod
    def of_warp(cls, agent: Agent, ins: Any, text: str, kind: str = "generic") -> Record:
        """An access that the warp makes itself: it is complete for who knows the warp's epoch."""
        record = cls(agent, ins, agent.component, 0, kind, text)
        record.step = record.epoch
        return record

    def touches(self, places: np.ndarray) -> None:
        """Note the bytes of an execution. places: int64, none of them twice."""
        key = places.tobytes()
        self.places.pop(key, None)
        self.places[key] = places
        if len(self.places) > EXECUTIONS:
            del self.places[next(iter(self.places))]

    def beside(self, old: Record) -> bool:
        """Whether the latest execution has no byte of `old`, though they share words."""
        if not self.places or not old.places:
            return False
        mine = next(reversed(self.places.values()))
        return not any(np.isin(mine, theirs).any() for theirs in old.places.values())


@dataclass(slots=True, eq=False)
class Barrier:
    """The checker's knowledge of one mbarrier. `gathered` is the clock that its arrivals have
    published; `passed` is the clock that its latest completed phase hands to a waiter.

    record: of its initialisation. phases: number of completed phases.
    announced, signalled: bytes announced by expect_tx, and bytes of the copies issued to
    the mbarrier.
    lane: the lane that initialised it last. users: warp -> the warp's epoch at its latest use.
    uses: instruction -> the warps and lanes that arrive with it (arrivals.py).
    answers: Barrier B -> (warp, instruction) of the latest arrival on this mbarrier by a warp whose
    latest wait was on B.
    looks: warp -> (its epoch, instruction) of its wait for the latest completed phase.
    waited: numbers of the phases that some warp has waited for.
    unheld: (warp, its epoch, instruction) of each expect_tx of this phase that no arrival of it is
    known to come after (barriers/phases.py).
    states: (warp, or None for any; state) -> (phase, instruction) of the latest arrival that was
    given this state (barriers/phases.py).
    """

    object: MBarrier
    component: int
    record: Record
    strict: bool = False
    lane: int = 0
    phases: int = 0
    announced: int = 0
    signalled: int = 0
    gathered: np.ndarray = field(default_factory=lambda: NOTHING)
    passed: np.ndarray = field(default_factory=lambda: NOTHING)
    last: np.ndarray | None = None
    users: dict[Agent, int] = field(default_factory=lambda: {})
    uses: dict[int, Uses] = field(default_factory=lambda: {})
    answers: dict[Barrier | None, tuple[Agent, Instr | None]] = field(default_factory=lambda: {})
    looks: dict[Agent, tuple[int, Instr]] = field(default_factory=lambda: {})
    waited: set[int] = field(default_factory=set[int])
    unheld: list[tuple[Agent, int, Instr]] = field(default_factory=lambda: [])
    states: dict[tuple[Agent | None, int], tuple[int, Instr]] = field(default_factory=lambda: {})
    # id() of an instruction -> it, and the bytes that it announced, or signalled, last
    expects: dict[int, tuple[Instr, int]] = field(default_factory=lambda: {})
    copies: dict[int, tuple[Instr, int]] = field(default_factory=lambda: {})
    # (number, warp, what, where, phases so far)
    events: deque[tuple[int, Agent, str, str, int]] = field(
        default_factory=lambda: deque(maxlen=EVENTS)
    )

    def again(self, agent: Agent, ins: Instr | None, lane: int, count: int) -> bool:
        """Whether an initialisation belongs to the recorded execution of mbarrier.init, as another
        lane's part of it. Lanes are executed in order, so a second execution begins with a lane
        that is not higher.
        """
        return (
            self.record.ins is ins
            and self.record.agent is agent
            and lane > self.lane
            and self.object.expected == count
            and len(self.events) == 1
        )

    def at_rest(self, agent: Agent) -> bool:
        """Whether every use of the mbarrier by a warp comes before what `agent` does now."""
        return all(
            user is agent or agent.knows(HB, user.component, epoch)
            for user, epoch in self.users.items()
        )

    @property
    def idle(self) -> bool:
        """Whether nobody has used the mbarrier or waits for it."""
        used = self.users or self.uses or self.signalled or self.object.waiters
        return not used

    def answered(self, agent: Agent, ins: Instr | None) -> None:
        """Note that a warp arrives here, itself or through the tensor core."""
        if agent.waits:
            self.answers[next(reversed(agent.waits))] = agent, ins

    def gather(self, clock: np.ndarray) -> None:
        """Take in the clock that an arrival publishes. Without tcgen05 fences in the kernel, the
        mbarrier hands over tensor memory together with everything else.
        """
        if clock is not self.last:
            self.gathered = join(self.gathered, clock)
            if not self.strict:
                tensor = self.gathered[TENSOR]
                np.maximum(tensor, self.gathered[HB], out=tensor)
            self.last = clock

    def over(self, clock: np.ndarray) -> bool:
        """Whether a warp with this clock knows that the latest phase is over."""
        component = self.component
        known = int(clock[ORDER, component]) if component < clock.shape[1] else 0
        return known >= self.phases

    def explained(self, clock: np.ndarray) -> bool:
        """Whether a warp with this clock knows everything that the arrivals of all phases so far
        have published. False if copies have signalled bytes: only a wait tells of those.
        """
        if self.signalled:
            return False
        needed = self.passed[ORDER].copy()
        needed[self.component : self.component + 1] = 0  # of no component, once all is forgotten
        n = min(needed.size, clock.shape[1])
        return bool((needed[:n] <= clock[ORDER, :n]).all() and not needed[n:].any())

    def complete(self) -> None:
        """Note that the phase is over."""
        self.phases += 1
        if self.component >= self.gathered.shape[1]:
            self.gathered = join(
                np.zeros((SHARED_ROWS, self.component + 1), np.int32), self.gathered
            )
        self.gathered[:, self.component] = self.phases
        self.passed = self.gathered.copy()
        self.last = None

    def forget(self) -> None:
        """The cluster has ended: forget the clocks."""
        self.gathered, self.passed, self.last = NOTHING, NOTHING, None
        self.looks.clear()

    def name(self) -> str:
        """The barrier in words: its name in the source, its place in its row, its CTA."""
        place = self.object.place()
        if len(self.object.cta.cluster.ctas) > 1:
            place = f"{place.removesuffix(')')}, CTA rank {self.object.cta.rank})"
        return place


@dataclass(slots=True, eq=False)
class BarrierGeneration:
    """A generation of a CTA barrier, or a phase of the cluster's. `clock` joins those that came."""

    # (warp, its epoch, instruction, threads counted)
    arrivals: list[tuple[Agent, int, Instr, int]] = field(default_factory=lambda: [])
    clock: np.ndarray = field(default_factory=lambda: np.zeros((SHARED_ROWS, 32), np.int32))
    last: np.ndarray | None = None

    def gather(self, clock: np.ndarray) -> None:
        if clock is not self.last:
            self.clock = join(self.clock, clock)
            self.last = clock


class ClusterState:
    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.components = Components()
        self.agents: dict[tuple[int, int], Agent] = {}  # by CTA rank and number of the warp
        self.records: list[Any] = [None]  # Record; number 0 stands for none
        self.barriers: dict[tuple[int, int], Barrier] = {}  # (CTA rank, offset) -> the latest there
        self.allocations: dict[tuple[int, int], Record] = {}  # (CTA rank, first column) -> alloc
        # (CTA rank, first column) -> the CTA's parts of a pair's allocations there, in order
        self.pairs: dict[tuple[int, int], list[Record]] = {}
        # (rank of the CTA, collector buffer) -> the operand that it holds, the MMA that filled it
        self.collected: dict[tuple[int, str], tuple[Any, Record]] = {}
        # (what, generation) -> meeting
        self.meetings: dict[tuple[Any, ...], BarrierGeneration] = {}
        self.flags = SharedFlags()
        self.far_fences = FarFences()
        self.remote: dict[int, dict[int, Record]] = {cta.rank: {} for cta in cluster.ctas}
        self.outgoing: dict[int, list[Record]] = {cta.rank: [] for cta in cluster.ctas}
        # CTA rank -> component of an mbarrier there -> the latest commit of another CTA to it
        self.arrivals: dict[int, dict[int, Record]] = {cta.rank: {} for cta in cluster.ctas}
        # arrivals that hand over the order of execution only (weak_order.Edge)
        self.edges: deque[Edge] = deque(maxlen=256)
        self.ordered: np.ndarray | None = None  # the clock that the latest of them published
        self.ranks: dict[tuple[Any, ...], dict[int, int | None]] = {}  # as DescriptorRanks.fields
        self.exits: dict[int, np.ndarray] = {}  # CTA rank -> clock of its warps that have exited
        self.left: dict[int, int] = {cta.rank: 0 for cta in cluster.ctas}

    def forget(self) -> None:
        """The cluster has ended: forget what only rules for clusters ask for."""
        self.meetings.clear()
        self.edges.clear()
        self.ordered = None
        del self.records[1:]
        for barrier in self.barriers.values():
            barrier.forget()
        for agent in self.agents.values():
            agent.forget()

    def agents_of(self, cta: CTA) -> list[Agent]:
        """The agents of a CTA's warps, of those that have one."""
        found = (self.agents.get((cta.rank, warp.index)) for warp in cta.warps)
        return [agent for agent in found if agent is not None]

    def barrier(self, mbarrier: MBarrier) -> Barrier | None:
        """The state of an mbarrier object of the cluster; None if a later one is at its address."""
        found = self.barriers.get((mbarrier.cta.rank, mbarrier.offset))
        return found if found is not None and found.object is mbarrier else None

    def meeting(self, key: tuple[Any, ...]) -> BarrierGeneration:
        """A meeting of this generation; that of two generations before is over for all."""
        found = self.meetings.get(key)
        if found is None:
            found = self.meetings[key] = BarrierGeneration()
            self.meetings.pop((*key[:-1], key[-1] - 2), None)
        return found

    def add(self, record: Record) -> int:
        self.records.append(record)
        record.number = len(self.records) - 1
        return record.number

    def reach(self, record: Record, target: CTA) -> None:
        """Note an access to shared or tensor memory of CTA `target`, which must not exit before."""
        self.remote[target.rank][record.component] = record


def known(agent: Agent, record: Record, row: int = HB) -> bool:
    """Whether the access is complete before what `agent` does now."""
    return record.component == agent.component or complete(agent, record, row)


def complete(agent: Agent, record: Record, row: int) -> bool:
    """Whether a warp has been told that an access is complete, or one that ends after it."""
    if record.step < NEVER and agent.knows(row, record.component, record.step):
        return True
    if not record.followers:
        return False
    return any(
        later.step < NEVER and agent.knows(row, later.component, later.step)
        for later in _behind(record)
    )


def _behind(record: Record) -> list[Record]:
    """The operations that end after one, directly or by another: the first FOLLOWERS of them."""
    found = list(record.followers)
    for later in found:
        found += [other for other in later.followers if other not in found]
        if len(found) > FOLLOWERS:
            break
    return found


def issued_before(agent: Agent, record: Record) -> bool:
    """Whether the agent has synchronised with the issue of the access, complete or not."""
    return record.agent is agent or agent.knows(ORDER, record.agent.component, record.epoch)
