"""A launch that stores nothing: its sizes are 0, or no thread reaches its stores.

Such a launch is legal (an empty batch). More often a size has arrived wrongly: an argument is
missing, swapped, or of another type than the kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.finding import NOTE
from b200.effects import Copies, Stores, Updates
from b200.program.module import Instr, Kernel

if TYPE_CHECKING:
    from b200.checker.observer import Observer

SCALARS = (4, 8)  # bytes of a parameter that may be a size


def stores_global(ins: Instr) -> bool:
    """Whether an instruction writes global memory, judged by its state space."""
    effect = ins.effect
    if isinstance(effect, (Stores, Updates)):
        return effect.space == "global"
    return isinstance(effect, Copies) and effect.target == "global"


def finish(observer: Observer, kernel: Kernel, params: bytes) -> None:
    """Report a launch that has ended and has not written global memory (observer.wrote)."""
    if observer.wrote:
        return
    blocks = observer.machine.code.structure
    stores = [op.ins for block in blocks for op in block.ops if stores_global(op.ins)]
    if not stores:
        return
    zeros = [
        parameter.name
        for parameter in kernel.params
        if parameter.size in SCALARS
        and not any(params[parameter.offset : parameter.offset + parameter.size])
    ]
    lines = ", ".join(dict.fromkeys(words.line(ins) for ins in stores))
    observer.found(
        "coverage",
        "the launch stores nothing: no thread has come to a store of global memory",
        f"stores: {lines}",
        f"parameters that are 0: {', '.join(zeros) or 'none of 4 or 8 bytes'}",
        "missing: sizes that are not 0, or guards that let a thread through",
        at=stores[0],
        severity=NOTE,
    )
