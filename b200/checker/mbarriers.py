"""Mbarriers: the order that their operations make, and the protocol that they must keep."""

from __future__ import annotations

import numpy as np

from b200.checker import naming as words
from b200.checker.accesses import Barrier, Record
from b200.checker.asynchronous import Asynchronous
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.scopes import CTA, distance, scope_of
from b200.checker.vector_clocks import ASYNC, HB, INIT, ORDER, TENSOR, Agent
from b200.checker.weak_order import Edge
from b200.chip.describe import call
from b200.chip.sync.barrier_record import BarrierEvent, BarrierHistory, WaitedTwice
from b200.chip.sync.mbarrier import MBarrier
from b200.effects import Arrives
from b200.hardware import OFFSET_MASK
from b200.program.module import Instr
from b200.registry import FULL


class Mbarriers(Asynchronous):
    """The part of the Observer that is told of mbarriers. events: number of events so far.
    exercised: text of each mbarrier.init whose mbarrier somebody waited for after a phase
    was complete.
    """

    events: int
    exercised: set[str]

    def barrier(self, mbarrier) -> Barrier | None:
        """The state of an mbarrier object; None if another object has been initialised at
        its address.
        """
        return self.state(mbarrier.cta).barrier(mbarrier)

    def barrier_at(self, warp, address: int) -> Barrier | None:
        """The state of the mbarrier at an address of shared memory; None if there is none."""
        cta, offset = warp.cta, address & OFFSET_MASK
        if offset not in cta.mbarriers:
            return None
        return self.state(cta).barriers.get((cta.rank, offset))

    def event(self, barrier: Barrier, agent: Agent | None, what: str) -> None:
        self.events += 1
        barrier.events.append((self.events, agent, what, words.line(self.ins), barrier.phases))

    def history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        """The latest events of an mbarrier in words; None if the checker does not know it."""
        barrier = self.barrier(mbarrier)
        if barrier is None:
            return None
        events = tuple(
            BarrierEvent(number, phase, words.name(agent) if agent is not None else "?", what, at)
            for number, agent, what, at, phase in barrier.events
        )
        announced, brought = tuple(barrier.expects.values()), tuple(barrier.copies.values())
        return BarrierHistory(barrier.name(), announced, brought, events)

    def waited_twice(self) -> list[WaitedTwice]:
        """The warps of resident clusters that waited twice for one parity of an mbarrier with
        several phases.
        """
        ctas = [cta for cluster in self.machine.resident for cta in cluster.ctas]
        agents = [agent for cta in ctas for agent in self.agents_of(cta)]
        return [
            WaitedTwice(barrier.name(), words.name(agent), parity, call(ins))
            for agent in agents
            if agent.again is not None
            for barrier, parity, ins in (agent.again,)
            if barrier.phases > 1 or not barrier.object.idle
        ]

    def initialised(self, warp, mbarrier, before: Barrier | None, lane: int) -> None:
        """A lane executes mbarrier.init. If lanes of one execution all initialise the mbarrier with
        one count, that is one initialisation: they store the same words.
        """
        agent, state = self.agent(warp), self.state(mbarrier.cta)
        if before is not None and before.again(agent, self.ins, lane, mbarrier.expected):
            before.object, before.lane = mbarrier, lane
            return
        record = Record(agent, self.ins, agent.component, 0, "generic", "initialises an mbarrier")
        record.step = record.epoch
        barrier = Barrier(mbarrier, state.components.new(), record, self.strict, lane)
        state.barriers[mbarrier.cta.rank, mbarrier.offset] = barrier
        self.shared(mbarrier.cta).shadow.barriers_in.add(mbarrier.offset, mbarrier.offset + 7)
        self.event(barrier, agent, f"init, count {mbarrier.expected}")
        if before is not None:
            self.found(
                "protocol",
                "an mbarrier is initialised again without mbarrier.inval",
                (
                    f"this access: {words.act(record)}",
                    f"initialised before: {words.act(before.record)}",
                    f"it is {before.name()}, {before.phases} of its phases completed",
                    "missing: mbarrier.inval, or the first initialisation serves all tiles",
                ),
                self.ins,
                before.record.ins,
                PORTABILITY if before.at_rest(agent) else ERROR,
            )

    def visible(self, agent: Agent, barrier: Barrier, asynchronous: bool = False) -> None:
        """Check that a user of a barrier knows of its initialisation, if need be through a fence to
        other proxies.
        """
        if barrier in agent.trusted and not asynchronous or (barrier, 1) in agent.trusted:
            return
        record = barrier.record
        published = agent.knows(INIT, record.component, record.epoch)
        own = record.agent is agent
        agent.trusted.add((barrier, 1) if published else barrier)
        if not (own or published or agent.knows(HB, record.component, record.epoch)):
            self.found(
                "protocol",
                "an mbarrier is used before its initialisation is visible to the warp",
                (
                    f"initialised at {words.line(record.ins)} by {words.name(record.agent)}",
                    f"used by {words.name(agent)} at {words.line(self.ins)}: {barrier.name()}",
                    "missing: fence.mbarrier_init and a barrier of the CTA or cluster between the "
                    "two",
                ),
                self.ins,
                record.ins,
            )
        elif asynchronous and not published and record.agent.cta.rank == barrier.object.cta.rank:
            self.found(
                "protocol",
                "an mbarrier is used by an asynchronous operation without a fence after its "
                "initialisation",
                (
                    f"initialised at {words.line(record.ins)} by {words.name(record.agent)}",
                    f"used by {words.name(agent)} at {words.line(self.ins)}: {barrier.name()}",
                    "missing: fence.mbarrier_init.release.cluster (or fence.proxy.async) after "
                    "mbarrier.init",
                ),
                self.ins,
                record.ins,
                PORTABILITY,
            )

    def comes(self, warp, mbarrier, lane: int) -> None:
        """A lane is about to arrive."""
        barrier = self.barrier(mbarrier)
        if barrier is not None:
            agent = self.agent(warp)
            clock = agent.release(1 << lane, self.ins)
            self.arrivals.comes(barrier, agent, self.ins, lane, clock)

    def refused(self, warp, mbarrier) -> None:
        """An arrival was a fault, because the phase expects no more arrivals."""
        barrier, ins = self.barrier(mbarrier), self.ins
        if barrier is not None and ins is not None and ins.key in barrier.uses:
            self.arrivals.too_many(barrier, self.agent(warp), ins)

    def arrived(
        self, warp, mbarrier, phase: int, what: str, nbytes: int = 0, lanes: int = FULL
    ) -> None:
        """Some lanes have arrived, or have announced bytes. phase: the parity before."""
        barrier = self.barrier(mbarrier)
        if barrier is None:
            return
        agent = self.agent(warp)
        self.visible(agent, barrier)
        if nbytes:
            barrier.announced += nbytes
            barrier.expects[id(self.ins)] = self.ins, nbytes
        self.event(barrier, agent, what)
        barrier.users[agent] = agent.epoch
        barrier.answered(agent, self.ins)
        if mbarrier.cta is not agent.cta:
            self._arrived_remotely(agent, mbarrier.cta)
        barrier.gather(self._published(agent, mbarrier.cta, self.ins, lanes))
        if mbarrier.phase != phase:
            barrier.complete()
            self.overtaken.completed(barrier, self.ins)

    def _published(self, agent: Agent, target, ins, lanes: int) -> np.ndarray:
        """The clock that an arrival publishes on an mbarrier of CTA `target`, whose warps wait for
        it. PTX ISA 9.7.13.15: an arrival without .sem releases; without .scope it releases to its
        CTA; expect_tx and complete_tx release nothing.
        """
        far = distance(agent.cta, target)
        arrives = isinstance(ins.effect, Arrives)
        if arrives and ins.effect.releases and scope_of(ins, CTA) >= far:
            return agent.release(lanes, ins)
        clock = agent.release_relaxed(far, lanes, ins)
        if not self.strict:
            np.maximum(clock[TENSOR], agent.release(lanes, ins)[HB], out=clock[TENSOR])
        if arrives:
            self.orders_only(agent, ins, target, clock, lanes)
        return clock

    def orders_only(
        self, agent: Agent, ins: Instr, target, clock: np.ndarray, lanes: int = FULL
    ) -> None:
        """Note an arrival that publishes an order of execution without an order of memory."""
        state = self.state(target)
        if state.ordered is not clock:
            state.ordered = clock
            # Copies, for a row of a clock would keep all of it.
            order, landed = clock[ORDER].copy(), agent.release(lanes, ins)[ASYNC].copy()
            state.edges.append(Edge(agent, ins, order, landed))

    def _arrived_remotely(self, agent: Agent, target):
        last = self.state(target).remote[target.rank].get(agent.component)
        if (
            last is None
            or last.ins is not self.ins
            or agent.snapshot is None
            or last.epoch != agent.epoch
        ):
            record = Record(
                agent,
                self.ins,
                agent.component,
                0,
                "generic",
                "arrives on an mbarrier of another CTA",
            )
            record.step = record.epoch
            self.reach(record, target)

    def looked(self, warp, mbarrier, parity: int) -> None:
        """A try_wait or test_wait has failed: the phase is not over."""
        barrier = self.barrier(mbarrier)
        if barrier is not None:
            self.agent(warp).looked[barrier] = parity, self.ins

    def waited(self, warp, mbarrier, parity: int, relaxed: Instr | None) -> None:
        """A wait has passed. relaxed: the wait's instruction if it acquires nothing, else None."""
        barrier = self.barrier(mbarrier)
        if barrier is None:
            return
        agent = self.agent(warp)
        self.visible(agent, barrier)
        self.event(barrier, agent, f"wait for parity {parity} over")
        before = agent.waits.get(barrier)
        if before is not None and before[::2] == (parity, self.ins):
            agent.again = barrier, parity, self.ins
        elif agent.again is not None and agent.again[0] is barrier:
            agent.again = None
        agent.looked.pop(barrier, None)
        agent.waits.pop(barrier, None)  # the latest one comes last
        agent.waits[barrier] = (parity, barrier.phases, self.ins)
        barrier.users[agent] = agent.epoch
        if barrier.phases:
            self.exercised.add(barrier.record.ins.text)
        if relaxed is not None:
            agent.acquire_relaxed(barrier.passed, relaxed)
        else:
            (agent.acquire_barrier if self.strict else agent.acquire)(barrier.passed)
        barrier.looks[agent] = agent.epoch, self.ins
