"""Shared memory between the lanes of one warp: accesses that no bar.warp.sync orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory import lane_release_rule
from b200.checker.memory.shadow import EVERY, SHUFFLED
from b200.checker.words import place

if TYPE_CHECKING:
    from b200.checker.memory.shared_memory import SharedRules

OWN = "the wait tells each lane of its own copies only; no chip was asked what others see"


def between(
    rules: SharedRules,
    new: Record,
    numbers: tuple,
    cells: np.ndarray,
    by: np.ndarray,
    index,
    lanes,
    at: tuple,
    how: str = "read",
) -> None:
    """Report words that another lane of the warp has stored or copied (or read, if this access
    stores) since the warp's lanes last synchronised. cells: the records of the words. by: the
    shadow that has the lane of each word. lanes: the lanes of this access. how: as in _conflict.
    Nothing is reported if both accesses are narrower than a word: they may be neighbouring
    bytes of it.
    """
    for number in numbers:
        if not number:
            continue
        old = rules.state.records[number]
        step = _made(old, new, how)
        if step is None:
            continue
        if new.narrow and old.narrow or new.kind != "generic" and how == "overwrite":
            continue
        before = by[index]
        other = (before != lanes) & (before != EVERY) & (cells == number)
        if other.any():
            other = other & ~np.asarray(new.agent.in_order(step, before, lanes))
        if not other.any():
            continue
        done = "read" if how == "write" else "copied" if old.kind == "cp.async" else "stored"
        verb = "reads" if how == "read" else "overwrites"
        # One word for several lanes, or for two stores, is in order as long as lanes go in step
        in_step = new.kind == "generic" and _in_step(new.agent, before[other])
        why = OWN if old.kind == "cp.async" else lane_release_rule.IN_STEP
        if how != "overwrite" and old.kind == "generic":
            in_step = in_step and SHUFFLED in (*lanes.tolist(), *before[other].tolist())
        rules.report(
            "race",
            f"{words.thing(new)} {verb} what another lane of the warp has just {done}, "
            "without bar.warp.sync",
            (
                *words.conflict(new, old, place(rules.cta, *at)),
                *((lane_release_rule.APART,) if new.agent.in_groups else ()),
                *((why,) if in_step else ()),
                "missing: bar.warp.sync (__syncwarp) between the two",
            ),
            new,
            old,
            PORTABILITY if in_step else ERROR,
        )


def _made(old: Record, new: Record, how: str) -> int | None:
    """The epoch of this turn at which lanes of the warp have made an access, or have learned that a
    cp.async of theirs is complete: that tells each lane of its own copies only (PTX ISA
    9.7.9.25.3.3). None if another turn, or another warp, has.
    """
    if old.agent is not new.agent:
        return None
    if old.kind == "cp.async" and how == "read":
        told = new.agent.stream("cp_async").told_of(old.step)
        return told.epoch if told is not None and told.turn == new.turn else None
    return old.step if old.turn == new.turn and old.kind == "generic" else None


def _in_step(agent: Agent, lanes: np.ndarray) -> bool:
    """Whether lanes that made an access before are at the present one, too."""
    known = (int(lane) for lane in np.unique(lanes) if lane < EVERY)
    return all(agent.in_step >> lane & 1 for lane in known)
