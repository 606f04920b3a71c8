"""Which of the things that hung warps wait for comes first: what a warp waits for may be held up by
another warp, which waits for something else itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from b200.chip.fragment import ClusterBarrier, WarpState
from b200.chip.polls import Poll
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.tensor.tmem_alloc import TmemPool
from b200.program.analysis import Block, reachable
from b200.program.module import Instr
from b200.registry import Waitable


def holders(machine: Any, waits: Mapping[Any, Sequence[Any]]) -> dict[Any, int]:
    """For each thing that is waited for, how many others hold it up: a warp that could complete it
    waits for them. Of two that hold each other up neither counts. waits: by thing, the fragments
    that wait for it.
    """
    program = _Program(machine.code.structure)
    by_cluster: dict[Any, list[Any]] = {}
    for thing, fragments in waits.items():
        by_cluster.setdefault(fragments[0].cta.cluster, []).append(thing)
    found: dict[Any, int] = {}
    for things in by_cluster.values():
        direct = {thing: _holders(program, thing, things, waits) for thing in things}
        behind = {thing: _all_behind(thing, direct) for thing in things}
        for thing in things:
            found[thing] = sum(thing not in behind[other] for other in behind[thing])
    return found


def rank(waitable: Waitable) -> int:
    """Rank of a waitable as a cause: a wrong count is one, a barrier of many mostly suffers."""
    if isinstance(waitable, MBarrier):
        if waitable.pending == 0 or waitable.pending < waitable.expected or waitable.tx < 0:
            return 0
        return 3 if waitable.arrivals else 2
    if isinstance(waitable, Poll):
        return 2
    if isinstance(waitable, ClusterBarrier):
        away = not_arrived(waitable)
        return 4 if away and all(_is_held(warp, waitable) for warp in away) else 1
    if isinstance(waitable, NamedBarrier):
        return 1 if waitable.mixed else 4
    return 1


def not_arrived(barrier: ClusterBarrier) -> list[WarpState]:
    """Warps that a cluster's barrier still waits for."""
    warps = (w for cta in barrier.cluster.ctas for w in cta.warps)
    return [w for w in warps if w.live and not w.cluster_arrived]


def _is_held(warp: WarpState, barrier: Waitable) -> bool:
    """Whether a warp waits for something else than a barrier: that comes first then."""
    return any(f.waits_for not in (None, barrier) for f in warp.fragments)


class _Program:
    """What the code at a place may come to. Instructions are of one kind that signal an mbarrier in
    one way. ahead: kinds of signals that a fragment at a block may come to.
    """

    def __init__(self, blocks: list[Block]):
        kinds = [{_kind(op.ins) for op in block.ops} - {""} for block in blocks]

        @cache
        def ahead(pc: int) -> set[str]:
            return set[str]().union(*(kinds[b] for b in reachable(blocks, pc)))

        self.ahead = ahead

    def signalled(self, barrier: MBarrier) -> set[str]:
        """Kinds of signals that an mbarrier has had, as far as it is known; else all."""
        return {_kind(who.ins) for who in barrier.arrivals if who} or {"arrive", "commit", "copy"}


def _kind(ins: Instr) -> str:
    """How an instruction completes a phase of an mbarrier, "" if it does not."""
    first, second = (*ins.mods, "", "")[:2]
    if (first, second) == ("tcgen05", "commit"):
        return "commit"
    if first == "mbarrier":
        return "arrive" if second in ("arrive", "arrive_drop", "complete_tx") else ""
    is_async = second == "async" and first in ("cp", "st", "red")
    return "copy" if is_async or first == "clusterlaunchcontrol" else ""


def _holders(
    program: _Program, thing: Any, others: Iterable[Any], waits: Mapping[Any, Sequence[Any]]
) -> set[Any]:
    """What warps wait for that could still complete `thing`."""
    if isinstance(thing, MBarrier):
        if thing.pending == 0:  # all have arrived: its bytes are wrong
            return set()
        kinds = program.signalled(thing)
        return {o for o in others if any(kinds & program.ahead(f.pc) for f in waits[o])} - {thing}
    if isinstance(thing, NamedBarrier):
        return {o for o in others if any(f.cta is thing.cta for f in waits[o])} - {thing}
    if isinstance(thing, TmemPool):
        warps = thing.holders()
        held = {o for o in others if any((f.cta, f.index) in warps for f in waits[o])} - {thing}
        return {o for o in held if not isinstance(o, (NamedBarrier, ClusterBarrier))}
    return set(others) - {thing} if isinstance(thing, ClusterBarrier) else set()


def _all_behind(thing: Any, direct: Mapping[Any, set[Any]]) -> set[Any]:
    """What holds up `thing`, and what holds that up."""
    seen: set[Any] = set()
    work = list(direct[thing])
    while work:
        other = work.pop()
        if other not in seen:
            seen.add(other)
            work += direct[other]
    return seen
