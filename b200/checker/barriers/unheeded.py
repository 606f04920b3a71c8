"""Looks at an mbarrier whose answer decides nothing.

A test_wait or try_wait may answer that the phase is not over (PTX ISA 9.7.13.15.16), and who asks
once and goes on has not waited. If nothing depends on the answer, the same order is legal with that
answer, so the look acquires nothing.
"""

from __future__ import annotations

from collections import defaultdict

from b200.effects import WaitsForPhase
from b200.program.analysis import Block, Op


def unheeded(blocks: list[Block]) -> frozenset[int]:
    """id of each test_wait and try_wait whose answer ends in registers that nobody reads. A
    register counts as one wherever it is written, so fewer are found where a name is used twice.
    """
    ops = [op for block in blocks for op in block.ops]
    looks = [op for op in ops if isinstance(op.ins.effect, WaitsForPhase)]
    if not looks:
        return frozenset()
    readers: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        for register in op.srcs:
            readers[register.name].append(op)
    return frozenset(id(op.ins) for op in looks if not _heeded(op, readers))


def _heeded(look: Op, readers: dict[str, list[Op]]) -> bool:
    """Whether an instruction that does more than compute reads what comes of the answer."""
    work = [register.name for register in look.dsts]
    seen = set(work)
    while work:
        for op in readers.get(work.pop(), ()):
            if op.entry is None or op.entry.style != "pure":
                return True
            new = {register.name for register in op.dsts} - seen
            seen |= new
            work += new
    return False
