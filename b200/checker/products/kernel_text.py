"""Rules of what a kernel's text shows; of a launch that has ended, about what was executed.

Quantisation must divide by the rounded scale that is stored, not by the unrounded one. A kernel
that quantises to e2m1 converts a block's scale to e4m3 or e8m0 and stores it. It must divide the
values of the block by the result of that conversion, converted back. If it divides by the number
before the conversion, only few elements come out wrong. The checker sees the bug in the data flow:
a register that is converted to a scale also leads to a conversion to e2m1 on a path that does not
go through the scale.

An FP8 mma.sync must not have a register of D further on among those of C. The PTX ISA allows it:
operands are read before D is written. ptxas makes one addition a register of such an instruction
(chip/tensor/warp_mma.py), in the order of the registers, and the later ones read what the earlier
ones wrote (13.0 to 13.4; inclusionAI/humming pull 87, seen on B200 and B300).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.finding import NOTE, PORTABILITY
from b200.chip.describe import mnemonic
from b200.effects import Converts, MultipliesInWarp
from b200.program.analysis import Block, Op
from b200.program.module import Instr, Reg, Vec

if TYPE_CHECKING:
    from b200.checker.observer import Observer

SCALES = ("e4m3", "ue8m0")


def finish(observer: Observer, executed: list[Instr]) -> None:
    """Hold a launch that has ended against both rules."""
    _finish_scales(observer, executed)
    _finish_overlapping(observer, executed)


def _converts_to(op: Op, formats: tuple[str, ...]) -> bool:
    """Whether an instruction converts to one of the formats."""
    effect = op.ins.effect
    return isinstance(effect, Converts) and effect.target in formats


def unrounded_scales(blocks: list[Block]) -> list[tuple[Instr, Instr]]:
    """Pairs (conversion to e2m1, conversion of a scale) where the unrounded scale divides."""
    ops = [op for block in blocks for op in block.ops]
    scales = [op for op in ops if _converts_to(op, SCALES)]
    codes = [op for op in ops if _converts_to(op, ("e2m1",))]
    if not scales or not codes:
        return []
    feeds: dict[str, list[Op]] = {}
    for op in ops:
        if op.entry is not None and not _converts_to(op, SCALES):
            for register in op.srcs:
                if register.type != "pred" and register is not op.ins.pred:
                    feeds.setdefault(register.name, []).append(op)
    found = []
    for scale in scales:
        reached = _reached([r.name for r in scale.srcs], feeds)
        found += [(code.ins, scale.ins) for code in codes if id(code) in reached]
    return found


def _reached(names: list[str], feeds: dict[str, list[Op]]) -> set[int]:
    """ids of the instructions that depend on any of the registers."""
    seen, reached, work = set(names), set(), list(names)
    while work:
        for op in feeds.get(work.pop(), ()):
            reached.add(id(op))
            for register in op.dsts:
                if register.name not in seen and register.type != "pred":
                    seen.add(register.name)
                    work.append(register.name)
    return reached


def _finish_scales(observer: Observer, executed: list[Instr]) -> None:
    ran = {id(ins) for ins in executed}
    for element, scale in unrounded_scales(observer.machine.code.structure):
        if id(element) in ran and id(scale) in ran:
            observer.found(
                "numerics",
                "values are quantised with the block scale before its rounding",
                f"this conversion: {words.line(element)}: {mnemonic(element)}",
                f"the scale is rounded at {words.line(scale)}: {mnemonic(scale)}",
                "missing: the scale converted back (cvt.f16x2 of what is stored) before "
                "the values are divided by it",
                at=element,
                other=scale,
                severity=NOTE,
            )


def overlapping(ins: Instr) -> list[Reg]:
    """Registers that D has at an earlier place than C, of an mma.sync on e4m3 or e5m2."""
    effect = ins.effect
    if not isinstance(effect, MultipliesInWarp) or not {"e4m3", "e5m2"} & set(effect.inputs):
        return []
    d, _, _, c = (x.items if isinstance(x, Vec) else (x,) for x in ins.operands)
    return [register for i, register in enumerate(d) if register in c[i + 1 :]]


def _finish_overlapping(observer: Observer, executed: list[Instr]) -> None:
    for ins in executed:
        if registers := overlapping(ins):
            names = ", ".join(dict.fromkeys(register.name for register in registers))
            observer.found(
                "numerics",
                "ptxas writes a register of D before it has read it as C",
                f"registers: {names}, in an mma.sync of e4m3 or e5m2, which ptxas makes of "
                "several instructions",
                "missing: C in the registers of D, each at its place, or in others",
                at=ins,
                severity=PORTABILITY,
            )
