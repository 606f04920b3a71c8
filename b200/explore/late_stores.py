"""Strong stores that come late: orders of weak memory that a walk carries out.

A walk lets each instruction take effect before the next of its thread. PTX promises less (8.10): a
store may be seen later than what its thread does after it. So a launch whose warps speak through
several places is walked a second time, and each strong store there is an operation under way, of
which `Steps` knows as of others. It lands some time before

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

import numpy as np

from b200.chip.fragment import Fragment, WarpState
from b200.chip.operations import Action, Operation
from b200.effects import Access, Effect, FencesMemory, Stores, Updates
from b200.explore.addresses import Span, accessed
from b200.explore.states import Taken
from b200.explore.stepping import Steps
from b200.explore.touches import Pending, Touches, TouchingWriter
from b200.program.analysis import Op
from b200.program.module import Instr
from b200.registry import Run

NAME = "late store"


@dataclass(frozen=True, slots=True, eq=False)
class LateStore(Operation):
    """A store under way. at: the bytes, each once, of `cta` or of global memory. fenced: a fence of
    its warp has come after it.
    """

    ins: Instr
    at: tuple[tuple[object, np.ndarray], ...]
    releases: bool
    fenced: bool = False

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def meets(self, spans: Iterable[tuple[object, np.ndarray]]) -> bool:
        return any(
            mine is its and bool(np.isin(some, other).any())
            for mine, some in self.at
            for its, other in spans
        )


class LateWriter(TouchingWriter):
    """Translates a kernel so that its strong stores may come late."""

    def _op(self, op: Op):
        effect = op.ins.effect
        if op.entry is not None and isinstance(effect, FencesMemory):
            op = replace(op, made=_fence(effect, op.made))
        super()._op(op)

    def noted(self, ins: Instr, effect: Access, run: Run) -> Run:
        run = super().noted(ins, effect, run)
        if isinstance(effect, Stores) and effect.strong:
            return _store(ins, effect, run)
        return _access(effect, run)


class LateStores(Touches):
    """A watcher that has strong stores come late. steps: those of the walk."""

    writer_type = LateWriter
    steps: Steps

    def mine(self, state: WarpState) -> list[Pending]:
        return [p for p in self.steps.pending if p.name == NAME and p.fragment.state is state]

    def land(self, state: WarpState, which: Callable[[LateStore], bool]) -> None:
        """Let stores of a warp take effect: those that must be over, and those before them."""
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
        before = (p.queue for p in mine[: mine.index(pending)])
        store = pending.queue
        return not any(b.fenced or store.releases or b.meets(store.at) for b in before)

    def fence(self, state: WarpState) -> None:
        for number, pending in enumerate(self.steps.pending):
            if pending.name == NAME and pending.fragment.state is state:
                fenced = replace(pending.queue, fenced=True)
                self.steps.pending[number] = pending._replace(queue=fenced)


def _late(warp: Fragment) -> LateStores:
    late = warp.machine.watcher(LateStores)
    assert late is not None
    return late


def _places(spans: Iterable[Span]) -> tuple[tuple[object, np.ndarray], ...]:
    return tuple(
        (cta, np.unique(at.astype(np.int64)[:, None] + np.arange(nbytes)))
        for at, nbytes, cta in spans
    )


def _store(ins: Instr, effect: Stores, run: Run) -> Run:
    def late(warp: Fragment, mask: int, address: int | np.ndarray, *rest):
        at = _places(accessed(warp, mask, address, effect))
        near = any(cta is not None for cta, _ in at)
        if near and effect.order == "volatile" or not at:
            return run(warp, mask, address, *rest)
        store = LateStore(ins, at, effect.releases)

        def lands() -> None:
            run(warp, mask, address, *rest)

        _late(warp).steps.pending.append(Pending(NAME, warp, ins, store, lands))

    return late


def _access(effect: Access, run: Run) -> Run:
    writes = bool(effect.properties.writes)
    updates_late = isinstance(effect, Updates) and effect.releases

    def noted(warp: Fragment, mask: int, address: int | np.ndarray, *rest):
        late = _late(warp)
        if late.mine(warp.state):
            at = _places(accessed(warp, mask, address, effect))
            late.land(
                warp.state,
                lambda store: updates_late or writes and store.fenced or store.meets(at),
            )
        return run(warp, mask, address, *rest)

    return noted


def _fence(effect: FencesMemory, run: Run) -> Run:
    def noted(warp: Fragment, *args):
        result = run(warp, *args)
        late = _late(warp)
        if effect.order == "sc":
            late.land(warp.state, lambda store: True)
        late.fence(warp.state)
        return result

    return noted


def speak(steps: Iterable[Taken]) -> bool:
    """Whether two warps speak through two places at least, one of which a strong store writes."""
    places = _Places()
    for taken in steps:
        for touch in taken.touched:
            if touch.strong and not taken.name:
                stores = touch.now is not None and not touch.read
                places.add((taken.cta, taken.warp), touch.cta, touch.at // 4, stores)
    return places.speak()


class _Places:
    """The words that are accessed as one, and by whom: place -> warps, warps that store there."""

    def __init__(self) -> None:
        self.of: dict[tuple, int] = {}
        self.by: list[set[tuple]] = []
        self.stored: list[bool] = []

    def add(self, who: tuple, cta: object, words: np.ndarray, stores: bool) -> None:
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

    def speak(self) -> bool:
        shared = [(by, stored) for by, stored in zip(self.by, self.stored) if len(by) > 1]
        return any(
            (one_stored or other_stored) and len(one & other) > 1
            for i, (one, one_stored) in enumerate(shared)
            for other, other_stored in shared[:i]
        )
