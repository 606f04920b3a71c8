"""Which accesses of tensor memory are ordered, by what a warp knows or by the queue they are in."""

from __future__ import annotations

from b200.checker import words
from b200.checker.accesses import Record, known
from b200.checker.agent import Agent
from b200.checker.streams import NEVER
from b200.checker.vector_clocks import HB, TENSOR


def ordered(agent: Agent, new: Record, old: Record, how: str) -> bool:
    """Whether an access of tensor memory is ordered after another one. how: "read", "write",
    "overwrite" or "free".
    """
    handed_over = old.step < NEVER and agent.knows(TENSOR, old.component, old.step)
    if old.agent is agent:
        if old.kind in words.CORE and new.kind in words.CORE and pipelined(new, old, how):
            return True
        if how == "free" and old.kind in ("load", "store"):
            return True
        return handed_over or old.step < NEVER and agent.knows(HB, old.component, old.step)
    if how == "free":
        if old.kind in ("load", "store"):
            return agent.knows(HB, old.component, old.step)
        return handed_over or known(agent, old)
    return handed_over


def pipelined(new: Record, old: Record, how: str) -> bool:
    """Whether operations of one queue end in order (9.7.16.6.2). Two MMAs do if they have one
    accumulator and one shape. What an MMA only reads, a later one may overwrite: attention kernels
    do so with P, which PTX does not list. An MMA and a cp or a shift do, either way round:
    generated code relies on mma before cp, which PTX does not list either. Of cp and shift among
    themselves a shift and a cp of 4x256b do, and those with an MMA between them.
    """
    if new.kind == "mma" or old.kind == "mma":
        return how == "write" or new.kind != old.kind or new.sum == old.sum
    if new.kind == "cp" and new.ins.has("4x256b") and old.kind == "shift":
        return True
    return old.step < new.behind
