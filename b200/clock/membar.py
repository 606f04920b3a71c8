"""Fences of all memory: which PTX instructions are such a fence, and how long they stall a warp.

They are compiled to MEMBAR.ALL.GPU (SASS of sm_100a, nvcc 13.0). A fence takes `fence_gpu` clk if
the SM has accessed no global memory since its last fence. If any warp of the SM has, the fence
takes `fence_asked` clk, and `fence_line` more for each 128-byte line. A fence ends no earlier than
the accesses that the SM has made so far are answered (docs/lab/hopper.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.effects import ArrivesInCluster, FencesProxy, FencesTensormap, Ordered
from b200.program.module import Instr
from b200.registry import Clock

if TYPE_CHECKING:
    from b200.clock.sm import SM
    from b200.clock.timed import TimedFragment

LINE = 128
WIDE = ("cluster", "gpu", "sys")


def is_wide(ins: Instr) -> bool:
    """Whether an instruction is, or begins with, a fence of all memory (MEMBAR.ALL.GPU)."""
    effect = ins.effect
    if isinstance(effect, ArrivesInCluster):
        return not effect.relaxed
    if isinstance(effect, FencesProxy):  # of both memories, or of aliases
        return effect.shared == effect.far
    if isinstance(effect, FencesTensormap):
        return True
    return isinstance(effect, Ordered) and effect.releases and effect.scope in WIDE


def asked(sm: SM, nbytes: int, answered: float) -> None:
    """Note that the SM has accessed `nbytes` of global memory, and when they are answered."""
    sm.unfenced += nbytes
    sm.answered = max(sm.answered, answered)


def wait(warp: TimedFragment, ins: Instr) -> None:
    """Stall a warp at a fence, until the fence is done."""
    c, sm = warp.clock.constants, warp.cta.sm
    done = warp.time + c.fence_gpu
    if sm.unfenced:
        lines = min(sm.unfenced / LINE, c.fence_lines)
        done = max(done + c.fence_asked + c.fence_line * lines, sm.answered)
        sm.unfenced = 0
    sm.fenced = max(sm.fenced, done)  # a fence beside it waits for the same answers
    warp.clock.stall(warp, sm.fenced, ins, "a fence of all memory")
    Clock.now = warp.time
