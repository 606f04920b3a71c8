"""What each step of a walk reads and writes of the memory that several warps see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from b200.checker.steps import Call
from b200.chip import operations as ops
from b200.chip.fragment import Fragment
from b200.chip.machine import Machine
from b200.chip.memory.addressing import space_of
from b200.chip.operations import Action, Operation
from b200.chip.state import CTA
from b200.chip.watcher import Watcher
from b200.effects import Access, Effect
from b200.explore.addresses import Bytes, Span, accessed, bytes_of, filled, sources, targets
from b200.program.analysis import Op
from b200.program.module import Instr
from b200.program.writer import Writer
from b200.registry import LaneValues, Run

# PTX calls them relaxed: 9.7.9.12, 9.7.13.7, and the reductions of 9.7.9.25 and 9.7.9.27.
RELAXED = (ops.StAsync, ops.RedAsync, ops.BulkReduce, ops.BulkReduceToPeer, ops.TmaReduce)


@dataclass(frozen=True, eq=False)
class Touch:
    """An access of a step; equal ones are one object.

    cta: whose shared memory it is, None for global memory. at: its bytes, each once, in order.
    read: whether it reads them. now, changed: their values behind it and which of them it has
    changed, None if it does not write. strong: as PTX ISA 8.2 has it.
    """

    ins: Instr
    cta: CTA | None
    at: np.ndarray
    read: bool
    now: np.ndarray | None
    changed: np.ndarray | None
    strong: bool

    def disagrees(self, other: Touch) -> bool:
        """Whether it matters which of the two comes first, and one of them is weak (8.7.1)."""
        if self.cta is not other.cta or self.strong and other.strong:
            return False
        if self.at[-1] < other.at[0] or other.at[-1] < self.at[0]:
            return False  # np.intersect1d costs much more
        _, mine, its = np.intersect1d(self.at, other.at, True, return_indices=True)
        if not mine.size:
            return False
        if self.now is not None and other.now is not None:
            if (self.now[mine] != other.now[its]).any():
                return True
        return self._changes(mine, other) or other._changes(its, self)

    def _changes(self, which: np.ndarray, other: Touch) -> bool:
        return other.read and self.changed is not None and bool(self.changed[which].any())


class Pending(NamedTuple):
    """An asynchronous operation under way. queue: operations of one queue keep their order."""

    name: str
    fragment: Fragment
    ins: Instr
    queue: Any
    apply: Action


class TouchingWriter(Writer):
    """Translates a kernel so that what it accesses is noted."""

    def _op(self, op: Op) -> None:
        effect = op.ins.effect
        if op.entry is not None and isinstance(effect, Access) and not effect.private:
            op = replace(op, made=self.noted(op.ins, effect, op.made))
        elif op.entry is not None and effect.properties.lanes and effect.properties.sized:
            op = replace(op, made=partial(_ranges, Call(op.ins, effect, op.made)))
        super()._op(op)

    def noted(self, ins: Instr, effect: Access, run: Run) -> Run:
        """The run function of an access of lanes, noted."""
        return partial(_access, Call(ins, effect, run))


class Touches(Watcher):
    """Notes what is accessed. step: by the present step, in order."""

    writer_type = TouchingWriter

    def __init__(self) -> None:
        self.step: list[Touch] = []
        self.known: dict[tuple[object, ...], Touch] = {}

    def starts(self, warp: Fragment, effect: Effect) -> None:
        """A step begins with an instruction."""

    def may_come(self, pending: Pending) -> bool:
        """Whether an operation under way may take effect now."""
        return True

    def issued(self, operation: Operation, warp: Fragment, apply: Action) -> Action:
        ins = self.machine.code.structure[warp.pc].ops[0].ins
        strong = isinstance(operation, RELAXED)
        read = list(sources(operation, warp.cta))
        written = list(targets(operation, warp.cta))

        def noted() -> None:
            self.note(ins, bytes_of(read), strong)
            places = bytes_of(written)
            before = self.contents(places)
            apply()
            self.note(ins, places, strong, before, False)

        return noted

    def contents(self, places: list[Bytes]) -> list[np.ndarray]:
        """What places contain."""
        return [self._contents(at, cta) for cta, at in places]

    def note(
        self,
        ins: Instr,
        places: list[Bytes],
        strong: bool,
        before: list[np.ndarray] | None = None,
        read: bool = True,
    ) -> None:
        """Note an access. before: what a write has found there."""
        for number, (cta, at) in enumerate(places):
            now = changed = None
            if before is not None:
                now = self._contents(at, cta)
                changed = now != before[number]
            told = (x.tobytes() for x in (at, now, changed) if x is not None)
            key = ins.key, cta, read, strong, *told
            touch = self.known.get(key)
            if touch is None:
                touch = self.known[key] = Touch(ins, cta, at, read, now, changed, strong)
            self.step.append(touch)

    def _contents(self, at: np.ndarray, cta: CTA | None) -> np.ndarray:
        found = np.zeros(at.size, np.uint8)
        if cta is not None:
            inside = at < cta.smem.size  # the instruction itself refuses the others
            found[inside] = cta.smem.u8[at[inside]]
            return found
        rest = np.arange(at.size)
        while rest.size:
            region = self.machine.memory.find(int(at[rest[0]]), 1)
            if region is None:
                break
            inside = (at[rest] >= region.base) & (at[rest] < region.base + region.size)
            found[rest[inside]] = region.u8[at[rest[inside]] - region.base]
            rest = rest[~inside]
        return found


def _touches(machine: Machine) -> Touches:
    touches = machine.watcher(Touches)
    assert touches is not None
    return touches


def _access(call: Call[Access], warp: Fragment, mask: int, address: LaneValues, *rest: Any):
    effect, touches = call.effect, _touches(warp.machine)
    reads, writes = (bool(s) for s in (effect.properties.reads, effect.properties.writes))
    places = bytes_of(accessed(warp, mask, address, effect))
    before = touches.contents(places) if writes else None
    result = call.run(warp, mask, address, *rest)
    touches.note(call.ins, places, effect.strong, before, reads)
    return result


def _ranges(
    call: Call[Effect],
    warp: Fragment,
    mask: int,
    address: LaneValues,
    size: LaneValues,
    *rest: Any,
) -> None:
    """Likewise of weak stores of as many bytes as an operand says."""
    touches = _touches(warp.machine)
    spans: list[Span] = []
    for some, at, store in filled(space_of(call.ins), mask, address, size):
        spans += accessed(warp, some, at, store)
    places = bytes_of(spans)
    before = touches.contents(places)
    call.run(warp, mask, address, size, *rest)
    touches.note(call.ins, places, False, before, False)
