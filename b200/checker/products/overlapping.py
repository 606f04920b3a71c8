"""Rule: an FP8 mma.sync must not have a register of D further on among those of C.

The PTX ISA allows it: operands are read before D is written. ptxas makes one addition a register of
such an instruction (chip/tensor/warp_mma.py), in the order of the registers, and the later ones
read what the earlier ones wrote (13.0 to 13.4; inclusionAI/humming pull 87, seen on B200 and B300).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from b200.checker.finding import PORTABILITY
from b200.effects import MultipliesInWarp
from b200.program.module import Instr, Reg, Vec

if TYPE_CHECKING:
    from b200.checker.observer import Observer


def overlapping(ins: Instr) -> list[Reg]:
    """Registers that D has at an earlier place than C, of an mma.sync on e4m3 or e5m2."""
    effect = ins.effect
    if not isinstance(effect, MultipliesInWarp) or not {"e4m3", "e5m2"} & set(effect.inputs):
        return []
    d, _, _, c = (x.items if isinstance(x, Vec) else (x,) for x in ins.operands)
    return [register for i, register in enumerate(d) if register in c[i + 1 :]]


def finish(observer: Observer, executed: Iterable[Instr]) -> None:
    """Report such instructions of a launch that has ended."""
    for ins in executed:
        if registers := overlapping(ins):
            names = ", ".join(dict.fromkeys(register.name for register in registers))
            observer.found(
                "numerics",
                "ptxas writes a register of D before it has read it as C",
                (
                    f"registers: {names}, in an mma.sync of e4m3 or e5m2, which ptxas makes of "
                    "several instructions",
                    "missing: C in the registers of D, each at its place, or in others",
                ),
                ins,
                severity=PORTABILITY,
            )
