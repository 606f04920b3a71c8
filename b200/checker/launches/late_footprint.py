"""The footprint of a launch beside which nothing runs, made when later work asks for it.

A launch of a program with several queues leaves a footprint, for work that may come and is not
ordered after it. Where nothing runs that it could conflict with, the rules for global memory have
noted all that it needs: who has written and read which words. So the launch runs as any other, its
clusters follow, abreast as well, and what was noted becomes a footprint when somebody looks.
"""

from __future__ import annotations

import numpy as np

from b200 import sparse
from b200.checker.launches.dependent_launch import UNIT, Footprint, Found, Touched
from b200.checker.memory.global_memory import GlobalRules
from b200.checker.memory.global_reads import WORD
from b200.checker.memory.global_shadow import UNIT as WRITTEN
from b200.chip.global_memory import GlobalMemory
from b200.effects import Access, Copies, Discards, Stores, Updates
from b200.program.module import Instr
from b200.program.translate import Translated

LARGE = 16 << 20  # bytes of shadows, which a footprint has in fewer


def can_be_late(code: Translated) -> bool:
    """Whether the rules note all accesses of a kernel: none of copies, nor writes of bytes."""
    ops = (op.ins for block in code.structure for op in block.ops if op.entry is not None)
    return all(map(_is_noted, ops))


def _is_noted(ins: Instr) -> bool:
    effect = ins.effect
    if isinstance(effect, (Copies, Discards)):
        return False
    if isinstance(effect, (Stores, Updates)) and isinstance(effect, Access):
        return effect.bits >= 8 * WRITTEN or effect.space.startswith(("shared", "local"))
    return True


def late_footprint(kernel: str, rules: GlobalRules, memory: GlobalMemory) -> Footprint:
    """Of a launch that has ended. rules: what was noted of it."""
    writes, shadows, reads = rules.shadow.writes, dict(rules.shadow.cells), rules.reads
    found = (memory.find(base, 1) for base in {*shadows, *reads.bases()})
    regions = [region for region in found if region is not None]

    def places() -> Found:
        """What the rules know of the launch."""
        instructions: list[Instr | None] = [None]
        numbers: dict[int, int] = {}

        def number(ins: Instr) -> int:
            if id(ins) not in numbers:
                numbers[id(ins)] = len(instructions)
                instructions.append(ins)
            return numbers[id(ins)]

        by_write = np.array([0 if w is None else number(w.ins) for w in writes], np.uint16)
        by_read = np.array([0 if r is None else number(r.ins) for r in reads.reads], np.uint16)
        places = {}
        for region in regions:
            entries = -(-region.size // UNIT)
            written, read = (sparse.zeros(entries, np.uint16) for _ in range(2))
            if (shadow := shadows.get(region.base)) is not None:
                at = np.flatnonzero(shadow)
                written[at * WRITTEN // UNIT] = by_write[shadow[at]]
            for who, offsets, nbytes in reads.all_of(region):
                offsets = offsets[(offsets >= 0) & (offsets + nbytes <= region.size)]
                words = offsets[..., None] // WORD + np.arange(-(-nbytes // WORD))
                read[words * WORD // UNIT] = by_read[who]
            places[region.base] = Touched(region, written, read)
        return places, instructions

    footprint = Footprint(kernel, places)
    if reads.is_large or sum(shadow.nbytes for shadow in shadows.values()) > LARGE:
        _ = footprint.places
    return footprint
