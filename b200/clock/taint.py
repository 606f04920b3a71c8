"""Tells whether a kernel's control flow or addresses depend on the tensor core's results.

Without arithmetic, tensor memory holds garbage. That is harmless if the garbage only flows into
values that are stored. It is not if a branch, a guard, an address or a coordinate depends on it.
Values are followed through registers, not through shared memory: a kernel that branches on an
accumulator which it has passed through shared memory must be timed with arithmetic.
"""

from __future__ import annotations

from b200.effects import TensorLoads
from b200.program.analysis import Block, Op, registers_of
from b200.program.module import Addr, Instr


def depends_on_arithmetic(blocks: list[Block]) -> Instr | None:
    """The first instruction whose branch, guard or address depends on a result of tcgen05.ld; None
    if there is none.
    """
    tainted: set[str] = set()
    before = -1
    while len(tainted) != before:
        before = len(tainted)
        for block in blocks:
            for op in block.ops:
                dsts = {r.name for r in op.dsts}
                if not dsts:
                    continue
                if isinstance(op.ins.effect, TensorLoads) or {r.name for r in op.srcs} & tainted:
                    tainted |= dsts
    for block in blocks:
        for op in block.ops:
            if _decides(op) & tainted:
                return op.ins
    return None


def _decides(op: Op) -> set[str]:
    """Registers of an instruction that decide what happens, not what is stored."""
    names = {op.ins.pred.name} if op.ins.pred is not None else set[str]()
    if op.entry is None:
        return names | {r.name for r in op.srcs}
    for operand in op.ins.operands:
        if isinstance(operand, Addr):
            names |= {r.name for r in registers_of(operand)}
    return names
