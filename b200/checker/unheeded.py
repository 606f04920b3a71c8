"""Looks whose answer decides nothing: at an mbarrier, or at a flag by a strong load.

A test_wait or try_wait may answer that the phase is not over (PTX ISA 9.7.13.15.16), and a load may
find the value from before the release (8.9). Who asks once and goes on has not waited. If nothing
depends on the answer, the same order is legal with the other one, so the look acquires nothing.
"""

from __future__ import annotations

from collections import defaultdict

from b200.effects import Loads, WaitsForPhase
from b200.program.analysis import Block, Op


def unheeded(blocks: list[Block]) -> frozenset[int]:
    """id of each test_wait, try_wait and strong load whose answer ends in registers that nobody
    reads. A name counts as one register wherever it is written, so fewer are found where a name is
    used twice.
    """
    ops = [op for block in blocks for op in block.ops]
    looks = [op for op in ops if _looks(op)]
    if not looks:
        return frozenset()
    readers: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        for register in op.srcs:
            readers[register.name].append(op)
    return frozenset(id(op.ins) for op in looks if not _heeded(op, readers))


def _looks(op: Op) -> bool:
    effect = op.ins.effect
    return isinstance(effect, WaitsForPhase) or isinstance(effect, Loads) and effect.strong


def _heeded(look: Op, readers: dict[str, list[Op]]) -> bool:
    """Whether an instruction that does more than compute reads what comes of the answer."""
    work = [register.name for register in look.dsts]
    seen = set(work)
    while work:
        for op in readers.get(work.pop(), ()):
            if op is look:
                continue  # guarded, it keeps what it found before
            if op.entry is None or op.entry.style != "pure":
                return True
            new = {register.name for register in op.dsts} - seen
            seen |= new
            work += new
    return False
