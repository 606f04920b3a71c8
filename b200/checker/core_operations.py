"""Operations of the tensor core, observed: MMAs, copies to tensor memory, shifts, commits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from b200.checker.accesses import Record
from b200.checker.shared_memory import SharedRules
from b200.checker.signals import Signals
from b200.checker.tensor_memory import ALL, LOWER_HALVES
from b200.checker.vector_clocks import HB, NEVER, TENSOR, Agent
from b200.chip.operations import (
    Commit,
    Effect,
    Mma,
    TmemCopy,
    TmemShift,
)
from b200.chip.tensor.descriptors import CHUNK, PERIOD
from b200.chip.tensor.mma_operands import SharedOperand
from b200.chip.tensor.tmem import split


class CoreOperations(Signals):
    """The part of the Observer that records what the tensor core reads and writes."""

    def _core_record(self, agent: Agent, members, kind: str, text: str) -> Record:
        agent.roles.add("MMA")
        stream = agent.stream("tensor_core")
        record = Record(agent, self.ins, stream.component, stream.next(), kind, text)
        self.state(agent.cta).add(record)
        for cta in members:
            if cta is not agent.cta:
                self.reach(record, cta)
        return record

    def _mma(self, agent: Agent, operation: Mma, apply: Effect):
        op, members = operation.mma, operation.members
        text = f"multiplies {op.d.m} x {op.d.n}{' and accumulates' if op.accumulate else ''}"
        record = self._core_record(agent, members, "mma", text)
        for name, operand in (("A", op.a), ("B", op.b)):
            if isinstance(operand, SharedOperand):
                self.descriptors.see(record, name, operand.matrix, not operand.mn_major)
                self.versions.see(record, name, operand.matrix)
        self.products.multiplied(record, members[0], op)
        if self.stores is not None:
            self.stores.mma(op.d.m, op.d.n, len(members))
        for cta in members:
            for operand in (op.a, op.b):
                self._read_operand(record, cta, operand, members)
            tensor = self.tensor(cta)
            for sf in (op.sfa, op.sfb):
                if sf is not None:
                    self._read_scales(record, tensor, sf)
            row, column = split(op.acc.taddr)
            halves = slice(row // 16, 8, 2) if op.acc.half else ALL
            columns = slice(column, column + op.acc.columns // op.acc.parts)
            if op.accumulate:
                tensor.accumulate(record, halves, columns)
            tensor.write(record, halves, columns)

    @staticmethod
    def _read_scales(record: Record, tensor, sf):
        """The scale factors of the rows that there are: 16 of a column's 32 where there are no more
        (PTX ISA 9.7.16.10.7).
        """
        last = sf.column + sf.columns - 1
        half = sf.copies == 4 and 0 < sf.rows % 32 <= 16
        tensor.read(record, ALL, slice(sf.column, last if half else last + 1))
        if half:
            tensor.read(record, LOWER_HALVES, slice(last, last + 1))

    def _read_operand(self, record: Record, cta, operand, members):
        if isinstance(operand, SharedOperand):
            others = [self.shared(member) for member in members if member is not cta]
            rows = None if operand.mn_major else others
            self._read_tile(record, cta, operand.matrix, operand.tile, rows)
        else:
            column = operand.taddr & 0xFFFF
            halves = slice(operand.taddr >> 20, 8, 2) if operand.half else ALL
            self.tensor(cta).read(record, halves, slice(column, column + 8))

    def _read_tile(
        self, record: Record, cta, matrix, tile, rows: Sequence[SharedRules] | None = ()
    ):
        origin = matrix.start - matrix.start % PERIOD
        rules = self.shared(cta)
        low, high = (origin + tile.low) // CHUNK, (origin + tile.high) // CHUNK - 1
        rules.strict = self.strict
        rules.async_read(
            record,
            tile.chunks + origin // CHUNK,
            low,
            high,
            rules.shadow.core,
            lane=self.lane,
            rows=rows,
        )

    def _tmem_copy(self, agent: Agent, copy: TmemCopy, apply: Effect):
        members, shape, column = copy.members, copy.shape, copy.column
        record = self._core_record(
            agent,
            members,
            "cp",
            f"copies {shape.rows} rows of {shape.nbytes} bytes to tensor memory",
        )
        self.descriptors.see(record, "the source", copy.matrix, True)
        self.versions.see(record, "the source", copy.matrix)
        for cta in members:
            self._read_tile(record, cta, copy.matrix, copy.tile)
            columns = slice(column, column + shape.nbytes // 4)
            self.products.copied(record, cta, copy.matrix.start, columns)
            self.tensor(cta).write(record, ALL, columns)

    def _tmem_shift(self, agent: Agent, shift: TmemShift, apply: Effect):
        record = self._core_record(agent, shift.members, "shift", "shifts rows of tensor memory")
        row, column = shift.row, shift.column
        for cta in shift.members:
            self.tensor(cta).read(
                record, slice(row // 16, 8), slice(column, column + 8), keep=False
            )
            self.tensor(cta).write(record, slice(row // 16, 8), slice(column, column + 8))

    def _commit(self, agent: Agent, commit: Commit, apply: Effect):
        agent.roles.add("MMA")
        self.arrivals.commits(agent.cta, commit, self.ins)
        stream = agent.stream("tensor_core")
        clock = self._with(agent, stream.component, stream.issued, self.lanes(), self.ins)
        np.maximum(clock[TENSOR], clock[HB], out=clock[TENSOR])  # a commit has the fence in it
        barriers = [self._known_barrier(agent, cta, commit.offset) for cta in commit.targets]
        for barrier in filter(None, barriers):
            barrier.answered(agent, self.ins)
        arrivals = []
        text = "arrives on an mbarrier of another CTA"
        for cta, barrier in zip(commit.targets, barriers, strict=True):
            if cta is not agent.cta:
                self.reach(
                    Record(agent, self.ins, stream.component, stream.issued, "commit", text), cta
                )
                if barrier is not None:
                    arrival = Record(
                        agent, self.ins, barrier.component, NEVER, "commit", text, barrier
                    )
                    self.state(cta).arrivals[cta.rank][barrier.component] = arrival
                    arrivals.append((arrival, barrier))
        return self._signalling(apply, clock, barriers, arrivals, "commit", agent, arrives=True)
