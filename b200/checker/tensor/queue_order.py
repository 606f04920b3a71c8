"""Which accesses of tensor memory are ordered, by what a warp knows or by the queue they are in.

Operations of the tensor core end in the order in which they were issued (PTX ISA 9.7.16.6.2) where
PTX lists the pair: mma before mma (one accumulator and shape), cp before mma, shift before
mma, shift before cp of 4x256b, mma before shift. Pairs of two warps are in order, too, if the warps
synchronise between them with tcgen05 fences: nobody need wait for the first (9.7.16.6.4.3). Who
waits for the second then knows that the first is over.
"""

from __future__ import annotations

from b200.checker import words
from b200.checker.accesses import Record, complete, known
from b200.checker.agent import Agent
from b200.checker.streams import NEVER
from b200.checker.vector_clocks import HB, TENSOR


def ordered(agent: Agent, new: Record, old: Record, how: str) -> bool:
    """Whether `new` is ordered after `old`. how: "read", "write", "overwrite" or "free"."""
    handed_over = complete(agent, old, TENSOR)
    if old.agent is agent:
        if old.kind in words.CORE and new.kind in words.CORE and in_order(new, old, how):
            return True
        if how == "free" and old.kind in ("load", "store"):
            return True
        return handed_over or old.step < NEVER and agent.knows(HB, old.component, old.step)
    if how == "free":
        if old.kind in ("load", "store"):
            return agent.knows(HB, old.component, old.step)
        return handed_over or known(agent, old)
    return handed_over


def in_order(new: Record, old: Record, how: str) -> bool:
    """Whether operations of one warp end in order: the pairs that PTX lists, and some more. What an
    MMA only reads, a later one may overwrite: attention kernels do so with P. An MMA and a cp are
    in order either way round: generated code relies on mma before cp. Of cp and shift among
    themselves those with an MMA between them are.
    """
    if new.kind == "mma" or old.kind == "mma":
        return how == "write" or new.kind != old.kind or new.sum == old.sum
    return _refills(new, old) or old.step < new.behind


def listed(new: Record, old: Record, how: str) -> bool:
    """Whether PTX lists the pair, so that operations of two warps may rely on it."""
    if new.kind not in words.CORE or old.kind not in words.CORE:
        return False
    if new.kind == "mma":
        return old.kind != "mma" or how != "write" and new.sum == old.sum
    return new.kind == "shift" and old.kind == "mma" or _refills(new, old)


def _refills(new: Record, old: Record) -> bool:
    return old.kind == "shift" and new.kind == "cp" and new.ins.has("4x256b")
