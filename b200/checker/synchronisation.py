"""Observes what synchronises: mbarriers, barriers, fences, groups of copies, registers.

Each function is a wrapper of instrument.py: `wrap(ins, effect, run)` returns an observed
function of the form of `run`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from b200.checker import named_barriers
from b200.checker.observer import Observer
from b200.checker.scopes import CLUSTER, CTA, scope_of
from b200.checker.steps import all_operands, followed
from b200.checker.vector_clocks import Agent
from b200.chip.sync.barriers import barrier_of, gather
from b200.chip.sync.mbarrier import barrier_operand
from b200.effects import (
    Arrives,
    ArrivesInCluster,
    CommitsGroup,
    CompletesBytes,
    Effect,
    ExpectsBytes,
    FencesInits,
    FencesMemory,
    FencesProxy,
    FencesTensor,
    InitsMbarrier,
    InvalidatesMbarrier,
    MeetsInCta,
    MeetsInWarp,
    OrdersGrids,
    ReadsRequest,
    SetsRegisters,
    WaitsForGroups,
    WaitsForPhase,
    WaitsInCluster,
)
from b200.errors import Fault
from b200.program.module import Instr
from b200.registry import Run, active, lanes


@followed(all_operands)
def warp_sync(ins: Instr, effect: MeetsInWarp, run) -> Run:
    """Observe bar.warp.sync: the lanes of the warp now see each other's writes."""

    def observed(w, mask, *args):
        w.observer.agent(w).together()
        return run(w, mask, *args)

    return observed


def meets(ins: Instr, effect: Effect, run) -> Run:
    """Observe an instruction with `.sync` that orders no memory: the lanes have come to it.
    It is no step (steps.py): all it changes is how grave a finding is.
    """

    def observed(w, mask, *args):
        agent = w.observer.agents.get(w.state)
        if agent is not None and agent.touched:
            agent.met = agent.epoch
        return run(w, mask, *args)

    return observed


# --- mbarriers ----------------------------------------------------------------------------------


@followed(all_operands)
def init(ins: Instr, effect: InitsMbarrier, run) -> Run:
    find = barrier_operand(ins)

    def observed(w, lane, address, count):
        observer = w.observer
        observer.ins = ins
        before = observer.barrier_at(w, address)
        run(w, lane, address, count)
        observer.initialised(w, find(w, address), before, lane)

    return observed


@followed(all_operands)
def inval(ins: Instr, effect: InvalidatesMbarrier, run) -> Run:
    def observed(w, lane, address):
        observer = w.observer
        observer.ins = ins
        barrier = observer.barrier_at(w, address)
        run(w, lane, address)
        if barrier is not None:
            observer.state(barrier.object.cta).barriers.pop(
                (barrier.object.cta.rank, barrier.object.offset), None
            )

    return observed


@followed(all_operands)
def arrive(ins: Instr, effect: Arrives, run) -> Run:
    what = "arrive and expect_tx" if effect.expects else "arrive"
    return _signals(ins, run, what, effect.expects, arrives=True)


@followed(all_operands)
def expect(ins: Instr, effect: ExpectsBytes, run) -> Run:
    return _signals(ins, run, "expect_tx", True, arrives=False)


def _signals(ins: Instr, run, what: str, expects: bool, arrives: bool) -> Run:
    """Observe a signal of a thread to an mbarrier. what: names it."""
    find = barrier_operand(ins)

    def observed(w, lane, address, count=1):
        observer = w.observer
        observer.ins = ins
        mbarrier = find(w, address)
        phase = mbarrier.phase
        if arrives:
            observer.comes(w, mbarrier, lane)
        try:
            result = run(w, lane, address, count)
        except Fault:
            observer.refused(w, mbarrier)
            raise
        text = f"{what} of {count} bytes" if expects else f"{what}, count {count}"
        observer.arrived(w, mbarrier, phase, text, count if expects else 0, 1 << lane)
        return result

    return observed


@followed(all_operands)
def complete_tx(ins: Instr, effect: CompletesBytes, run) -> Run:
    find = barrier_operand(ins)

    def observed(w, lane, address, nbytes):
        observer = w.observer
        observer.ins = ins
        mbarrier = find(w, address)
        phase = mbarrier.phase
        run(w, lane, address, nbytes)
        observer.arrived(w, mbarrier, phase, f"complete_tx of {nbytes} bytes")
        if (barrier := observer.barrier(mbarrier)) is not None:
            barrier.signalled += nbytes
            barrier.copies[id(ins)] = ins, nbytes

    return observed


@followed(all_operands)
def wait(ins: Instr, effect: WaitsForPhase, run) -> Run:
    find, shift = barrier_operand(ins), effect.shift
    relaxed = effect.order == "relaxed"

    def observed(w, mask, address, phase, hint=None):
        observer = w.observer
        observer.ins = ins
        done = run(w, mask, address, phase, hint)
        if done:
            if isinstance(address, np.ndarray) or isinstance(phase, np.ndarray):
                where, parity = lanes(address, np.uint64), lanes(phase, np.uint64)
                pairs = {(int(where[i]), int(parity[i]) >> shift & 1) for i in active(mask & done)}
            else:
                pairs = ((address, phase >> shift & 1),)
            for at, parity in pairs:
                observer.waited(w, find(w, at), parity, ins if relaxed else None)
        elif not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
            observer.looked(w, find(w, address), phase >> shift & 1)
        return done

    return observed


# --- barriers of the CTA and of the cluster -----------------------------------------------------


@followed(all_operands)
def named(ins: Instr, effect: MeetsInCta, run) -> Run:
    """Observe bar.sync, bar.red and bar.arrive. The first two may be executed again when woken."""
    waits, counted = effect.waits, effect.counted

    def observed(w, mask, number, *rest):
        observer = w.observer
        observer.ins = ins
        if waits:
            gather(w, mask, ins)
        first = w.token is None
        bar = barrier_of(
            w,
            number
            if isinstance(number, int)
            else int(lanes(number, number.dtype)[active(mask)[0]]),
        )
        if first:
            generation = bar.generation
            agent = observer.agent(w)
            key = ("cta", w.cta.rank, bar.number, generation)
            meeting = observer.meeting(w.cta, key)
            meeting.gather(agent.release())
            before = observer.state(w.cta).meetings.get((*key[:-1], generation - 1))
            threads = rest[0] if rest and counted else 0
            if not isinstance(threads, int):
                threads = int(lanes(threads, threads.dtype)[active(mask)[0]])
            named_barriers.arrived(observer, agent, ins, bar.number, threads, meeting, before)
        else:
            generation = w.token[1]
        result = run(w, mask, number, *rest)
        if waits:
            observer.agent(w).acquire_barrier(
                observer.meeting(w.cta, ("cta", w.cta.rank, bar.number, generation)).clock
            )
        return result

    return observed


@followed(all_operands)
def cluster_arrive(ins: Instr, effect: ArrivesInCluster, run) -> Run:
    def observed(w, mask):
        observer = w.observer
        observer.ins = ins
        agent = observer.agent(w)
        meeting = observer.meeting(w.cta, ("cluster", w.cta.cluster.barrier.phase))
        if effect.relaxed:
            clock = agent.release_relaxed(CLUSTER)
            observer.orders_only(agent, ins, w.cta, clock)
        else:
            clock = agent.release()
        meeting.gather(clock)
        run(w, mask)

    return observed


@followed(all_operands)
def cluster_wait(ins: Instr, effect: WaitsInCluster, run) -> Run:
    def observed(w, mask):
        observer = w.observer
        observer.ins = ins
        run(w, mask)
        clock = observer.meeting(w.cta, ("cluster", w.state.cluster_phase)).clock
        observer.agent(w).acquire_barrier(clock)

    return observed


@followed(all_operands)
def registers(ins: Instr, effect: SetsRegisters, run) -> Run:
    """Observe setmaxnreg."""

    def observed(w, mask, n):
        run(w, mask, n)
        w.observer.agent(w).registers = n, ins

    return observed


def read_request(ins: Instr, effect: ReadsRequest, run) -> Run:
    """Observe clusterlaunchcontrol.query_cancel."""

    def observed(w, lane, response):
        canceled = run(w, lane, response)
        if not canceled:
            observer = w.observer
            observer.ins = ins
            observer.cancellations.failed(observer.agent(w), ins)
        return canceled

    return observed if effect.success else run


# --- fences and groups --------------------------------------------------------------------------


@followed(all_operands)
def grid_dependency(ins: Instr, effect: OrdersGrids, run) -> Run:
    """Observe griddepcontrol.wait and griddepcontrol.launch_dependents."""

    def observed(w, mask):
        run(w, mask)
        observer = w.observer
        observer.ins = ins
        if observer.dependence is not None:
            agent = observer.agent(w)
            dependence = observer.dependence
            (dependence.waited if effect.waits else dependence.let_start)(agent)

    return observed


Act = Callable[[Observer, Agent], None]


def _fenced(run, *acts: Act) -> Run:
    """Observe a fence, which does some things for its warp."""

    def observed(w, mask, *operands):
        run(w, mask, *operands)
        observer = w.observer
        for act in acts:
            act(observer, observer.agent(w))

    return observed


@followed(all_operands)
def fence(ins: Instr, effect: FencesMemory, run) -> Run:
    """Observe fence and membar."""
    scope = scope_of(ins, CTA)
    return _fenced(run, partial(Observer.fence_memory, order=effect.order, scope=scope))


@followed(all_operands)
def proxy_fence(ins: Instr, effect: FencesProxy, run) -> Run:
    acts: list[Act] = []
    if effect.shared:
        acts.append(Observer.fence_async)
    if effect.far:
        acts.append(Observer.fence_async_global)
    if effect.order:
        acts.append(partial(Observer.fence_memory, order=effect.order, scope=CLUSTER))
    return _fenced(run, *acts) if acts else run


@followed(all_operands)
def init_fence(ins: Instr, effect: FencesInits, run) -> Run:
    return _fenced(run, Observer.fence_init)


@followed(all_operands)
def tensor_fence(ins: Instr, effect: FencesTensor, run) -> Run:
    act = Agent.fence_before if effect.before else Agent.fence_after
    return _fenced(run, lambda observer, agent: act(agent))


def _groups(effect: CommitsGroup | WaitsForGroups) -> tuple[str, ...]:
    """The streams of a group (vector_clocks.py); the first is complete when sources are read."""
    return ("bulk_read", "bulk_write") if effect.bulk else ("cp_async",)


@followed(all_operands)
def commit_group(ins: Instr, effect: CommitsGroup, run) -> Run:
    def observed(w, mask):
        run(w, mask)
        for name in _groups(effect):
            w.observer.agent(w).stream(name).commit()

    return observed


@followed(all_operands)
def wait_group(ins: Instr, effect: WaitsForGroups, run) -> Run:
    """Observe a wait_group or wait_all."""
    everything, names = effect.everything, _groups(effect)
    waited = names[:1] if effect.sources else names

    def observed(w, mask, n=0):
        run(w, mask, n) if not everything else run(w, mask)
        agent = w.observer.agent(w)
        for name in waited:
            stream = agent.stream(name)
            if everything:
                stream.commit()
            stream.waits.append((n, len(stream.marks), ins, agent.epoch))
            agent.learn(stream.component, stream.complete_but(n))

    return observed
