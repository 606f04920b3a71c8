"""Instructions that the checker does not understand: a launch that executes one is incomplete."""

from __future__ import annotations

from collections.abc import Sequence

from b200.program.analysis import Block
from b200.program.module import Instr

Words = tuple[str, ...]  # the leading words of an opcode

# What touches registers alone, or changes and promises nothing in memory.
NEED_NONE: tuple[Words, ...] = (
    *(("activemask",), ("elect",), ("isspacep",), ("match",), ("redux",), ("shfl",), ("vote",)),
    *(
        ("mma",),
        ("movmatrix",),
        ("createpolicy",),
        ("prefetch",),
        ("prefetchu",),
        ("applypriority",),
    ),
    *(("nanosleep",), ("griddepcontrol",), ("call",)),
)


def without_rule(blocks: Sequence[Block], ruled: Sequence[Words]) -> list[tuple[int, Instr]]:
    """Instructions that have state, need a rule and have none: (index of
    the block, instruction).
    """
    known = (*ruled, *NEED_NONE)
    return [
        (block.index, op.ins)
        for block in blocks
        for op in block.ops
        if op.entry is not None
        and op.entry.style != "pure"
        and not any(op.ins.mods[: len(words)] == words for words in known)
    ]
