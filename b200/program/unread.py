"""Atomics whose result nobody reads.

ptxas makes a RED of such an atom (nvcc 13.0), so it gets `_` for a result here: what looks at an
instruction need not look at the rest of the kernel. No value tells its thread what it found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from b200.program.analysis import registers_of
from b200.program.module import SINK, Instr, Kernel, Label, Reg, Vec


def drop(kernel: Kernel) -> None:
    """Replace the results of a kernel's atomics that no other instruction names."""
    code = [ins for ins in kernel.body if isinstance(ins, Instr)]
    if not any(ins.mods[0] == "atom" for ins in code):
        return
    named = Counter(r for ins in code for r in registers_of(Vec((ins.pred, *ins.operands))))
    kernel.body = [_without_result(part, named) for part in kernel.body]


def _without_result(part: Instr | Label, named: Counter[Reg]) -> Instr | Label:
    if not isinstance(part, Instr) or part.mods[0] != "atom":
        return part
    if any(named[register] > 1 for register in registers_of(part.operands[0])):
        return part
    return replace(part, operands=(SINK, *part.operands[1:]))
