"""One lane speaks for its warp: what a release by some lanes does not hand over.

A release hands over what its own thread has done, and what that thread has synchronised with (PTX
ISA 8.8). An arrival, a flag or a copy by one lane says nothing of the other lanes' accesses, unless
something has ordered the lanes since: bar.warp.sync, a barrier of the CTA or the cluster, an
arrival of every lane. Instructions with `.sync` or `.sync.aligned` make lanes wait for one another
and order no memory. The accesses before one have been executed, so today's chips, which carry out
a warp's accesses of shared memory in their order, do what the kernel means.

A warp has one clock. Lanes with accesses that nothing has ordered yet are `Agent.touched`. A
release by other lanes is dated with an epoch of its own, and noted (`Agent.lane_releases`). A warp
that knows of the accesses by such an epoch alone does not know of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record, known
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.lane_sync import LaneRelease, lanes_of, left_out
from b200.checker.vector_clocks import HB
from b200.chip.describe import mnemonic
from b200.registry import active, lanes_text

if TYPE_CHECKING:
    from b200.checker.memory.global_conflicts import AccessMade, Write
    from b200.checker.memory.shared_memory import SharedRules
    from b200.checker.observer import Observer

IN_STEP = (
    "today's chips keep it in order as long as the lanes go in step, which PTX does not promise"
)
APART = "a bar.warp.sync in between does not name both lanes"


def shared(
    rules: SharedRules,
    new: Record,
    numbers: tuple,
    cells: np.ndarray,
    by: np.ndarray,
    at: tuple,
    same: Callable | None = None,
) -> None:
    """Report accesses of other lanes that `new` conflicts with, and knows of by one lane's release.
    numbers: the records of the words. cells, by: for each word its record, and the lane. at: the
    range, as in SharedRules. same: as in SharedRules._conflict.
    """
    for number in numbers:
        old: Record | None = rules.state.records[number] if number else None
        if old is None or not old.lanes or old.agent is new.agent or not old.agent.lane_releases:
            continue
        component, clock = old.component, new.agent.clock
        known = int(clock[HB, component]) if component < clock.shape[1] else 0
        found = left_out(old.agent, old.step, clock[HB]) if old.step <= known else None
        if found is None or new.narrow and old.narrow or rules.commute(new, old):
            continue
        release, left = found
        reads = old.text.startswith("reads")
        lanes = {int(lane) for lane in np.unique(by[cells == number])} & set(
            active(left & old.lanes)
        )
        if not lanes or reads and old.step <= release.met or same is not None and same(number, old):
            continue
        mask = sum(1 << lane for lane in lanes)
        verb = "writes" if reads else "reads" if new.text.startswith("reads") else "overwrites"
        rules.report(
            "race",
            f"{words.thing(new)} {verb} shared memory that "
            f"{_written(mask, 'read' if reads else 'written')}, and {_release(release)} releases "
            "its own accesses only",
            *words.conflict(new, old, words.place(rules.cta, *at)),
            *_details(old.ins, old.agent, release, old.step),
            of=(new, old),
            severity=PORTABILITY if reads else _severity(old.step, release),
        )


def unacquired(
    rules: SharedRules, new: Record, numbers: tuple, cells: np.ndarray, by: Any, at: tuple
) -> None:
    """Report accesses of others that are before `new` by what some lanes have acquired, where other
    lanes make it. numbers, cells, at: as in `shared`. by: the lane of each word of `new`.
    """
    agent = new.agent
    assert agent.lane_acquires is not None  # some lanes have acquired
    for number in numbers:
        old: Record | None = rules.state.records[number] if number else None
        if old is None or not known(agent, old) or old.agent is agent and old.barrier is None:
            continue
        lanes = lanes_of(by, cells, number, agent.lanes)
        unaware = agent.lane_acquires.unaware(lanes, old.component, old.step)
        if not unaware or new.narrow and old.narrow or rules.commute(new, old):
            continue
        who, missing, severity = agent.lane_acquires.words(unaware, agent.in_step)
        reads = old.text.startswith("reads")
        verb = "writes" if reads else "reads" if new.text.startswith("reads") else "overwrites"
        rules.report(
            "race",
            f"{words.thing(new)} {verb} shared memory {who}",
            *words.conflict(new, old, words.place(rules.cta, *at)),
            *((IN_STEP,) if severity == PORTABILITY else ()),
            missing,
            of=(new, old),
            severity=severity,
        )


def of_global(observer: Observer, old: Write, access: AccessMade, row: np.ndarray) -> None:
    """Report a write of other lanes that the access is behind by one lane's release. row: what the
    warp that makes it knows of the cluster of `old`.
    """
    found = left_out(old.agent, old.step, row)
    if found is None or not found[1] & old.lanes:
        return
    release, left = found
    verb = "overwrites" if access.writes else "reads"
    observer.found(
        "global",
        f"{mnemonic(access.ins)} {verb} global memory that {_written(left & old.lanes)}, and "
        f"{_release(release)} releases its own accesses only",
        f"this access: {words.line(access.ins)}, by {words.name(access.agent)}",
        f"written: {words.line(old.ins)}, by {words.name(old.agent)}",
        f"in {observer.operand(access.region.base)}",
        *_details(old.ins, old.agent, release, old.step),
        at=access.ins,
        other=old.ins,
        severity=_severity(old.step, release),
    )


def _written(lanes: int, verb: str = "written") -> str:
    have = "have" if lanes & lanes - 1 else "has"
    return f"{lanes_text(lanes)} of another warp {have} {verb}"


def _severity(step: int, release: LaneRelease) -> str:
    return PORTABILITY if step <= release.met else ERROR


def _release(release: LaneRelease) -> str:
    what = mnemonic(release.ins) if release.ins is not None else "release"
    return f"the {what} of {lanes_text(release.lanes)}"


def _details(ins: Any, agent: Agent, release: LaneRelease, step: int) -> tuple[str, ...]:
    met = "the lanes have met at a .sync in between, which orders no memory"
    return (
        f"released by: {words.line(release.ins)}, by {lanes_text(release.lanes)} of "
        f"{words.name(agent)}",
        *((met,) if step <= release.met else ()),
        f"missing: bar.warp.sync (__syncwarp) between the {mnemonic(ins)} and "
        f"{_release(release)}, or an arrival of every lane",
    )
