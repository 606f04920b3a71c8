"""Tells the kind of kernel of a launch from what the launch did.

The clock's errors are given for each kind (spread.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from b200.clock.timeline import Timeline
from b200.program.module import Instr

FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"}

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
    instructions = list(_executed(record))
    mmas = [ins for ins in instructions if ins.mods[:2] == ("tcgen05", "mma")]
    fits = {
        "CUDA cores": not mmas,
        "one stage": _one_stage(record),
        "split K": any(_adds_up(ins) for ins in instructions),
        "persistent": record.resumed,
        "CTA pairs": any(ins.has("cta_group::2") for ins in mmas),
        "several waves": _waves(record),
        "single wave": True,
    }
    return next(name for name in KINDS if fits[name])


def _executed(record: Timeline) -> Iterator[Instr]:
    """The instructions of the blocks that a warp has been in."""
    for block in set().union(*record.blocks.values()):
        for op in record.code.structure[block].ops:
            yield op.ins


def _one_stage(record: Timeline) -> bool:
    """As many loads before the first MMA as between those of the first and of the second k-tile;
    with more stages those of every stage come first, and what is loaded completes on a ring of
    mbarriers.
    """
    followed = [batches for batches in record.load_batches.values() if len(batches) > 1]
    if not followed or any(first > second for first, second in followed):
        return False
    return all(len(mbarriers) == 1 for mbarriers in record.signalled.values())


def _adds_up(ins: Instr) -> bool:
    """Whether an instruction gives a value to a sum, or another CTA a value to add."""
    name = ins.mods[0]
    if name in ("red", "atom"):
        return bool(FLOATS & set(ins.mods)) and not any(m.startswith("shared") for m in ins.mods)
    if name == "cp":
        return ins.has("reduce") or {"shared::cluster", "shared::cta"} <= set(ins.mods)
    return name == "st" and ins.has("async", "shared::cluster")


def _waves(record: Timeline) -> bool:
    ends = [end for *_, end in record.ctas if end is not None]
    return any(start > min(ends) for *_, start, _ in record.ctas) if ends else False
