"""Observes what synchronises: mbarriers, barriers, fences, groups of copies, registers.

Each function is a wrapper of instrument.py: `wrap(ins, run)` returns an observed function of the
same form.
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
from b200.errors import Fault
from b200.program.module import Instr
from b200.registry import Run, active, lanes


@followed(all_operands)
def warp_sync(ins: Instr, run) -> Run:
    """Observe bar.warp.sync: the lanes of the warp now see each other's writes."""

    def observed(w, mask, *args):
        w.machine.observer.agent(w).together()
        return run(w, mask, *args)

    return observed


def meets(ins: Instr, run) -> Run:
    """Observe an instruction with `.sync` that orders no memory: the lanes have come to it.
    It is no step (steps.py): all it changes is how grave a finding is.
    """

    def observed(w, mask, *args):
        agent = w.state.agent
        if agent is not None and agent.touched:
            agent.met = agent.epoch
        return run(w, mask, *args)

    return observed


# --- mbarriers ----------------------------------------------------------------------------------


@followed(all_operands)
def init(ins: Instr, run) -> Run:
    find = barrier_operand(ins)

    def observed(w, lane, address, count):
        observer = w.machine.observer
        observer.ins = ins
        before = observer.barrier_at(w, address)
        run(w, lane, address, count)
        observer.initialised(w, find(w, address), before, lane)

    return observed


@followed(all_operands)
def inval(ins: Instr, run) -> Run:
    def observed(w, lane, address):
        observer = w.machine.observer
        observer.ins = ins
        barrier = observer.barrier_at(w, address)
        run(w, lane, address)
        if barrier is not None:
            observer.state(barrier.object.cta).barriers.pop(
                (barrier.object.cta.rank, barrier.object.offset), None
            )

    return observed


@followed(all_operands)
def arrive(ins: Instr, run) -> Run:
    find = barrier_operand(ins)
    expects = ins.has("expect_tx")
    arrives = ins.mods[1] != "expect_tx"
    what = (
        "expect_tx"
        if ins.mods[1] == "expect_tx"
        else "arrive and expect_tx"
        if expects
        else "arrive"
    )

    def observed(w, lane, address, count=1):
        observer = w.machine.observer
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
def complete_tx(ins: Instr, run) -> Run:
    find = barrier_operand(ins)

    def observed(w, lane, address, nbytes):
        observer = w.machine.observer
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
def wait(ins: Instr, run) -> Run:
    find = barrier_operand(ins)
    shift = 0 if ins.has("parity") else 63
    relaxed = ins.has("relaxed")

    def observed(w, mask, address, phase, hint=None):
        observer = w.machine.observer
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
def named(ins: Instr, run) -> Run:
    """Observe bar.sync, bar.red and bar.arrive. The first two may be executed again when woken."""
    waits = not ins.has("arrive")
    counted = not ins.has("red") or len(ins.operands) == 4

    def observed(w, mask, number, *rest):
        observer = w.machine.observer
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
def cluster_arrive(ins: Instr, run) -> Run:
    relaxed = ins.has("relaxed")

    def observed(w, mask):
        observer = w.machine.observer
        observer.ins = ins
        agent = observer.agent(w)
        meeting = observer.meeting(w.cta, ("cluster", w.cta.cluster.barrier.phase))
        if relaxed:
            clock = agent.release_relaxed(CLUSTER)
            observer.orders_only(agent, ins, w.cta, clock)
        else:
            clock = agent.release()
        meeting.gather(clock)
        run(w, mask)

    return observed


@followed(all_operands)
def cluster_wait(ins: Instr, run) -> Run:
    def observed(w, mask):
        observer = w.machine.observer
        observer.ins = ins
        run(w, mask)
        clock = observer.meeting(w.cta, ("cluster", w.state.cluster_phase)).clock
        observer.agent(w).acquire_barrier(clock)

    return observed


@followed(all_operands)
def registers(ins: Instr, run) -> Run:
    """Observe setmaxnreg."""

    def observed(w, mask, n):
        run(w, mask, n)
        w.machine.observer.agent(w).registers = n, ins

    return observed


def is_canceled(ins: Instr, run) -> Run:
    def observed(w, lane, response):
        canceled = run(w, lane, response)
        if not canceled:
            observer = w.machine.observer
            observer.ins = ins
            observer.cancellations.failed(observer.agent(w), ins)
        return canceled

    return observed


# --- fences and groups --------------------------------------------------------------------------


@followed(all_operands)
def grid_dependency(ins: Instr, run) -> Run:
    """Observe griddepcontrol.wait and griddepcontrol.launch_dependents."""
    waits = ins.has("wait")

    def observed(w, mask):
        run(w, mask)
        observer = w.machine.observer
        observer.ins = ins
        if observer.dependence is not None:
            agent = observer.agent(w)
            (observer.dependence.waited if waits else observer.dependence.let_start)(agent)

    return observed


@followed(all_operands)
def fence(ins: Instr, run) -> Run:
    if ins.has("proxy"):
        kinds = [m for m in ins.mods if m.startswith("async")]
        if not kinds:
            return run
        if kinds[0] == "async::generic":
            acts = [Observer.fence_async, partial(Observer.fence_memory, ins=ins, scope=CLUSTER)]
        else:
            near, far = not ins.has("global"), not ins.has("shared::cta", "shared::cluster")
            acts = [Observer.fence_async] * near + [Observer.fence_async_global] * far
    elif ins.has("mbarrier_init"):
        acts = [Observer.fence_init]
    elif ins.has("sync_restrict::shared::cta", "sync_restrict::shared::cluster"):
        acts = [partial(Observer.fence_memory, ins=ins, scope=CLUSTER)]
    else:
        acts = [partial(Observer.fence_memory, ins=ins, scope=scope_of(ins, CTA))]

    def observed(w, mask, *operands):
        run(w, mask, *operands)
        observer = w.machine.observer
        for act in acts:
            act(observer, observer.agent(w))

    return observed


def tensor_fence(act: Callable[[Agent], None]) -> Callable[[Instr, Run], Run]:
    @followed(all_operands)
    def make(ins: Instr, run):
        def observed(w, mask):
            run(w, mask)
            act(w.machine.observer.agent(w))

        return observed

    return make


def stream_wait(name: str) -> Callable[[Instr, Run], Run]:
    """Observe tcgen05.wait::ld or wait::st: the warp's own loads or stores of tensor memory are
    complete. name: the stream that the wait completes (vector_clocks.py).
    """

    @followed(all_operands)
    def make(ins: Instr, run):
        def observed(w, mask):
            run(w, mask)
            agent = w.machine.observer.agent(w)
            stream = agent.stream(name)
            agent.learn(stream.component, stream.issued)

        return observed

    return make


def commit_group(*names: str) -> Callable[[Instr, Run], Run]:
    @followed(all_operands)
    def make(ins: Instr, run):
        def observed(w, mask):
            run(w, mask)
            for name in names:
                w.machine.observer.agent(w).stream(name).commit()

        return observed

    return make


def wait_group(*names: str) -> Callable[[Instr, Run], Run]:
    """Observe a wait_group. names: the streams that it waits for (vector_clocks.py). With .read it
    waits for the first one only, which is complete when the source has been read.
    """

    @followed(all_operands)
    def make(ins: Instr, run):
        everything = ins.has("wait_all")
        waited = names[:1] if ins.has("read") else names

        def observed(w, mask, n=0):
            run(w, mask, n) if not everything else run(w, mask)
            agent = w.machine.observer.agent(w)
            for name in waited:
                stream = agent.stream(name)
                if everything:
                    stream.commit()
                stream.waits.append((n, len(stream.marks), ins, agent.epoch))
                agent.learn(stream.component, stream.complete_but(n))

        return observed

    return make
