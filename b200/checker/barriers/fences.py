"""Observes fences.

Each function is a wrapper of instrument.py: `wrap(ins, effect, run)` returns an observed
function of the form of `run`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from b200.checker.agent import Agent
from b200.checker.memory.lane_sync import part_of
from b200.checker.steps import all_operands, rule
from b200.checker.vector_clocks import CLUSTER, CTA, scope_of
from b200.effects import ACQUIRING, RELEASING, FencesInits, FencesMemory, FencesProxy, FencesTensor
from b200.program.module import Instr
from b200.registry import Run

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer


def _fenced(ins: Instr, run: Run, *acts: Callable[[Observer, Agent], None]) -> Run:
    """Observe a fence, which does some things for its warp; agent.lanes execute it."""

    def observed(warp: CheckedFragment, mask: int, *operands: Any) -> None:
        run(warp, mask, *operands)
        observer = warp.observer
        agent = observer.agent(warp)
        agent.lane_acquire, agent.lanes = part_of(warp, mask, ins), mask
        for act in acts:
            act(observer, agent)
        agent.lane_acquire = None

    return observed


def orders_memory(observer: Observer, agent: Agent, order: str, scope: int) -> None:
    """A fence of this order: acquire and release do one half of it each, the others both. What one
    fence acquires it releases, too (PTX ISA 8.8: it ends one pattern and begins another).
    """
    if order in ACQUIRING:
        agent.fence_acquire(scope)
        observer.globals.order.fenced(agent, scope)
    if order in RELEASING:
        agent.fence_release(scope)


def _orders_shared(observer: Observer, agent: Agent, own: bool) -> None:
    agent.state.far_fences.fenced(agent, own)
    agent.fence_async(agent.lanes)


def _orders_global(observer: Observer, agent: Agent) -> None:
    agent.fence_async_global()
    observer.globals.order.fenced_proxy(agent)


@rule(FencesMemory, look=all_operands)
def fence(ins: Instr, effect: FencesMemory, run: Run) -> Run:
    """Observe fence and membar."""
    scope = scope_of(ins, CTA)
    return _fenced(ins, run, partial(orders_memory, order=effect.order, scope=scope))


@rule(FencesProxy, look=all_operands)
def proxy_fence(ins: Instr, effect: FencesProxy, run: Run) -> Run:
    acts: list[Callable[[Observer, Agent], None]] = []
    if effect.shared:
        acts.append(partial(_orders_shared, own=effect.own))
    if effect.far:
        acts.append(_orders_global)
    if effect.order:
        acts.append(partial(orders_memory, order=effect.order, scope=CLUSTER))
    return _fenced(ins, run, *acts) if acts else run


@rule(FencesInits, look=all_operands)
def init_fence(ins: Instr, effect: FencesInits, run: Run) -> Run:
    return _fenced(ins, run, lambda observer, agent: agent.fence_init())


@rule(FencesTensor, look=all_operands)
def tensor_fence(ins: Instr, effect: FencesTensor, run: Run) -> Run:
    act = Agent.fence_before if effect.before else Agent.fence_after
    return _fenced(ins, run, lambda observer, agent: act(agent))
