"""Instructions that the checker does not understand: a launch that executes one is incomplete."""

from __future__ import annotations

from collections.abc import Container, Sequence

from b200.effects import (
    CallsSystem,
    Effect,
    Hints,
    LooksAtLanes,
    PrefetchesTensormap,
    Sleeps,
    Transposes,
)
from b200.program.analysis import Block
from b200.program.module import Instr

# What touches registers alone, or changes and promises nothing in memory.
NEED_NONE = (CallsSystem, Hints, LooksAtLanes, PrefetchesTensormap, Sleeps, Transposes)


def without_rule(
    blocks: Sequence[Block], ruled: Container[type[Effect]]
) -> list[tuple[int, Instr]]:
    """Instructions that have state, need a rule and have none: (index of
    the block, instruction).
    """
    return [
        (block.index, op.ins)
        for block in blocks
        for op in block.ops
        if op.entry is not None
        and op.entry.style != "pure"
        and type(op.ins.effect) not in ruled
        and type(op.ins.effect) not in NEED_NONE
    ]
