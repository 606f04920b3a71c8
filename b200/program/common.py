"""Where in a kernel the warps of a CTA go the same way: no branch on a thread's number decides who
comes there.
"""

from __future__ import annotations

from b200.program.analysis import Block, Op
from b200.program.flow import post_dominators, reachable
from b200.program.module import Special

_NUMBERS = ("tid", "warpid")  # what differs between the warps of a CTA


def common_blocks(blocks: list[Block]) -> set[int]:
    """Blocks that all warps of a CTA come to, as often as each other, if one does: those outside
    the arms of branches whose condition may differ between warps.
    """
    meets = post_dominators(blocks)
    differs: set[str] = set()  # registers
    apart: set[int] = set()
    before = -1
    while before < len(differs) + len(apart):
        before = len(differs) + len(apart)
        for block in blocks:
            for op in block.ops:
                if block.index in apart or _differs(op, differs):
                    differs.update(reg.name for reg in op.dsts)
            if len(block.successors) > 1 and _differs(block.ops[-1], differs):
                for arm in block.successors:
                    apart |= reachable(blocks, arm, meets[block.index])
    return {block.index for block in blocks} - apart


def _differs(op: Op, differs: set[str]) -> bool:
    """Whether what an instruction reads may differ between warps."""
    numbers = (o.name.partition(".")[0] for o in op.ins.operands if isinstance(o, Special))
    return any(reg.name in differs for reg in op.srcs) or any(n in _NUMBERS for n in numbers)
