"""Observes what synchronises, but for fences: mbarriers, barriers, groups of copies, registers.

Most functions stand around the run functions of instructions (steps.py: rule, observes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from b200 import effects as e
from b200.checker import words
from b200.checker.accesses import BarrierGeneration
from b200.checker.barriers import phases
from b200.checker.memory import weak_order
from b200.checker.memory.lane_sync import part_of
from b200.checker.memory.parts import of_first_lane
from b200.checker.steps import Call, all_operands, observes, rule
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


@observes(e.MeetsInWarp, look=all_operands)
def warp_sync(
    call: Call[e.MeetsInWarp], warp: CheckedFragment, mask: int, members: LaneValues, *args: Any
) -> Any:
    """Observe bar.warp.sync: the lanes that it names now see each other's writes."""
    agent, live = warp.observer.agent(warp), warp.state.live
    named = {members} if isinstance(members, int) else set()
    if isinstance(members, np.ndarray):
        named = set(lanes(members, members.dtype)[active(mask)].tolist())
    there = live | agent.touched  # with lanes that have left, and what they have done
    if all(there & ~group == 0 for group in named):
        agent.together()
    else:
        agent.together_in({group & live for group in named})
    return call.run(warp, mask, members, *args)


@rule(e.Exchanges, e.Elects, e.MultipliesInWarp)
def meets(ins: Instr, effect: e.Effect, run: Run) -> Run:
    """Observe an instruction with `.sync` that orders no memory: the lanes have come to it.
    It is no step (steps.py): all it changes is how grave a finding is.
    """

    def observed(warp: CheckedFragment, mask: int, *args: Any):
        agent = warp.observer.agents.get(warp.state)
        if agent is not None and agent.touched:
            agent.met = agent.epoch
        return run(warp, mask, *args)

    return observed


# --- mbarriers ----------------------------------------------------------------------------------


@observes(e.InitsMbarrier, look=all_operands)
def init(
    call: Call[e.InitsMbarrier], warp: CheckedFragment, lane: int, address: int, count: int
) -> None:
    mbarriers = warp.observer.mbarriers
    before = mbarriers.known_at(warp, address)
    call.run(warp, lane, address, count)
    mbarriers.initialised(warp, call.find(warp, address), before, lane)


@observes(e.InvalidatesMbarrier, look=all_operands)
def inval(
    call: Call[e.InvalidatesMbarrier], warp: CheckedFragment, lane: int, address: int
) -> None:
    observer = warp.observer
    barrier = observer.mbarriers.known_at(warp, address)
    call.run(warp, lane, address)
    if barrier is not None:
        observer.mbarriers.invalidated(observer.agent(warp), barrier)
        of = barrier.object
        observer.state(of.cta).barriers.pop((of.cta.rank, of.offset), None)


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


@observes(e.CompletesBytes, look=all_operands)
def complete_tx(
    call: Call[e.CompletesBytes], warp: CheckedFragment, lane: int, address: int, nbytes: int
) -> None:
    mbarriers, mbarrier = warp.observer.mbarriers, call.find(warp, address)
    phase = mbarrier.phase
    call.run(warp, lane, address, nbytes)
    mbarriers.arrived(warp, mbarrier, phase, f"complete_tx of {nbytes} bytes")
    if (barrier := mbarriers.known(mbarrier)) is not None:
        barrier.signalled += nbytes
        barrier.copies[id(call.ins)] = call.ins, nbytes


@observes(e.WaitsForPhase, look=all_operands)
def wait(
    call: Call[e.WaitsForPhase],
    warp: CheckedFragment,
    mask: int,
    address: Any,
    phase: Any,
    *hint: Any,
) -> Any:
    mbarriers, effect = warp.observer.mbarriers, call.effect
    relaxed = call.ins if effect.order == "relaxed" else None
    for at, state in phases.states_of(mask, address, phase) if effect.by_token else ():
        mbarriers.looks(warp, call.find(warp, at), state)
    done = call.run(warp, mask, address, phase, *hint)
    if done:
        found = phases.states_of(mask & done, address, phase)
        agent = warp.observer.agent(warp)
        agent.lane_acquire = part_of(warp, mask & done, call.ins)
        for at, parity in {(at, state >> effect.shift & 1) for at, state in found}:
            mbarriers.waited(warp, call.find(warp, at), parity, relaxed)
        agent.lane_acquire = None
    elif not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
        mbarriers.looked(warp, call.find(warp, address), phase >> effect.shift & 1)
    return done


@observes(look=all_operands)
def unheeded_look(
    call: Call[e.WaitsForPhase],
    warp: CheckedFragment,
    mask: int,
    address: Any,
    phase: Any,
    *hint: Any,
) -> Any:
    """Observe a look whose answer decides nothing (dependents.py): it acquires nothing."""
    done = call.run(warp, mask, address, phase, *hint)
    if not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
        mbarriers, parity = warp.observer.mbarriers, phase >> call.effect.shift & 1
        mbarriers.looked(warp, call.find(warp, address), parity, failed=not done)
    return done


# --- barriers of the CTA and of the cluster -----------------------------------------------------


@observes(e.MeetsInCta, look=all_operands)
def named(
    call: Call[e.MeetsInCta], warp: CheckedFragment, mask: int, number: LaneValues, *rest: Any
) -> Any:
    """Observe bar.sync, bar.red and bar.arrive. The first two may be executed again when woken."""
    observer = warp.observer
    if call.effect.waits:
        gather(warp, mask, call.ins)
    first = warp.token is None
    bar = barrier_of(warp, of_first_lane(mask, number))
    if first:
        generation = bar.generation
        agent = observer.agent(warp)
        key = ("cta", warp.cta.rank, bar.number, generation)
        meeting = agent.state.meeting(key)
        meeting.gather(agent.release())
        before = agent.state.meetings.get((*key[:-1], generation - 1))
        threads = of_first_lane(mask, rest[0]) if rest and call.effect.counted else 0
        _used_again(observer, agent, call.ins, bar.number, threads, meeting, before)
    else:
        generation = warp.token[1]
    result = call.run(warp, mask, number, *rest)
    if call.effect.waits:
        agent = observer.agent(warp)
        meeting = agent.state.meeting(("cta", warp.cta.rank, bar.number, generation))
        agent.acquire_barrier(meeting.clock)
    return result


@observes(e.ArrivesInCluster, look=all_operands)
def cluster_arrive(call: Call[e.ArrivesInCluster], warp: CheckedFragment, mask: int) -> None:
    agent = warp.observer.agent(warp)
    meeting = agent.state.meeting(("cluster", warp.cta.cluster.barrier.phase))
    if call.effect.relaxed:
        clock = agent.release_relaxed(CLUSTER)
        weak_order.orders_only(agent, call.ins, clock)
    else:
        clock = agent.release()
    meeting.gather(clock)
    call.run(warp, mask)


@observes(e.WaitsInCluster, look=all_operands)
def cluster_wait(call: Call[e.WaitsInCluster], warp: CheckedFragment, mask: int) -> None:
    call.run(warp, mask)
    agent = warp.observer.agent(warp)
    agent.acquire_barrier(agent.state.meeting(("cluster", warp.state.cluster_phase)).clock)


@observes(e.SetsRegisters, look=all_operands)
def registers(call: Call[e.SetsRegisters], warp: CheckedFragment, mask: int, n: int) -> None:
    """Observe setmaxnreg."""
    call.run(warp, mask, n)
    warp.observer.agent(warp).registers = n, call.ins


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


@observes(e.OrdersGrids, look=all_operands)
def grid_dependency(call: Call[e.OrdersGrids], warp: CheckedFragment, mask: int) -> None:
    """Observe griddepcontrol.wait and griddepcontrol.launch_dependents."""
    call.run(warp, mask)
    observer = warp.observer
    if observer.dependence is not None:
        agent = observer.agent(warp)
        if call.effect.waits:
            part = part_of(warp, mask, call.ins)
            some = part is not None and not part.every
            observer.dependence.waited(agent, mask if some else None)
        else:
            observer.dependence.let_start(agent)


def _groups(effect: e.CommitsGroup | e.WaitsForGroups) -> tuple[str, ...]:
    """The streams of a group (streams.py); the first is complete when sources are read."""
    return ("bulk_read", "bulk_write") if effect.bulk else ("cp_async",)


@observes(e.CommitsGroup, look=all_operands)
def commit_group(call: Call[e.CommitsGroup], warp: CheckedFragment, mask: int) -> None:
    call.run(warp, mask)
    for name in _groups(call.effect):
        for stream in warp.observer.agent(warp).streams_of(name, mask):
            stream.commit()


@observes(e.WaitsForGroups, look=all_operands)
def wait_group(call: Call[e.WaitsForGroups], warp: CheckedFragment, mask: int, n: int = 0) -> None:
    """Observe a wait_group or wait_all. Bulk groups are each thread's own (PTX ISA 9.7.9.25.3)."""
    call.run(warp, mask, n) if not call.effect.everything else call.run(warp, mask)
    agent = warp.observer.agent(warp)
    names = _groups(call.effect)[: 1 if call.effect.sources else None]
    for stream in [s for name in names for s in agent.streams_of(name, mask)]:
        if call.effect.everything:
            stream.commit()
        stream.waits.append((n, len(stream.marks), call.ins, agent.epoch))
        agent.waited_for(stream, stream.complete_but(n), mask)


def _used_again(
    observer: Observer,
    agent: Agent,
    ins: Instr,
    number: int,
    threads: int,
    now: BarrierGeneration,
    before: BarrierGeneration | None,
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
