"""Tells which policies of the caches a launch asks for: the clock does not time them.

No published measurement separates them on a B200. So the range beside a time is that of all kinds
of kernel, and `eval.py compare` says of two kernels that differ in their policies that it cannot
tell.
"""

from __future__ import annotations

from b200.clock.timeline import Timeline
from b200.effects import Access, Hints
from b200.program.module import Imm, Instr

# What `createpolicy.fractional` makes of all accesses, as CUTLASS has it (TMA::CacheHintSm90).
ENCODED = {0x12F0000000000000: "evict_first", 0x14F0000000000000: "evict_last"}


def of(record: Timeline) -> list[str]:
    """The policies of the instructions that a warp came to (b200/effects)."""
    blocks = set().union(*record.blocks.values())
    found = (asked(op.ins) for block in blocks for op in record.code.structure[block].ops)
    return sorted(set().union(*found))


def asked(ins: Instr) -> set[str]:
    """The policies that an instruction asks for, by its modifiers or by a number."""
    effect = ins.effect
    found = set(effect.policies) if isinstance(effect, (Access, Hints)) else set()
    values = (operand.value for operand in ins.operands if isinstance(operand, Imm))
    return found | {ENCODED[value] for value in values if value in ENCODED}
