"""Shared memory between the generic proxy and the asynchronous one: fences that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record, known
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.lane_sync import lanes_of
from b200.checker.vector_clocks import AFTER, ASYNC
from b200.checker.words import place
from b200.effects import AllocatesTensor, InitsMbarrier

if TYPE_CHECKING:
    from b200.checker.memory.shared_memory import SharedRules


def fenced(rules: SharedRules, new: Record, numbers: tuple, at: tuple) -> None:
    """Report a tensor-core read behind a wait without tcgen05.fence::after_thread_sync."""
    agent = new.agent
    for number in numbers:
        if number and known(agent, old := rules.state.records[number]):
            if not agent.knows(AFTER, old.component, old.step):
                rules.report(
                    "race",
                    f"{words.thing(new)} is not held back by the wait for {words.thing(old)}",
                    *words.conflict(new, old, place(rules.cta, *at)),
                    f"missing: tcgen05.fence::after_thread_sync by {words.name(agent)} after its "
                    f"wait (the kernel has tcgen05 fences elsewhere){words.latest_wait(agent)}",
                    of=(new, old),
                    severity=PORTABILITY,
                )


def proxy(
    rules: SharedRules,
    new: Record,
    numbers: tuple,
    cells: np.ndarray,
    by: np.ndarray,
    index: slice | np.ndarray,
    at: tuple,
    overwrites: bool = False,
) -> None:
    """Report generic stores that the asynchronous proxy need not see yet. cells: the records of the
    words. by: the shadow that has the lane of each word. index: of these words there. overwrites:
    it writes there; no chip is known to let the store come last.
    """
    verb = "overwrites" if overwrites else "reads"
    for number in numbers:
        if not number:
            continue
        old = rules.state.records[number]
        agent = new.agent
        if overwrites and isinstance(old.ins.effect, (AllocatesTensor, InitsMbarrier)):
            continue  # Triton's kernels load over the word that holds the address
        if known(agent, old) and old.kind in ("generic", "strong", "atomic", "cp.async"):
            fenced = agent.knows(ASYNC, old.component, old.step)
            if not fenced and old.agent.half_fences:
                lanes = lanes_of(by[index], cells, number, 0)
                fenced = agent.half_fenced(old.agent, old.step, lanes)
            far = old.agent.cta is not rules.cta
            if fenced and far:
                fenced = rules.state.far_fences.cover(rules.cta, old, agent)
            space = "shared::cluster" if far else "shared::cta"
            if not fenced:
                rules.report(
                    "proxy",
                    f"{words.thing(new)} {verb} what {words.thing(old)} wrote through the generic "
                    "proxy, with no fence.proxy.async in between",
                    f"this access: {words.act(new)}",
                    f"written by: {words.act(old)}",
                    f"in {place(rules.cta, *at)}",
                    f"missing: fence.proxy.async.{space} by {words.name(old.agent)} after its "
                    "stores, before the barrier that hands them over",
                    of=(new, old),
                    severity=PORTABILITY if overwrites else ERROR,
                )


def refill(rules: SharedRules, new: Record, numbers: tuple, at: tuple) -> None:
    """Report generic loads of a warp that now issues a copy to the same place, without a proxy
    fence in between. Loads of other warps are not reported: an mbarrier hands them over, as in
    all pipelines, and that has been enough on every chip.
    """
    for number in numbers:
        old = rules.state.records[number] if number else None
        if old is None or old.agent is not new.agent or old.kind != "generic":
            continue
        agent = new.agent
        fenced = agent.knows(ASYNC, old.component, old.step)
        if not fenced and not agent.half_fenced(agent, old.step, 0):
            rules.report(
                "proxy",
                f"{words.thing(new)} overwrites what the warp itself has read through the "
                f"generic proxy by {words.thing(old)}, with no fence.proxy.async in between",
                f"this access: {words.act(new)}",
                f"read by: {words.act(old)}",
                f"in {place(rules.cta, *at)}",
                "missing: fence.proxy.async.shared::cta after the reads, before the "
                "barrier of the warp and the copy",
                of=(new, old),
                severity=PORTABILITY,
            )
