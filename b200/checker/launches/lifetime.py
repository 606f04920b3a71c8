"""Rules: accesses to a CTA's memory come after its start, and are over when it ends, as are its
allocations and its copies; and what is to be executed by then.

Distributed shared memory asks that the CTA exists: "all thread blocks have started executing"
(CUDA C++ programming guide, distributed shared memory). The cluster is placed at once; its CTAs do
not start at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.finding import ERROR, NOTE, PORTABILITY
from b200.checker.streams import NEVER
from b200.checker.tensor import pairs
from b200.checker.vector_clocks import HB, ORDER, SHARED_ROWS, join
from b200.chip.describe import mnemonic

if TYPE_CHECKING:
    from b200.checker.accesses import Barrier, ClusterState, Record
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.chip.fragment import WarpState
    from b200.chip.state import CTA, Cluster


def warp_exited(observer: Observer, warp_state: WarpState) -> None:
    cta = warp_state.cta
    state = observer.state(cta)
    state.left[cta.rank] += 1
    agent = state.agents.get((cta.rank, warp_state.index))
    if agent is not None:
        clock = agent.release()
        have = state.exits.get(cta.rank)
        state.exits[cta.rank] = clock.copy() if have is None else join(have, clock)
        _copies(observer, agent)
    if state.left[cta.rank] == len(cta.warps):
        _cta_exited(observer, cta, state)
        if all(state.left[c.rank] == len(c.warps) for c in cta.cluster.ctas):
            _cluster_ended(observer, cta.cluster, state)


def _copies(observer: Observer, agent: Agent) -> None:
    """Report copies out of shared memory that this warp issued and never waited for."""
    streams = agent.streams_of("bulk_read")
    if all(agent.knows(HB, stream.component, stream.issued) for stream in streams):
        return
    record = agent.last_copy
    assert record is not None  # of these streams
    wait = words.too_many_left(record, "cp.async.bulk.wait_group.read")
    wait = wait or "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0"
    observer.found(
        "lifetime",
        f"the warp exits while {words.thing(record)} may still read shared memory",
        f"issued: {words.act(record)}",
        f"missing: {wait} before the warp exits",
        at=record.ins,
    )


def _cta_exited(observer: Observer, cta: CTA, state: ClusterState) -> None:
    clock = state.exits.get(cta.rank)
    if clock is None:
        clock = np.zeros((SHARED_ROWS, 1), np.int32)
    for record in state.remote[cta.rank].values():
        own = record.agent.cta is cta
        if not _over(record, clock) and not (own and record.component == record.agent.component):
            _unseen(observer, cta, record, own)
    _arrivals(observer, cta, state, clock)
    _outgoing(observer, cta, state, clock)
    _tensor_memory(observer, cta)
    _register_moves(observer, cta)


def _over(record: Record, clock: np.ndarray) -> bool:
    """Whether a warp with this clock knows that the access is complete."""
    known = record.component < clock.shape[1] and clock[ORDER, record.component] >= record.step
    return known and record.step < NEVER


def _tell(
    observer: Observer,
    cta: CTA,
    record: Record,
    diagnosis: str,
    missing: str,
    severity: str = ERROR,
) -> None:
    """Report an access of the memory of a CTA that exits."""
    observer.found(
        "lifetime",
        diagnosis,
        f"CTA {cta.index}, rank {cta.rank} of its cluster; the access: {words.act(record)}",
        f"missing: {missing}",
        at=record.ins,
        severity=severity,
    )


def _unseen(observer: Observer, cta: CTA, record: Record, own: bool) -> None:
    """Report an access to a CTA that may come after its exit. own: the CTA itself issued it."""
    thing = words.thing(record)
    if own:
        diagnosis = f"the CTA may exit while {thing} into its own memory is under way"
        missing = "a wait for it by a warp of the CTA before the CTA exits"
    else:
        diagnosis = f"the CTA may exit before {thing} of another CTA has reached it"
        missing = (
            "barrier.cluster.arrive and wait by all warps at the end (or a wait that "
            f"{words.name(record.agent)} answers) before the CTA exits"
        )
    _tell(observer, cta, record, diagnosis, missing)


def _arrivals(observer: Observer, cta: CTA, state: ClusterState, clock: np.ndarray) -> None:
    """Report arrivals of another CTA's commits that may come after the exit of this CTA. It may
    know, through another mbarrier, that the tensor core is done; that does not say that the arrival
    has come.
    """
    for record in state.arrivals[cta.rank].values():
        if not _over(record, clock):
            assert record.barrier is not None  # which it arrives on
            thing = words.thing(record)
            diagnosis = (
                f"the CTA may exit before an arrival of {thing} of another CTA has come to it"
            )
            missing = f"a wait for that phase of {record.barrier.name()} before the CTA exits"
            _tell(observer, cta, record, diagnosis, missing, PORTABILITY)


def _outgoing(observer: Observer, cta: CTA, state: ClusterState, clock: np.ndarray) -> None:
    """Report copies to other CTAs that may still read the shared memory of the CTA that exits."""
    for record in state.outgoing[cta.rank]:
        if not _over(record, clock):
            _tell(
                observer,
                cta,
                record,
                f"the CTA may exit while {words.thing(record)} still reads its shared memory",
                "a wait by the CTA for what the receiver does after its wait for the bytes "
                "(barrier.cluster.arrive and wait at the end)",
            )


def reached(observer: Observer, record: Record, target: CTA) -> None:
    """An access reaches another CTA of the cluster: one that has started and has not exited."""
    agent, state = record.agent, record.agent.state
    if target.rank not in agent.started:
        _started(observer, record, target)
    if target.rank in state.exits and state.left[target.rank] == len(target.warps):
        diagnosis = f"the CTA has exited before {words.thing(record)} of another CTA has reached it"
        missing = "barrier.cluster.arrive and wait by all warps at the end"
        _tell(observer, target, record, diagnosis, missing)
        return
    state.reach(record, target)


def _started(observer: Observer, record: Record, target: CTA) -> None:
    """Report an access to a CTA that is not known to have started. Order of execution is enough.
    Operations of a CTA pair have a rule of their own (pairs.py).
    """
    agent = record.agent
    agent.started.add(target.rank)
    if record.kind in words.CORE or pairs.runs(agent, target):
        return
    observer.found(
        "lifetime",
        f"{words.thing(record)} reaches another CTA of the cluster, which is not known to have "
        "started",
        f"this access: {words.act(record)}; it reaches rank {target.rank} of the cluster",
        "missing: barrier.cluster.arrive (.relaxed will do) by all warps and "
        "barrier.cluster.wait before the first access to another CTA",
        at=record.ins,
    )


def _tensor_memory(observer: Observer, cta: CTA) -> None:
    for first, columns in cta.tmem_allocations.items():
        record = observer.state(cta).allocations.get((cta.rank, first))
        where = words.act(record) if record is not None else "(unknown)"
        observer.found(
            "lifetime",
            "tensor memory is not deallocated when the CTA exits",
            f"columns [{first}, {first + columns}) of CTA {cta.index}; allocated: {where}",
            f"missing: tcgen05.dealloc of {columns} columns by a warp of the CTA",
            at=record.ins if record is not None else None,
        )


def _bytes(observer: Observer, barrier: Barrier) -> None:
    """Compare the bytes announced on an mbarrier with the bytes of the copies issued to it.

    If fewer bytes were issued than announced, the last phase stays open. A warp that waited for
    that phase would hang, so in a launch that has ended nobody waited and it does no harm: the
    producer_tail of CUTLASS's pipelines acquires a stage that it does not load.
    """
    difference = barrier.signalled - barrier.announced
    if difference == 0 or not barrier.copies:
        return
    expects = "; ".join(
        f"expect_tx of {n} bytes at {words.line(ins)}" for ins, n in barrier.expects.values()
    )
    copies = "; ".join(f"{n} bytes of {words.line(ins)}" for ins, n in barrier.copies.values())
    details = (
        f"it is {barrier.name()}, {barrier.phases} phases completed",
        f"announced: {expects or 'nothing'}",
        f"copies: {copies}",
        "missing: an expect_tx with the sum of the bytes of the phase's copies",
    )
    ins, _ = next(iter((barrier.expects or barrier.copies).values()))
    if difference < 0:
        diagnosis = (
            f"the last phase of an mbarrier stays open: {-difference} bytes that expect_tx "
            "announced never come, and nobody waits for them"
        )
        observer.found(
            "protocol",
            diagnosis,
            *details,
            at=ins,
            severity=NOTE,
        )
        return
    each = ""
    if barrier.phases > 1 and difference % barrier.phases == 0:
        difference //= barrier.phases
        each = " in each phase"
    diagnosis = (
        f"copies bring {difference} bytes more to an mbarrier{each} than expect_tx announced"
    )
    observer.found(
        "protocol",
        diagnosis,
        *details,
        at=ins,
    )


def _cluster_ended(observer: Observer, cluster: Cluster, state: ClusterState) -> None:
    for barrier in state.barriers.values():
        _bytes(observer, barrier)
    for cta in cluster.ctas:
        if (rules := observer.shared_rules.get(cta)) is not None:
            observer.read_unwritten(rules.ended())
    state.forget()
    observer.let_go(cluster)


WARPGROUP = 4  # warps


def _register_moves(observer: Observer, cta: CTA) -> None:
    """All warps of a warpgroup must execute setmaxnreg (PTX ISA 9.7.19.5). A warp that asks for
    more registers than its CTA has left is a deadlock, no finding (chip/sync/registers.py).
    """
    moves = dict.fromkeys(range(len(cta.warps)))
    moves |= {agent.index: agent.registers for agent in observer.state(cta).agents_of(cta)}
    if not any(moves.values()):
        return
    for first in range(0, len(cta.warps), WARPGROUP):
        group = {i: moves[i] for i in range(first, min(first + WARPGROUP, len(cta.warps)))}
        done = {i: m for i, m in group.items() if m}
        if done and len(done) < len(group):
            _part_of_warpgroup(observer, cta, done, sorted(set(group) - set(done)))


def _part_of_warpgroup(observer: Observer, cta: CTA, done: dict, left: list[int]) -> None:
    index, (n, ins) = next(iter(done.items()))
    observer.found(
        "protocol",
        f"{mnemonic(ins)} {n} is executed by a part of a warpgroup only",
        f"this access: {words.line(ins)}, by warp(s) {', '.join(map(str, done))} of CTA "
        f"{cta.index}",
        f"not by warp(s) {', '.join(map(str, left))} of the same warpgroup (warps "
        f"{index // WARPGROUP * WARPGROUP} to {index // WARPGROUP * WARPGROUP + 3})",
        "missing: setmaxnreg by all four warps of the warpgroup, or roles that fill it",
        at=ins,
    )
