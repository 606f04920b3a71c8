"""Observes what synchronises, but for fences: mbarriers, barriers, groups of copies, registers.

Most functions are wrappers of instrument.py: `wrap(ins, effect, run)` returns an observed
function of the form of `run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200 import effects as e
from b200.checker import words
from b200.checker.accesses import Meeting
from b200.checker.barriers import phases
from b200.checker.memory import weak_order
from b200.checker.memory.lane_sync import part_of
from b200.checker.memory.parts import of_first_lane
from b200.checker.steps import all_operands, rule
from b200.checker.vector_clocks import CLUSTER, HB
from b200.chip.sync.barriers import barrier_of, gather
from b200.chip.sync.mbarrier_instructions import barrier_operand
from b200.errors import Fault
from b200.program.module import SINK, Instr
from b200.registry import LaneValues, Run, active, lanes

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer
    from b200.program.module import Instr


@rule(e.MeetsInWarp, look=all_operands)
def warp_sync(ins: Instr, effect: e.MeetsInWarp, run: Run) -> Run:
    """Observe bar.warp.sync: the lanes that it names now see each other's writes."""

    def observed(warp: CheckedFragment, mask: int, members: LaneValues, *args):
        agent, live = warp.observer.agent(warp), warp.state.live
        named = {members} if isinstance(members, int) else set()
        if isinstance(members, np.ndarray):
            named = set(lanes(members, members.dtype)[active(mask)].tolist())
        there = live | agent.touched  # with lanes that have left, and what they have done
        if all(there & ~group == 0 for group in named):
            agent.together()
        else:
            agent.together_in({group & live for group in named})
        return run(warp, mask, members, *args)

    return observed


@rule(e.Exchanges, e.Elects, e.MultipliesInWarp)
def meets(ins: Instr, effect: e.Effect, run: Run) -> Run:
    """Observe an instruction with `.sync` that orders no memory: the lanes have come to it.
    It is no step (steps.py): all it changes is how grave a finding is.
    """

    def observed(warp: CheckedFragment, mask: int, *args):
        agent = warp.observer.agents.get(warp.state)
        if agent is not None and agent.touched:
            agent.met = agent.epoch
        return run(warp, mask, *args)

    return observed


# --- mbarriers ----------------------------------------------------------------------------------


@rule(e.InitsMbarrier, look=all_operands)
def init(ins: Instr, effect: e.InitsMbarrier, run: Run) -> Run:
    find = barrier_operand(ins)

    def observed(warp: CheckedFragment, lane: int, address: int, count: int):
        mbarriers = warp.observer.mbarriers
        before = mbarriers.known_at(warp, address)
        run(warp, lane, address, count)
        mbarriers.initialised(warp, find(warp, address), before, lane)

    return observed


@rule(e.InvalidatesMbarrier, look=all_operands)
def inval(ins: Instr, effect: e.InvalidatesMbarrier, run: Run) -> Run:
    def observed(warp: CheckedFragment, lane: int, address):
        observer = warp.observer
        barrier = observer.mbarriers.known_at(warp, address)
        run(warp, lane, address)
        if barrier is not None:
            observer.mbarriers.invalidated(observer.agent(warp), barrier)
            of = barrier.object
            observer.state(of.cta).barriers.pop((of.cta.rank, of.offset), None)

    return observed


@rule(e.Arrives, look=all_operands)
def arrive(ins: Instr, effect: e.Arrives, run: Run) -> Run:
    what = "arrive and expect_tx" if effect.expects else "arrive"
    return _signals(ins, run, what, effect.expects, arrives=True)


@rule(e.ExpectsBytes, look=all_operands)
def expect(ins: Instr, effect: e.ExpectsBytes, run: Run) -> Run:
    return _signals(ins, run, "expect_tx", True, arrives=False)


def _signals(ins: Instr, run: Run, what: str, expects: bool, arrives: bool) -> Run:
    """Observe a signal of a thread to an mbarrier. what: names it."""
    find = barrier_operand(ins)
    returns = arrives and ins.operands[0] is not SINK

    def observed(warp: CheckedFragment, lane: int, address: int, count: int = 1):
        mbarriers, mbarrier = warp.observer.mbarriers, find(warp, address)
        phase = mbarrier.phase
        if arrives:
            mbarriers.comes(warp, mbarrier, lane)
        try:
            result = run(warp, lane, address, count)
        except Fault:
            mbarriers.refused(warp, mbarrier)
            raise
        text = f"{what} of {count} bytes" if expects else f"{what}, count {count}"
        mbarriers.arrived(warp, mbarrier, phase, text, count if expects else 0, 1 << lane)
        if returns:
            mbarriers.given(warp, mbarrier, result, phase)
        return result

    return observed


@rule(e.CompletesBytes, look=all_operands)
def complete_tx(ins: Instr, effect: e.CompletesBytes, run: Run) -> Run:
    find = barrier_operand(ins)

    def observed(warp: CheckedFragment, lane: int, address, nbytes: int):
        mbarriers, mbarrier = warp.observer.mbarriers, find(warp, address)
        phase = mbarrier.phase
        run(warp, lane, address, nbytes)
        mbarriers.arrived(warp, mbarrier, phase, f"complete_tx of {nbytes} bytes")
        if (barrier := mbarriers.known(mbarrier)) is not None:
            barrier.signalled += nbytes
            barrier.copies[id(ins)] = ins, nbytes

    return observed


@rule(e.WaitsForPhase, look=all_operands)
def wait(ins: Instr, effect: e.WaitsForPhase, run: Run) -> Run:
    find, shift = barrier_operand(ins), effect.shift
    relaxed = effect.order == "relaxed"

    def observed(warp: CheckedFragment, mask: int, address: LaneValues, phase: LaneValues, *hint):
        mbarriers = warp.observer.mbarriers
        for at, state in phases.states_of(mask, address, phase) if effect.by_token else ():
            mbarriers.looks(warp, find(warp, at), state)
        done = run(warp, mask, address, phase, *hint)
        if done:
            found = phases.states_of(mask & done, address, phase)
            agent = warp.observer.agent(warp)
            agent.lane_acquire = part_of(warp, mask & done, ins)
            for at, parity in {(at, state >> shift & 1) for at, state in found}:
                mbarriers.waited(warp, find(warp, at), parity, ins if relaxed else None)
            agent.lane_acquire = None
        elif not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
            mbarriers.looked(warp, find(warp, address), phase >> shift & 1)
        return done

    return observed


@rule(look=all_operands)
def unheeded_look(ins: Instr, effect: e.WaitsForPhase, run: Run) -> Run:
    """Observe a look whose answer decides nothing (dependents.py): it acquires nothing."""
    find, shift = barrier_operand(ins), effect.shift

    def observed(warp: CheckedFragment, mask: int, address: LaneValues, phase: LaneValues, *hint):
        done = run(warp, mask, address, phase, *hint)
        if not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
            mbarriers, parity = warp.observer.mbarriers, phase >> shift & 1
            mbarriers.looked(warp, find(warp, address), parity, failed=not done)
        return done

    return observed


# --- barriers of the CTA and of the cluster -----------------------------------------------------


@rule(e.MeetsInCta, look=all_operands)
def named(ins: Instr, effect: e.MeetsInCta, run: Run) -> Run:
    """Observe bar.sync, bar.red and bar.arrive. The first two may be executed again when woken."""
    waits, counted = effect.waits, effect.counted

    def observed(warp: CheckedFragment, mask: int, number: LaneValues, *rest):
        observer = warp.observer
        if waits:
            gather(warp, mask, ins)
        first = warp.token is None
        bar = barrier_of(warp, of_first_lane(mask, number))
        if first:
            generation = bar.generation
            agent = observer.agent(warp)
            key = ("cta", warp.cta.rank, bar.number, generation)
            meeting = agent.state.meeting(key)
            meeting.gather(agent.release())
            before = agent.state.meetings.get((*key[:-1], generation - 1))
            threads = of_first_lane(mask, rest[0]) if rest and counted else 0
            _used_again(observer, agent, ins, bar.number, threads, meeting, before)
        else:
            generation = warp.token[1]
        result = run(warp, mask, number, *rest)
        if waits:
            agent = observer.agent(warp)
            meeting = agent.state.meeting(("cta", warp.cta.rank, bar.number, generation))
            agent.acquire_barrier(meeting.clock)
        return result

    return observed


@rule(e.ArrivesInCluster, look=all_operands)
def cluster_arrive(ins: Instr, effect: e.ArrivesInCluster, run: Run) -> Run:
    def observed(warp: CheckedFragment, mask: int):
        agent = warp.observer.agent(warp)
        meeting = agent.state.meeting(("cluster", warp.cta.cluster.barrier.phase))
        if effect.relaxed:
            clock = agent.release_relaxed(CLUSTER)
            weak_order.orders_only(agent, ins, clock)
        else:
            clock = agent.release()
        meeting.gather(clock)
        run(warp, mask)

    return observed


@rule(e.WaitsInCluster, look=all_operands)
def cluster_wait(ins: Instr, effect: e.WaitsInCluster, run: Run) -> Run:
    def observed(warp: CheckedFragment, mask: int):
        run(warp, mask)
        agent = warp.observer.agent(warp)
        agent.acquire_barrier(agent.state.meeting(("cluster", warp.state.cluster_phase)).clock)

    return observed


@rule(e.SetsRegisters, look=all_operands)
def registers(ins: Instr, effect: e.SetsRegisters, run: Run) -> Run:
    """Observe setmaxnreg."""

    def observed(warp: CheckedFragment, mask: int, n: int):
        run(warp, mask, n)
        warp.observer.agent(warp).registers = n, ins

    return observed


@rule(e.ReadsRequest)
def read_request(ins: Instr, effect: e.ReadsRequest, run: Run) -> Run:
    """Observe clusterlaunchcontrol.query_cancel."""

    def observed(warp: CheckedFragment, lane: int, response: int):
        canceled = run(warp, lane, response)
        if not canceled:
            warp.observer.cancellations.failed(warp.observer.agent(warp), ins)
        return canceled

    return observed if effect.success else run


# --- grids and groups ---------------------------------------------------------------------------


@rule(e.OrdersGrids, look=all_operands)
def grid_dependency(ins: Instr, effect: e.OrdersGrids, run: Run) -> Run:
    """Observe griddepcontrol.wait and griddepcontrol.launch_dependents."""

    def observed(warp: CheckedFragment, mask: int):
        run(warp, mask)
        observer = warp.observer
        if observer.dependence is not None:
            agent = observer.agent(warp)
            if effect.waits:
                part = part_of(warp, mask, ins)
                some = part is not None and not part.every
                observer.dependence.waited(agent, mask if some else None)
            else:
                observer.dependence.let_start(agent)

    return observed


def _groups(effect: e.CommitsGroup | e.WaitsForGroups) -> tuple[str, ...]:
    """The streams of a group (streams.py); the first is complete when sources are read."""
    return ("bulk_read", "bulk_write") if effect.bulk else ("cp_async",)


@rule(e.CommitsGroup, look=all_operands)
def commit_group(ins: Instr, effect: e.CommitsGroup, run: Run) -> Run:
    def observed(warp: CheckedFragment, mask: int):
        run(warp, mask)
        for name in _groups(effect):
            for stream in warp.observer.agent(warp).streams_of(name, mask):
                stream.commit()

    return observed


@rule(e.WaitsForGroups, look=all_operands)
def wait_group(ins: Instr, effect: e.WaitsForGroups, run: Run) -> Run:
    """Observe a wait_group or wait_all. Bulk groups are each thread's own (PTX ISA 9.7.9.25.3)."""
    everything, names = effect.everything, _groups(effect)
    waited = names[:1] if effect.sources else names

    def observed(warp: CheckedFragment, mask: int, n: int = 0):
        run(warp, mask, n) if not everything else run(warp, mask)
        agent = warp.observer.agent(warp)
        for stream in [s for name in waited for s in agent.streams_of(name, mask)]:
            if everything:
                stream.commit()
            stream.waits.append((n, len(stream.marks), ins, agent.epoch))
            agent.waited_for(stream, stream.complete_but(n))

    return observed


def _used_again(
    observer: Observer,
    agent: Agent,
    ins: Instr,
    number: int,
    threads: int,
    now: Meeting,
    before: Meeting | None,
) -> None:
    """A warp arrives at barrier `number` for `threads` threads (0: all of the CTA). A barrier may
    be used again once it is complete (PTX ISA 9.7.13.1). A warp may arrive for the next use without
    knowing of every arrival of the previous one. Its arrival may then be counted into that: two
    groups of warps share one number, or the count is lower than the threads that use the barrier.
    """
    now.arrivals.append((agent, agent.epoch, ins, threads))
    late = (
        (other, where, count)
        for other, epoch, where, count in (before.arrivals if before is not None else ())
        if other is not agent and not agent.knows(HB, other.component, epoch)
    )
    if before is None or (first := next(late, None)) is None:
        return
    other, where, count = first
    users = {a for a, *_ in (*before.arrivals, *now.arrivals)}
    alone = len({i.text for _, _, i, _ in (*before.arrivals, *now.arrivals)}) == 1
    if where is ins or alone and threads:
        diagnosis = (
            f"barrier {number} of the CTA counts {threads} threads, but {32 * len(users)} or more "
            "use it at once"
        )
        missing = f"missing: a count of all threads that meet there, or a number for each {threads}"
    else:
        diagnosis = (
            f"barrier {number} of the CTA is used again with nothing to order it after the "
            "previous use"
        )
        missing = "missing: a number of its own for each group of warps, or a barrier between"
    this, there = words.line(ins), words.line(where)
    observer.found(
        "protocol",
        diagnosis,
        f"this access: {this}: for {threads or 'all'} threads, by {words.name(agent)}",
        f"used before: {there}: for {count or 'all'} threads, by {words.name(other)}",
        missing,
        at=ins,
        other=where,
    )
