"""Strong stores that come late: orders of weak memory that a walk carries out.

A walk lets each instruction take effect before the next of its thread. PTX promises less (8.10): a
store may be seen later than what its thread does after it. So a launch whose warps speak through
places that form a ring is walked a second time, and each strong store there is an operation under
way, of which `Steps` knows as of others. It lands some time before

  * its warp accesses its bytes again, synchronises, or starts an asynchronous operation,
  * a fence.sc of its warp is over,
  * a write of its warp lands that is a release, or has a fence in front of it that the store has
    not.

A volatile store to shared memory comes at once: see the choices of docs/reference/memory-order.md.
Loads do not come early here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from b200.checker.steps import Call
from b200.chip.fragment import Fragment, WarpState
from b200.chip.operations import Action, Operation
from b200.effects import Access, Effect, FencesMemory, Stores, Updates
from b200.explore.addresses import Bytes, accessed, bytes_of
from b200.explore.states import Taken
from b200.explore.stepping import Steps
from b200.explore.touches import Pending, Touches, TouchingWriter
from b200.program.analysis import Op
from b200.program.module import Instr
from b200.registry import LaneValues, Run

NAME = "late store"


@dataclass(frozen=True, slots=True, eq=False)
class LateStore(Operation):
    """A store under way. fences: how many of its warp have come after it; those with no store
    between them are one, so that a loop with a fence comes back to the same state.
    """

    ins: Instr
    places: tuple[Bytes, ...]
    releases: bool
    fences: int = 0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def meets(self, places: Iterable[Bytes]) -> bool:
        return any(
            mine is its and bool(np.isin(some, other).any())
            for mine, some in self.places
            for its, other in places
        )

    def comes_before(self, later: LateStore) -> bool:
        """Whether it must be over before a store that its warp has made behind it."""
        return self.fences > later.fences or later.releases or self.meets(later.places)


class LateWriter(TouchingWriter):
    """Translates a kernel so that its strong stores may come late."""

    def _op(self, op: Op) -> None:
        effect = op.ins.effect
        if op.entry is not None and isinstance(effect, FencesMemory):
            op = replace(op, made=partial(_fence, Call(op.ins, effect, op.made)))
        super()._op(op)

    def noted(self, ins: Instr, effect: Access, run: Run) -> Run:
        run = super().noted(ins, effect, run)
        late = isinstance(effect, Stores) and effect.strong
        return partial(_store if late else _access, Call(ins, effect, run))


class LateStores(Touches):
    """A watcher that has strong stores come late. steps: those of the walk."""

    writer_type = LateWriter
    steps: Steps

    def mine(self, state: WarpState) -> list[Pending]:
        return [p for p in self.steps.pending if p.name == NAME and p.fragment.state is state]

    def land(self, state: WarpState, which: Callable[[LateStore], bool]) -> None:
        """Let stores of a warp take effect: those that must be over, and those before them. Where
        one of the latter comes later still, the former have landed in steps of their own.
        """
        mine = self.mine(state)
        last = max((i for i, p in enumerate(mine) if which(p.queue)), default=-1)
        for pending in mine[: last + 1]:
            self.steps.pending.remove(pending)
            pending.apply()

    def starts(self, warp: Fragment, effect: Effect) -> None:
        if effect.properties.synchronises:
            self.land(warp.state, lambda store: True)

    def issued(self, operation: Operation, warp: Fragment, apply: Action) -> Action:
        self.land(warp.state, lambda store: True)
        return super().issued(operation, warp, apply)

    def may_come(self, pending: Pending) -> bool:
        if pending.name != NAME:
            return True
        mine = self.mine(pending.fragment.state)
        earlier = (p.queue for p in mine[: mine.index(pending)])
        return not any(store.comes_before(pending.queue) for store in earlier)

    def fence(self, state: WarpState) -> None:
        mine = self.mine(state)
        if all(pending.queue.fences for pending in mine):
            return
        for pending in mine:
            number = self.steps.pending.index(pending)
            fenced = replace(pending.queue, fences=pending.queue.fences + 1)
            self.steps.pending[number] = pending._replace(queue=fenced)


def _late(warp: Fragment) -> LateStores:
    late = warp.machine.watcher(LateStores)
    assert late is not None
    return late


def _store(call: Call[Stores], warp: Fragment, mask: int, address: LaneValues, *rest: Any):
    effect = call.effect
    places = tuple(bytes_of(accessed(warp, mask, address, effect)))
    near = any(cta is not None for cta, _ in places)
    if near and effect.order == "volatile" or not places:
        return _access(call, warp, mask, address, *rest)
    store = LateStore(call.ins, places, effect.releases)

    def lands() -> None:
        call.run(warp, mask, address, *rest)

    _late(warp).steps.pending.append(Pending(NAME, warp, call.ins, store, lands))


def _access(call: Call[Access], warp: Fragment, mask: int, address: LaneValues, *rest: Any):
    late, effect = _late(warp), call.effect
    if late.mine(warp.state):
        writes = bool(effect.properties.writes)
        releases = isinstance(effect, Updates) and effect.releases
        places = bytes_of(accessed(warp, mask, address, effect))
        late.land(
            warp.state,
            lambda store: releases or writes and store.fences > 0 or store.meets(places),
        )
    return call.run(warp, mask, address, *rest)


def _fence(call: Call[FencesMemory], warp: Fragment, *args: Any):
    result = call.run(warp, *args)
    late = _late(warp)
    if call.effect.order == "sc":
        late.land(warp.state, lambda store: True)
    late.fence(warp.state)
    return result


def speak(steps: Iterable[Taken]) -> bool:
    """Whether warps speak through places that form a ring, and a strong store writes one of these.

    A ring: from place to place by warps that access both, back to the first. Two warps with two
    places are one. Without a ring, no warp can find out that a store has come late.
    """
    places = _Places()
    strong = {
        (taken.cta, taken.warp, touch)
        for taken in steps
        for touch in taken.touched
        if touch.strong and not taken.name
    }
    for cta, warp, touch in strong:
        stores = touch.now is not None and not touch.read
        places.add((cta, warp), touch.cta, touch.at // 4, stores)
    return places.ring()


Who: TypeAlias = tuple[tuple[int, int, int], int]  # a warp: the index of its CTA, its number


class _Places:
    """The words that are accessed as one, and by whom: place -> warps, whether stores write it."""

    def __init__(self) -> None:
        self.of: dict[tuple[object, int], int] = {}
        self.by: list[set[Who]] = []
        self.stored: list[bool] = []

    def add(self, who: Who, cta: object, words: np.ndarray, stores: bool) -> None:
        keys = [(cta, word) for word in np.unique(words).tolist()]
        known = sorted({self.of[key] for key in keys if key in self.of})
        place = known[0] if known else len(self.by)
        if not known:
            self.by.append(set())
            self.stored.append(False)
        for other in known[1:]:
            self.by[place] |= self.by[other]
            self.stored[place] |= self.stored[other]
            self.by[other] = set()
            self.of = {k: place if p == other else p for k, p in self.of.items()}
        self.of.update(dict.fromkeys(keys, place))
        self.by[place].add(who)
        self.stored[place] |= stores

    def ring(self) -> bool:
        """A connected graph of warps and places has a ring if it has as many links as nodes."""
        parts: list[tuple[set[Who], int, bool]] = []  # warps, links less places, stored
        for by, stored in zip(self.by, self.stored):
            if len(by) > 1:
                met = [part for part in parts if part[0] & by]
                parts = [part for part in parts if not part[0] & by]
                warps = by.union(*(others for others, _, _ in met))
                links = len(by) - 1 + sum(more for _, more, _ in met)
                parts.append((warps, links, stored or any(one for _, _, one in met)))
        return any(stored and links >= len(warps) for warps, links, stored in parts)
