"""Writes a kernel for warps of several CTAs: the same code, but for instructions with state."""

from __future__ import annotations

from dataclasses import replace

from b200.chip.abreast.dropped import NotAbreast
from b200.chip.abreast.forms import FORMS, form_of
from b200.effects import CommitsGroup, Copies, Loads, Updates, WaitsForGroups
from b200.program.analysis import Op, Uniformity
from b200.program.translated import Translated
from b200.program.writer import Writer
from b200.registry import Run

# What CTAs abreast know of themselves: what all share, and what varies with the lane or the CTA.
SPECIALS = (
    *("tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "lanemask_eq"),
    *("lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "clusterid", "nclusterid"),
    *("cluster_ctaid", "cluster_nctaid", "cluster_ctarank", "cluster_nctarank"),
    *("is_explicit_cluster", "dynamic_smem_size", "total_smem_size", "aggr_smem_size"),
)


class AbreastWriter(Writer):
    """alone: what varies between the lanes of one CTA."""

    def __init__(self, out: Translated, info: Uniformity, alone: Uniformity):
        super().__init__(out, info)
        self.alone = alone

    def _op(self, op: Op) -> None:
        entry = op.entry
        if entry is not None and entry.style != "pure":
            made = self.form(op)
            op = replace(op, made=made, entry=replace(entry, style="warp", rows=False), waits=False)
        super()._op(op)

    def form(self, op: Op) -> Run:
        """The run function of an instruction with state."""
        return form_of(op)


def look_for_refusal(code: Translated) -> None:
    """Raise NotAbreast if an instruction of a kernel has no form, or asks where it runs."""
    for name in code.special:
        if name.split(".")[0] not in SPECIALS:
            raise NotAbreast(f"it reads %{name}")
    for block in code.structure:
        for op in block.ops:
            if op.entry is None or op.entry.style == "pure":
                continue
            effect = op.ins.effect
            if (
                isinstance(effect, Loads)
                and effect.strong
                and not effect.space.startswith("shared")
            ):
                raise NotAbreast(f"{op.ins.opcode} may wait for what another CTA stores")
            if isinstance(effect, Updates) and effect.returns and effect.space == "global":
                raise NotAbreast(f"{op.ins.opcode}: its result depends on which CTA comes first")
            bulk = isinstance(effect, (CommitsGroup, Copies, WaitsForGroups)) and effect.bulk
            if type(effect) not in FORMS or bulk:
                raise NotAbreast(f"{op.ins.opcode} has no form for CTAs abreast")
