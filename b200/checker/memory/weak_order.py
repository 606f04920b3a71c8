"""Weak memory order: an access that was executed first need not be seen first.

A relaxed arrive tells its waiter that the warp has come, but not what it has written. So does an
arrive whose scope does not include the waiter. PTX promises nothing then. What today's chips do
depends on the older access. A store, a cp.async or a load from another CTA may still be on its way.
An access that has landed in shared memory, or that has read the shared memory of its own CTA, is
over. A store to the CTA's own shared memory has landed when a later fence.proxy.async is over: the
pipelines of the CuTe DSL and of CUTLASS for pairs of CTAs hand over in this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from b200.checker import words
from b200.checker.accesses import ClusterState, Record, complete
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.vector_clocks import ASYNC, ORDER
from b200.chip.describe import mnemonic
from b200.chip.state import CTA
from b200.effects import Arrives, ArrivesBehindCopies, ArrivesInCluster
from b200.program.module import Instr
from b200.registry import FULL

IN_FLIGHT = ("generic", "atomic", "cp.async")  # writes that may be under way after the instruction


@dataclass(frozen=True)
class Edge:
    """An arrival that hands over the order of execution only. order: the row ORDER of the clock
    that it published. landed: the row ASYNC of the warp's own clock at that time.
    """

    agent: Agent
    ins: Instr
    order: np.ndarray
    landed: np.ndarray

    @property
    def relaxed(self) -> bool:
        effect = self.ins.effect
        if isinstance(effect, ArrivesBehindCopies):
            return False
        return not isinstance(effect, Arrives) or not effect.releases

    def covers(self, record: Record) -> bool:
        known = record.component < self.order.size
        return known and int(self.order[record.component]) >= record.step

    def behind_proxy_fence(self, record: Record) -> bool:
        known = record.component < self.landed.size
        return known and int(self.landed[record.component]) >= record.step


def executed(agent: Agent, record: Record) -> bool:
    """Whether the access is over before what `agent` does now, in the order of execution."""
    return complete(agent, record, ORDER)


def orders_only(agent: Agent, ins: Instr, clock: np.ndarray, lanes: int = FULL) -> None:
    """Note that a warp publishes an order of execution without one of memory."""
    state = agent.state
    if state.ordered is not clock:
        state.ordered = clock
        # Copies, for a row of a clock would keep all of it.
        order, landed = clock[ORDER].copy(), agent.release(lanes, ins)[ASYNC].copy()
        state.edges.append(Edge(agent, ins, order, landed))


def edge_of(state: ClusterState, record: Record) -> Edge | None:
    """The first arrival that handed over only the order of execution of an access, or None."""
    return next((edge for edge in state.edges if edge.covers(record)), None)


def severity(state: ClusterState, cta: CTA, old: Record, reads: bool) -> str:
    """How grave a conflict with `old` in shared memory of `cta` is. reads: whether `old` reads."""
    if old.kind not in IN_FLIGHT:
        return PORTABILITY
    if old.agent.cta is not cta:
        return ERROR
    edge = edge_of(state, old)
    landed = old.kind == "generic" and edge is not None and edge.behind_proxy_fence(old)
    return PORTABILITY if reads or landed else ERROR


def missing(state: ClusterState, agent: Agent, old: Record) -> str:
    """The change that would turn the order of execution into an order of memory, in words."""
    edge = edge_of(state, old)
    if edge is None:
        relaxed = agent.relaxed_wait
        where = f"the wait at {words.line(relaxed)}" if relaxed is not None else "the wait"
        return f"missing: .acquire on {where}, or fence.acq_rel.cluster after it"
    what, where = mnemonic(edge.ins), words.line(edge.ins)
    if isinstance(edge.ins.effect, ArrivesInCluster):
        return (
            f"missing: barrier.cluster.arrive.relaxed orders nothing ({where}): drop .relaxed or "
            "fence (fence.acq_rel.cluster before the arrive and after the wait)"
        )
    by = f"at {where}, by {words.name(edge.agent)}"
    if edge.relaxed:
        return (
            f"missing: .release.cluster for the {what} {by}, which is relaxed and orders nothing, "
            "or fence.acq_rel.cluster before it"
        )
    return (
        f"missing: .release.cluster for the {what} {by}: its scope is the CTA (PTX's default), and "
        "another CTA waits; or fence.acq_rel.cluster before it"
    )
