"""Tells the kind of kernel of a launch, and the policies of the caches that it asks for, from what
the launch did.

The clock's errors are given for each kind (spread.py). It does not time policies: no published
measurement separates them on a B200. So the range beside a time is that of all kinds of kernel, and
`eval.py compare` says of two kernels that differ in their policies that it cannot tell.
"""

from __future__ import annotations

from b200.chip.memory.cache_policies import PRIORITIES
from b200.clock.timeline import Timeline
from b200.effects import Access, Hints, Multiplies
from b200.program.module import Imm, Instr

# Name -> what tells it. A launch is of the first kind that it fits.
KINDS = {
    "CUDA cores": "no tcgen05.mma",
    "one stage": "no CTA loads a k-tile ahead of the MMAs that wait for the one before",
    "split K": "CTAs add sums up: floats by red, atom or cp.reduce, or sent to another CTA",
    "persistent": "a CTA has MMAs after it has stored results",
    "CTA pairs": "tcgen05.mma with .cta_group::2",
    "several waves": "CTAs start when others have ended",
    "single wave": "the rest: a tile a CTA, all at once",
}


def of(record: Timeline) -> str:
    """The kind of a timed launch, a name in KINDS."""
    instructions = executed(record)
    mmas = [ins.effect for ins in instructions if isinstance(ins.effect, Multiplies)]
    fits = {
        "CUDA cores": not mmas,
        "one stage": _one_stage(record),
        "split K": any(ins.effect.properties.adds for ins in instructions),
        "persistent": record.resumed,
        "CTA pairs": any(mma.pair for mma in mmas),
        "several waves": _waves(record),
        "single wave": True,
    }
    return next(name for name in KINDS if fits[name])


def executed(record: Timeline) -> list[Instr]:
    """The instructions of the blocks that a warp has been in."""
    blocks = set[int]().union(*record.blocks.values())
    return [op.ins for block in blocks for op in record.code.structure[block].ops]


def _one_stage(record: Timeline) -> bool:
    """As many loads before the first MMA as between those of the first and of the second k-tile;
    with more stages those of every stage come first, and what is loaded completes on a ring of
    mbarriers.
    """
    followed = [batches for batches in record.load_batches.values() if len(batches) > 1]
    if not followed or any(first > second for first, second in followed):
        return False
    return all(len(mbarriers) == 1 for mbarriers in record.signalled.values())


def _waves(record: Timeline) -> bool:
    ends = [cta.end for cta in record.ctas if cta.end is not None]
    return any(cta.start > min(ends) for cta in record.ctas) if ends else False


# What `createpolicy.fractional` makes of all accesses, which programs write as numbers, too.
ENCODED = {PRIORITIES[f"L2::{name}"]: name for name in ("evict_first", "evict_last")}


def policies_of(record: Timeline) -> list[str]:
    """The policies of the instructions that a warp came to (b200/effects)."""
    return sorted(set[str]().union(*map(_policies, executed(record))))


def _policies(ins: Instr) -> set[str]:
    """The policies that an instruction asks for, by its modifiers or by a number."""
    effect = ins.effect
    found = set(effect.policies) if isinstance(effect, (Access, Hints)) else set[str]()
    values = (operand.value for operand in ins.operands if isinstance(operand, Imm))
    return found | {ENCODED[value] for value in values if value in ENCODED}
