"""Tells which policies of the caches a launch asks for: the clock does not time them.

No published measurement separates them on a B200. So the range beside a time is that of all kinds
of kernel, and `eval.py compare` says of two kernels that differ in their policies that it cannot
tell.
"""

from __future__ import annotations

from b200.clock.timeline import Timeline
from b200.program.module import Imm, Instr

# What `createpolicy.fractional` makes of all accesses, as CUTLASS has it (TMA::CacheHintSm90).
ENCODED = {0x12F0000000000000: "evict_first", 0x14F0000000000000: "evict_last"}
PRIORITIES = ("evict_first", "evict_last", "no_allocate")
STREAMING = "cs"  # ld.global.cs: likely read once


def of(record: Timeline) -> list[str]:
    """The policies of the instructions that a warp came to, names of PRIORITIES."""
    blocks = set().union(*record.blocks.values())
    found = (asked(op.ins) for block in blocks for op in record.code.structure[block].ops)
    return sorted(set().union(*found))


def asked(ins: Instr) -> set[str]:
    """The policies that an instruction asks for. Of L1 only loads: it keeps no stores."""
    load = ins.mods[0] == "ld"
    levels = ("L1", "L2") if load else ("L2",)
    found = {p for p in PRIORITIES if ins.has(*(f"{level}::{p}" for level in levels))}
    if load and ins.has(STREAMING):
        found.add("evict_first")
    values = (operand.value for operand in ins.operands if isinstance(operand, Imm))
    return found | {ENCODED[value] for value in values if value in ENCODED}
