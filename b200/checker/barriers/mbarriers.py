"""Mbarriers: the order that their operations make, and the protocol that they must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Barrier, Record
from b200.checker.agent import Agent
from b200.checker.barriers import phases
from b200.checker.barriers.arrivals import Arrivals
from b200.checker.barriers.phases import Overtaken
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.launches import lifetime
from b200.checker.memory import weak_order
from b200.checker.vector_clocks import CTA, HB, INIT, TENSOR, distance, scope_of
from b200.chip.describe import call
from b200.chip.fragment import Fragment
from b200.chip.sync.barrier_record import (
    BarrierEvent,
    BarrierHistory,
    OvertakenWait,
    SlippedWait,
    WaitedTwice,
)
from b200.chip.sync.mbarrier import MBarrier
from b200.effects import Arrives, ExpectsBytes
from b200.hardware import OFFSET_MASK
from b200.program.module import Instr
from b200.registry import FULL

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip import state


class Mbarriers:
    """What is known of the mbarriers of one launch. events: number of events so far. exercised:
    text of each mbarrier.init whose mbarrier somebody waited for after a phase was complete.
    """

    def __init__(self, observer: Observer, arrivals: Arrivals, overtaken: Overtaken):
        self.observer, self.arrivals, self.overtaken = observer, arrivals, overtaken
        self.events = 0
        self.exercised: set[str] = set()

    def known(self, mbarrier: MBarrier) -> Barrier | None:
        """The state of an mbarrier object; None if a later one is at its address."""
        return self.observer.state(mbarrier.cta).barrier(mbarrier)

    def known_at(self, warp: Fragment, address: int) -> Barrier | None:
        """The state of the mbarrier at an address of shared memory; None if there is none."""
        cta, offset = warp.cta, address & OFFSET_MASK
        if offset not in cta.mbarriers:
            return None
        return self.observer.state(cta).barriers.get((cta.rank, offset))

    def event(self, barrier: Barrier, agent: Agent, what: str) -> None:
        """Note something that happens to an mbarrier, for the report of a hang."""
        self.events += 1
        at = words.line(self.observer.ins)
        barrier.events.append((self.events, agent, what, at, barrier.phases))

    def history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        """The latest events of an mbarrier in words; None if the checker does not know it."""
        barrier = self.known(mbarrier)
        if barrier is None:
            return None
        events = tuple(
            BarrierEvent(number, phase, words.name(agent), what, at)
            for number, agent, what, at, phase in barrier.events
        )
        announced, brought = tuple(barrier.expects.values()), tuple(barrier.copies.values())
        return BarrierHistory(barrier.name(), announced, brought, events)

    def slipped_waits(self) -> list[SlippedWait]:
        """The warps of resident clusters whose waits do not go with the phases of an mbarrier: they
        have waited twice for one parity, or are overtaken by two phases.
        """
        observer = self.observer
        found: dict[tuple, SlippedWait] = {}
        for warp in observer.machine.warps():
            agent = observer.agents.get(warp)
            if agent is None:
                continue
            causes = [self._again(agent)]
            for f in warp.fragments:
                if isinstance(f.waits_for, MBarrier):
                    causes += self._slipped(agent, f, f.waits_for)
            for slipped in filter(None, causes):
                found.setdefault((slipped.mbarrier, slipped.who), slipped)
        return sorted(found.values(), key=lambda slipped: not isinstance(slipped, WaitedTwice))

    @staticmethod
    def _again(agent: Agent, suspect: bool = False) -> WaitedTwice | None:
        """Whether the latest two waits of a warp passed with one parity. An mbarrier of one phase
        may be asked again and again, unless what the warp has done since overtakes another one:
        it is `suspect` then.
        """
        if agent.again is None:
            return None
        barrier, parity, ins, before = agent.again
        if barrier.phases <= 1 and barrier.object.idle and not suspect:
            return None
        other = call(before) if before is not ins else ""
        return WaitedTwice(barrier.name(), words.name(agent), parity, call(ins), other)

    def _slipped(
        self, agent: Agent, warp: Fragment, mbarrier: MBarrier
    ) -> list[SlippedWait | None]:
        """Why a warp waits for ever, if it, or the warp that overtakes it, has lost count."""
        barrier = self.known(mbarrier)
        if barrier is None:
            return []
        ins = self.observer.machine.code.structure[warp.pc].ops[0].ins
        name, who, parity = barrier.name(), words.name(agent), mbarrier.phase
        last, phases, before = agent.waits.get(barrier, (1, 0, None))
        if before is not None and last == parity and phases:  # none is over: it passed at once
            other = call(before) if before is not ins else ""
            return [WaitedTwice(name, who, parity, call(ins), other)]
        if barrier.phases < phases + 2 or last == parity:
            return []
        completed = [event for event in barrier.events if not event[2].startswith(("init", "wait"))]
        latest = f"{completed[-1][2]} at {completed[-1][3]}" if completed else "others"
        waits = sum(n for (where, _), n in agent.passes.items() if where is barrier)
        overtaken = OvertakenWait(name, who, parity, call(ins), barrier.phases, waits, latest)
        by = {event[1] for event in completed if event[4] >= phases} - {agent}
        return [overtaken, *(self._again(other, suspect=True) for other in by)]

    def initialised(
        self, warp: Fragment, mbarrier: MBarrier, before: Barrier | None, lane: int
    ) -> None:
        """A lane executes mbarrier.init. If lanes of one execution all initialise the mbarrier with
        one count, that is one initialisation: they store the same words.
        """
        observer = self.observer
        agent, state, ins = observer.agent(warp), observer.state(mbarrier.cta), observer.ins
        if before is not None and before.again(agent, ins, lane, mbarrier.expected):
            before.object, before.lane = mbarrier, lane
            return
        record = Record.of_warp(agent, ins, "initialises an mbarrier")
        state.add(record)
        rules, word = observer.shared(mbarrier.cta), mbarrier.offset // 4
        if before is None:
            rules.takes(record, slice(word, word + 2), word, word + 1, np.array([lane], np.uint8))
        barrier = Barrier(mbarrier, state.components.new(), record, observer.strict, lane)
        state.barriers[mbarrier.cta.rank, mbarrier.offset] = barrier
        rules.shadow.barriers_in.add(mbarrier.offset, mbarrier.offset + 7)
        self.event(barrier, agent, f"init, count {mbarrier.expected}")
        if before is not None:
            observer.found(
                "protocol",
                "an mbarrier is initialised again without mbarrier.inval",
                f"this access: {words.act(record)}",
                f"initialised before: {words.act(before.record)}",
                f"it is {before.name()}, {before.phases} of its phases completed",
                "missing: mbarrier.inval, or the first initialisation serves all tiles",
                at=ins,
                other=before.record.ins,
                severity=PORTABILITY if before.at_rest(agent) else ERROR,
            )

    def invalidated(self, agent: Agent, barrier: Barrier) -> None:
        if barrier.at_rest(agent):
            return
        users = [u for u, at in barrier.users.items() if not agent.knows(HB, u.component, at)]
        user = next(u for u in users if u is not agent)
        self.observer.found(
            "protocol",
            "an mbarrier is invalidated while another warp may use it",
            f"by {words.name(agent)}: {barrier.name()}",
            f"used by {words.name(user)}, and nothing orders that before",
            "missing: a barrier of all its users between their latest wait and mbarrier.inval",
            at=self.observer.ins,
            other=barrier.record.ins,
        )

    def visible(self, agent: Agent, barrier: Barrier, asynchronous: bool = False) -> None:
        """Check that a user of a barrier sees its initialisation, also through another proxy."""
        if barrier in agent.trusted and not asynchronous or (barrier, 1) in agent.trusted:
            return
        record, ins = barrier.record, self.observer.ins
        published = agent.knows(INIT, record.component, record.epoch)
        agent.trusted.add((barrier, 1) if published else barrier)
        seen = published or record.agent is agent
        late = not seen and not agent.knows(HB, record.component, record.epoch)
        here = record.agent.cta.rank == barrier.object.cta.rank
        if not late and not (asynchronous and not published and here):
            return
        diagnosis = "an mbarrier is used before its initialisation is visible to the warp"
        missing = "fence.mbarrier_init and a barrier of the CTA or cluster between the two"
        if not late:
            diagnosis = (
                "an mbarrier is used by an asynchronous operation without a fence after its "
                "initialisation"
            )
            missing = (
                "fence.mbarrier_init.release.cluster (or fence.proxy.async) after mbarrier.init"
            )
        self.observer.found(
            "protocol",
            diagnosis,
            f"initialised at {words.line(record.ins)} by {words.name(record.agent)}",
            f"used by {words.name(agent)} at {words.line(ins)}: {barrier.name()}",
            f"missing: {missing}",
            at=ins,
            other=record.ins,
            severity=ERROR if late else PORTABILITY,
        )

    def comes(self, warp: Fragment, mbarrier: MBarrier, lane: int) -> None:
        """A lane is about to arrive."""
        barrier = self.known(mbarrier)
        if barrier is not None:
            agent, ins = self.observer.agent(warp), self.observer.executed
            clock = agent.release(1 << lane, ins)
            self.arrivals.comes(barrier, agent, ins, lane, clock)

    def refused(self, warp: Fragment, mbarrier: MBarrier) -> None:
        """An arrival was a fault, because the phase expects no more arrivals."""
        barrier, ins = self.known(mbarrier), self.observer.ins
        if barrier is not None and ins is not None and ins.key in barrier.uses:
            self.arrivals.too_many(barrier, self.observer.agent(warp), ins)

    def arrived(
        self,
        warp: Fragment,
        mbarrier: MBarrier,
        phase: int,
        what: str,
        nbytes: int = 0,
        lanes: int = FULL,
    ) -> None:
        """Some lanes have arrived, or have announced bytes. phase: the parity before."""
        barrier = self.known(mbarrier)
        if barrier is None:
            return
        agent, ins = self.observer.agent(warp), self.observer.executed
        self.visible(agent, barrier)
        if nbytes:
            barrier.announced += nbytes
            barrier.expects[id(ins)] = ins, nbytes
        self.event(barrier, agent, what)
        barrier.users[agent] = agent.epoch
        barrier.answered(agent, ins)
        if mbarrier.cta is not agent.cta:
            self._arrived_remotely(agent, mbarrier.cta, ins)
        clock = self._published(agent, mbarrier.cta, ins, lanes)
        if isinstance(ins.effect, ExpectsBytes):
            phases.announces(barrier, agent, ins)
        self.gathered(barrier, agent, clock, phase, ins, isinstance(ins.effect, Arrives))

    def gathered(
        self,
        barrier: Barrier,
        agent: Agent,
        clock: np.ndarray,
        phase: int,
        ins: Instr,
        arrives: bool,
    ) -> None:
        """A signal has brought its clock. phase: the parity before. arrives: not bytes."""
        barrier.gather(clock)
        if arrives and barrier.unheld:
            phases.arrives(barrier, agent, clock)
        if barrier.object.phase != phase:
            barrier.complete()
            self.overtaken.completed(barrier, ins)
            phases.completed(self.observer, barrier, ins)

    def _published(self, agent: Agent, target: state.CTA, ins: Instr, lanes: int) -> np.ndarray:
        """The clock that an arrival publishes on an mbarrier of CTA `target`, whose warps wait for
        it. PTX ISA 9.7.13.15: an arrival without .sem releases; without .scope it releases to its
        CTA; expect_tx and complete_tx release nothing.
        """
        far = distance(agent.cta, target)
        effect = ins.effect
        arrives = isinstance(effect, Arrives)
        if arrives and effect.releases and scope_of(ins, CTA) >= far:
            return agent.release(lanes, ins)
        clock = agent.release_relaxed(far, lanes, ins)
        if not self.observer.strict:
            np.maximum(clock[TENSOR], agent.release(lanes, ins)[HB], out=clock[TENSOR])
        if arrives:
            weak_order.orders_only(agent, ins, clock, lanes)
        return clock

    @staticmethod
    def _asks_again(agent: Agent, barrier: Barrier, parity: int, before: tuple, ins: Instr) -> bool:
        """Whether a wait has passed for the phase that another wait of the warp has passed for. A
        look in front of each wait does so every time.
        """
        if before[:2] != (parity, barrier.phases):
            return False
        agent.doubled[barrier, ins] = agent.doubled.get((barrier, ins), 0) + 1
        doubled, passed = (
            sum(n for (where, other), n in counts.items() if where is barrier and alike(ins, other))
            for counts in (agent.doubled, agent.passes)
        )
        return doubled < passed

    def _arrived_remotely(self, agent: Agent, target: state.CTA, ins: Instr) -> None:
        last = agent.state.remote[target.rank].get(agent.component)
        same = last is not None and last.ins is ins and last.epoch == agent.epoch
        if not same or agent.snapshot is None:
            record = Record.of_warp(agent, ins, "arrives on an mbarrier of another CTA")
            lifetime.reached(self.observer, record, target)

    def given(self, warp: Fragment, mbarrier: MBarrier, state: int, phase: int) -> None:
        """An arrival has returned a state. phase: the parity before."""
        barrier = self.known(mbarrier)
        if barrier is not None:
            over = barrier.phases - (mbarrier.phase != phase)
            ins = self.observer.executed
            phases.given(barrier, self.observer.agent(warp), state, over, ins)

    def looks(self, warp: Fragment, mbarrier: MBarrier, state: int) -> None:
        """A warp is about to look by the state of an arrive."""
        barrier = self.known(mbarrier)
        if barrier is not None:
            phases.looks(self.observer, barrier, self.observer.agent(warp), state)

    def looked(self, warp: Fragment, mbarrier: MBarrier, parity: int, failed: bool = True) -> None:
        """A try_wait or test_wait has failed; or it has passed, but nothing depends on that."""
        barrier = self.known(mbarrier)
        if barrier is not None:
            self.observer.agent(warp).looked[barrier] = parity, self.observer.executed, failed

    def waited(
        self, warp: Fragment, mbarrier: MBarrier, parity: int, relaxed: Instr | None
    ) -> None:
        """A wait has passed. relaxed: the wait's instruction if it acquires nothing, else None."""
        barrier = self.known(mbarrier)
        if barrier is None:
            return
        observer = self.observer
        agent, ins = observer.agent(warp), observer.executed
        self.visible(agent, barrier)
        self.event(barrier, agent, f"wait for parity {parity} over")
        self.overtaken.passes(barrier, agent, parity, ins)
        before = agent.waits.get(barrier)
        agent.passes[barrier, ins] = agent.passes.get((barrier, ins), 0) + 1
        if before is not None and before[::2] == (parity, ins):
            agent.again = barrier, parity, ins, ins
        elif before is not None and self._asks_again(agent, barrier, parity, before, ins):
            agent.again = barrier, parity, ins, before[2]
        elif agent.again is not None and agent.again[0] is barrier:
            agent.again = None
        agent.looked.pop(barrier, None)
        agent.waits.pop(barrier, None)  # the latest one comes last
        agent.waits[barrier] = (parity, barrier.phases, ins)
        if barrier.phases:
            self.exercised.add(barrier.record.ins.text)
        if relaxed is not None:
            agent.acquire_relaxed(barrier.passed, relaxed)
        else:
            (agent.acquire_barrier if observer.strict else agent.acquire)(barrier.passed)
        barrier.users[agent] = agent.epoch  # no release before the wait says that it is over
        barrier.looks[agent] = agent.epoch, ins


def alike(one: Instr, other: Instr) -> bool:
    """Whether two instructions are of one source line: loops are unrolled."""
    return one is other or one.loc is not None and one.loc == other.loc
