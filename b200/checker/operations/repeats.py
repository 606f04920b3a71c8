"""Rule: an asynchronous operation that several lanes of a warp issue is carried out once for each.

A thread, not a warp, issues copies, reductions and tensor-core operations (PTX ISA 9.7.9.25,
9.7.16.10): if all lanes reach one, all of them issue it. That is an error where the repetition
changes the result: a sum, an accumulating MMA, a cancelled launch, bytes that nobody announced.
Elsewhere the same bytes are moved again to the same place, which only takes time.

The rule passes over tensor stores by all lanes, because compilers emit them (the CuTe DSL does).
Commits are arrivals, which arrivals.py checks. And tile::scatter4 must not store two different rows
to one place (8.7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import ClusterState
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, NOTE
from b200.chip import operations as ops
from b200.chip.copies import tma_box
from b200.chip.copies.tma import TensorBoxes
from b200.chip.describe import mnemonic
from b200.chip.tensor.mma_operands import SharedOperand
from b200.effects import Copies
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.fragment import Fragment

IDEMPOTENT = ("min", "max", "and", "or")  # reductions


@dataclass
class Repeat:
    """One operation that several lanes of one execution issue. lanes: the most of them."""

    ins: Instr
    agent: Agent
    operation: ops.Operation
    lanes: int = 0


class Repeats:
    """The rule for one launch. found: instruction -> the repeats seen so far. issue: the execution
    of an instruction and the copy to global memory that a lane issues now: equal for lanes of one
    execution that issue the same; None for other operations.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.found: dict[int, Repeat] = {}
        self.execution: tuple = (None, None, 0)  # instruction, fragment, executions of its block
        self.first: ops.Operation | None = None
        self.counts: dict[tuple, int] = {}
        self.executions = 0
        self.issue: tuple[int, tuple] | None = None

    def issued(self, warp: Fragment, operation: ops.Operation) -> None:
        """A lane issues an operation. The lanes of one execution come one after the other."""
        ins, fragment, hits = self.execution
        now = warp.machine.hits[warp.pc]
        new = ins is not self.observer.ins or fragment is not warp or hits != now
        self.executions += new
        self.issue = self._issue(operation)
        if new:
            self.execution = self.observer.ins, warp, now
            self.first, self.counts = operation, {}
            return
        if self.first is not None:
            self.counts[_key(self.first)] = 1
            self.first = None
        key = _key(operation)
        lanes = self.counts[key] = self.counts.get(key, 0) + 1
        if lanes > 1 and key[0] is not None:
            ins = self.observer.ins
            assert ins is not None  # whatever issues an operation is observed
            repeat = self.found.setdefault(
                id(ins), Repeat(ins, self.observer.agent(warp), operation)
            )
            repeat.lanes = max(repeat.lanes, lanes)

    def _issue(self, operation: ops.Operation) -> tuple[int, tuple] | None:
        match operation:
            case ops.TmaStore():
                box = operation.access.address, _boxes(operation), operation.offset
                return self.executions, box
            case ops.BulkStore():
                return self.executions, (operation,)
        return None

    def finish(self) -> None:
        """Report what was seen so far. By now it is known which bytes were announced."""
        for repeat in self.found.values():
            self._tell(repeat)
        self.found.clear()

    def _tell(self, repeat: Repeat) -> None:
        ins, effect = repeat.ins, self._effect(repeat)
        self.observer.found(
            "protocol",
            f"{repeat.lanes} lanes of {words.name(repeat.agent)} issue the same {mnemonic(ins)}"
            + (f": {effect}" if effect else ", which one would do"),
            f"this access: {words.line(ins)}: {ins.text}",
            "an asynchronous operation is issued by each lane that comes to it",
            "missing: elect one lane (elect.sync, or a comparison with the thread's index) "
            "around it",
            at=ins,
            severity=ERROR if effect else NOTE,
        )

    def _effect(self, repeat: Repeat) -> str:
        """The change that the repetition makes to the result, in words; "" if there is none."""
        operation, ins = repeat.operation, repeat.ins
        if isinstance(operation, (ops.BulkReduce, ops.BulkReduceToPeer, ops.TmaReduce)):
            once = isinstance(ins.effect, Copies) and ins.effect.operation in IDEMPOTENT
            return "" if once else f"its values are combined {repeat.lanes} times"
        if isinstance(operation, ops.Mma) and operation.mma.accumulate:
            return f"its product is added {repeat.lanes} times"
        if isinstance(operation, ops.TmemShift):
            return f"the rows are shifted {repeat.lanes} times"
        if isinstance(operation, ops.TryCancel):
            return "each may cancel a cluster, and one response is left of them all"
        if isinstance(operation, ops.BulkToPeer):
            places = (operation.place,)
        elif isinstance(operation, (ops.TmaLoad, ops.BulkLoad)):
            places = operation.places
        else:
            return ""
        if _too_many_bytes(repeat.agent.state, places):
            return "it brings its bytes once for each, and expect_tx announced fewer"
        return ""


def _too_many_bytes(cluster: ClusterState, places: tuple[ops.StorePlace, ...]) -> bool:
    """Whether copies bring more bytes to one of the places' mbarriers than were announced."""
    for place in places:
        mbarrier = place.signal.mbarriers.get(place.mbarrier)
        barrier = cluster.barrier(mbarrier) if mbarrier is not None else None
        if barrier is not None and barrier.signalled > barrier.announced:
            return True
    return False


def _key(operation: ops.Operation) -> tuple:
    """A key that is equal for operations that do the same; (None,) where the rule passes over."""
    match operation:
        case ops.BulkReduce() | ops.BulkReduceToPeer() | ops.BulkStore() | ops.BulkLoad():
            return (operation,)
        case ops.BulkToPeer() | ops.TryCancel() | ops.TmemShift():
            return (operation,)
        case ops.TmaLoad():
            return (ops.TmaLoad, operation.access.address, _boxes(operation), operation.places)
        case ops.TmaReduce():
            return (ops.TmaReduce, operation.access.address, _boxes(operation), operation.offset)
        case ops.Mma():
            op = operation.mma
            a = op.a.matrix if isinstance(op.a, SharedOperand) else op.a
            return (ops.Mma, a, op.b.matrix, op.acc.taddr, op.sfa, op.sfb)
        case ops.TmemCopy():
            return (ops.TmemCopy, operation.matrix, operation.lanes, operation.column)
    return (None,)


def _boxes(operation: ops.TmaLoad | ops.TmaReduce | ops.TmaStore) -> tuple:
    return tuple(map(tuple, operation.access.boxes))


def rows_twice(observer: Observer, agent: Agent, store: ops.TmaStore, ins: Instr) -> None:
    """Check that a TMA store, when it is issued, stores no two different rows to one place."""
    access, boxes = store.access, [tuple(box) for box in store.access.boxes]
    if len(set(boxes)) == len(boxes):
        return
    t, smem = access.tensormap, agent.cta.smem
    rows = np.split(tma_box.get_shared(t, smem, store.offset, access.rows), len(boxes))
    first: dict[tuple, np.ndarray] = {}
    for box, row in zip(boxes, rows, strict=True):
        stored = _stored(access, box, row)
        if not np.array_equal(first.setdefault(box, stored), stored):
            observer.found(
                "global",
                "one tile::scatter4 stores different values to a row twice",
                f"this access: {words.line(ins)}, by {words.name(agent)}",
                f"row {box[1]} of {observer.operand(t.address)}, at element {box[0]}; its rows "
                f"are {', '.join(str(row) for _, row in boxes)}",
                "missing: four different rows, or a row outside of the tensor for those that "
                "are not to be stored",
                at=ins,
            )
            return


def _stored(access: TensorBoxes, box: tuple[int, ...], row: np.ndarray) -> np.ndarray:
    """The bytes of a row that come into the tensor."""
    found = [row[:0]]

    def keep(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        found.append(new)
        return old

    tma_box.store(access.tensormap, access.region, list(box), row, keep)
    return found[-1]
