"""Operations of the tensor core, observed: MMAs, copies to tensor memory, shifts, commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.agent import Agent
from b200.checker.barriers.signals import Signals
from b200.checker.finding import PORTABILITY
from b200.checker.launches import lifetime
from b200.checker.memory.shared_memory import SharedRules
from b200.checker.streams import NEVER
from b200.checker.tensor import collectors, tensor_shadow
from b200.checker.tensor.tensor_shadow import (
    ALL,
    HALVES,
    LOWER_HALVES,
    ROWS,
    Halves,
    only,
    place_of_sum,
)
from b200.checker.vector_clocks import HB, TENSOR
from b200.chip import operations as ops
from b200.chip.tensor.descriptors import CHUNK, PERIOD
from b200.chip.tensor.mma_operands import TMEM_COLUMNS_OF_A, SharedOperand, TensorOperand
from b200.chip.tensor.tmem import split
from b200.hardware import TMEM_LANES
from b200.registry import lanes_text

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.checker.tensor.tensor_memory import TensorRules
    from b200.chip.state import CTA
    from b200.chip.tensor.descriptors import MatrixDescriptor, Tile
    from b200.chip.tensor.mma import DecodedMma
    from b200.chip.tensor.mma_operands import ScaleFactors


def _halves_of_a(a: TensorOperand) -> slice:
    return slice(a.taddr >> 20, HALVES, 2) if a.half else ALL


class CoreOperations:
    """The rules of one launch for what the tensor core reads and writes."""

    def __init__(self, observer: Observer, signals: Signals):
        self.observer, self.signals = observer, signals

    def _core_record(self, agent: Agent, members: tuple, kind: str, text: str) -> Record:
        agent.roles.add("MMA")
        stream = agent.stream("tensor_core")
        stream.lanes |= self.observer.lanes()
        record = Record(agent, self.observer.ins, stream.component, stream.next(), kind, text)
        record.behind = stream.multiplied
        if kind == "mma":
            stream.multiplied = record.step
        agent.state.add(record)
        for cta in members:
            if cta is not agent.cta:
                lifetime.reached(self.observer, record, cta)
        return record

    def _mma(self, agent: Agent, operation: ops.Mma, apply: ops.Action) -> None:
        observer, op, members = self.observer, operation.mma, operation.members
        text = f"multiplies {op.d.m} x {op.d.n}{' and accumulates' if op.accumulate else ''}"
        record = self._core_record(agent, members, "mma", text)
        record.sum = op.acc, op.d.kind.k
        for name, operand in (("A", op.a), ("B", op.b)):
            if isinstance(operand, SharedOperand):
                observer.descriptors.see(record, name, operand.matrix, not operand.mn_major)
                observer.versions.see(record, name, operand.matrix)
        collectors.multiplied(observer, record, record.ins.effect, op, members)
        observer.products.multiplied(record, members[0], op)
        if observer.stores is not None:
            observer.stores.mma(op.d.m, op.d.n, len(members))
        for i, cta in enumerate(members):
            for operand in (op.a, op.b):
                self._read_operand(record, cta, operand, members)
            tensor = observer.tensor(cta)
            for sf in (op.sfa, op.sfb):
                if sf is not None:
                    self._read_scales(record, tensor, sf)
            halves, columns, lanes = place_of_sum(op, i)
            if op.accumulate:
                tensor.accumulate(record, halves, columns, lanes)
            self._own_operands(record, tensor, op, halves, columns)
            tensor.write(record, halves, columns, lanes)
        if op.shift_a and isinstance(op.a, TensorOperand):
            row, column = split(op.a.taddr)
            self._shift(agent, members, row, column, "shifts the rows of A")

    def _own_operands(
        self, record: Record, tensor: TensorRules, op: DecodedMma, halves: Halves, columns: slice
    ) -> None:
        """Report an MMA whose sum lies over what it reads itself in tensor memory. Nothing in PTX
        says that all of that is read before the first column of D is written.
        """
        found = [("the scale factors of A", op.sfa), ("the scale factors of B", op.sfb)]
        places = [(name, sf.column, sf.columns) for name, sf in found if sf is not None]
        if isinstance(op.a, TensorOperand):
            if np.isin(ROWS[_halves_of_a(op.a)], ROWS[halves]).any():
                places.append(("A", op.a.taddr & 0xFFFF, TMEM_COLUMNS_OF_A))
        for name, first, n in places:
            if first < columns.stop and columns.start < first + n:
                self.observer.report(
                    "product",
                    f"{words.thing(record)} writes its accumulator over {name}, which it reads",
                    f"this access: {words.act(record)}",
                    f"D in {tensor.place(columns)}; {name} in columns [{first}, {first + n})",
                    "missing: columns of their own for the accumulator",
                    of=(record, None),
                    severity=PORTABILITY,
                )

    @staticmethod
    def _read_scales(record: Record, tensor: TensorRules, sf: ScaleFactors):
        """Scale factors of the rows that there are: 16 of 32 at the end (PTX ISA 9.7.16.10.7)."""
        last = sf.column + sf.columns - 1
        half = sf.copies == 4 and 0 < sf.rows % 32 <= 16
        tensor.read(record, ALL, slice(sf.column, last if half else last + 1))
        if half:
            tensor.read(record, LOWER_HALVES, slice(last, last + 1))

    def _read_operand(
        self, record: Record, cta: CTA, operand: SharedOperand | TensorOperand, members: tuple
    ) -> None:
        if isinstance(operand, SharedOperand):
            others = [self.observer.shared(member) for member in members if member is not cta]
            rows = None if operand.mn_major else others
            self._read_tile(record, cta, operand.matrix, operand.tile, rows)
        else:
            column = operand.taddr & 0xFFFF
            columns = slice(column, column + TMEM_COLUMNS_OF_A)
            self.observer.tensor(cta).read(record, _halves_of_a(operand), columns)

    def _read_tile(
        self,
        record: Record,
        cta: CTA,
        matrix: MatrixDescriptor,
        tile: Tile,
        rows: Sequence[SharedRules] | None = (),
    ) -> None:
        origin = matrix.start - matrix.start % PERIOD
        observer = self.observer
        rules = observer.shared(cta)
        low, high = (origin + tile.low) // CHUNK, (origin + tile.high) // CHUNK - 1
        rules.async_read(
            record,
            tile.chunks + origin // CHUNK,
            low,
            high,
            rules.shadow.core,
            lane=observer.lane,
            rows=rows,
        )

    def _tmem_copy(self, agent: Agent, copy: ops.TmemCopy, apply: ops.Action) -> None:
        members, shape, column = copy.members, copy.shape, copy.column
        record = self._core_record(
            agent,
            members,
            "cp",
            f"copies {shape.rows} rows of {shape.nbytes} bytes to tensor memory",
        )
        observer = self.observer
        halves, lanes = tensor_shadow.of(copy.lanes)
        observer.descriptors.see(record, "the source", copy.matrix, True)
        observer.versions.see(record, "the source", copy.matrix)
        for cta in members:
            self._read_tile(record, cta, copy.matrix, copy.tile)
            columns = slice(column, column + shape.nbytes // 4)
            if lanes is None:
                observer.products.copied(record, cta, copy.matrix.start, columns)
            observer.tensor(cta).write(record, halves, columns, lanes)

    def _tmem_shift(self, agent: Agent, shift: ops.TmemShift, apply: ops.Action) -> None:
        self._shift(agent, shift.members, shift.row, shift.column, "shifts rows of tensor memory")

    def _shift(self, agent: Agent, members: tuple, row: int, column: int, text: str) -> None:
        """Rows from lane `row` on move down by one, in each 32 lanes."""
        record = self._core_record(agent, members, "shift", text)
        columns = slice(column, column + 8)
        lanes = np.arange(TMEM_LANES)
        moved = lanes >= row
        sources, targets = (only(moved & (lanes % 32 != kept)) for kept in (0, 31))
        for cta in members:
            tensor = self.observer.tensor(cta)
            halves, of = sources
            tensor.read(record, halves, columns, lanes=of)
            halves, of = targets
            tensor.write(record, halves, columns, of)

    def _commit(self, agent: Agent, commit: ops.Commit, apply: ops.Action):
        agent.roles.add("MMA")
        observer, ins = self.observer, self.observer.executed
        observer.arrivals.commits(agent.cta, commit, ins)
        stream = agent.stream("tensor_core")
        if stream.lanes and not stream.lanes & observer.lanes():
            self._of_other_lanes(agent, stream.lanes)
        clock = self.signals.behind(agent, stream)
        np.maximum(clock[TENSOR], clock[HB], out=clock[TENSOR])  # a commit has the fence in it
        barriers = [self.signals.known_barrier(agent, cta, commit.offset) for cta in commit.targets]
        for barrier in filter(None, barriers):
            barrier.answered(agent, ins)
        arrivals = []
        text = "arrives on an mbarrier of another CTA"
        for cta, barrier in zip(commit.targets, barriers, strict=True):
            if cta is not agent.cta:
                record = Record(agent, ins, stream.component, stream.issued, "commit", text)
                lifetime.reached(observer, record, cta)
                if barrier is not None:
                    component = barrier.component
                    arrival = Record(agent, ins, component, NEVER, "commit", text, barrier)
                    agent.state.arrivals[cta.rank][component] = arrival
                    arrivals.append((arrival, barrier))
        return self.signals.signalling(
            apply, clock, barriers, arrivals, "commit", agent, arrives=True
        )

    def _of_other_lanes(self, agent: Agent, issuers: int) -> None:
        """Report a commit that tracks nothing: it is of what its own thread has issued."""
        ins, lane = self.observer.ins, self.observer.lane
        self.observer.found(
            "protocol",
            "tcgen05.commit by a lane that has issued nothing for the tensor core, while other "
            "lanes of its warp have",
            f"this commit: {words.line(ins)}, by lane {lane} of {words.name(agent)}",
            f"operations of the tensor core were issued by {lanes_text(issuers)}",
            "a commit tracks what its own thread has issued: by the PTX ISA its mbarrier may "
            "complete before theirs has",
            "missing: the commit by the lane that issues the operations",
            at=ins,
            severity=PORTABILITY,
        )


# Rule of each operation: rule(the rules, agent, operation, apply) returns the effect to be carried
# out in place of `apply`, None to leave it.
RULES: dict[type[ops.Operation], Callable[..., ops.Action | None]] = {
    ops.Mma: CoreOperations._mma,
    ops.TmemCopy: CoreOperations._tmem_copy,
    ops.TmemShift: CoreOperations._tmem_shift,
    ops.Commit: CoreOperations._commit,
}
