"""Fences of all memory: which PTX is one, and how long its warp stands there.

Compiled to MEMBAR.ALL.GPU (SASS of sm_100a, nvcc 13.0). A fence asks what the SM has asked: it
takes `fence_gpu` if the SM has read or written nothing since its last fence, `fence_asked` and
`fence_line` a 128-byte line more if it has, whichever warp it was; and it ends no earlier than the
answers to what has been asked so far (docs/hopper.md).
"""

from __future__ import annotations

from b200.program.module import Instr
from b200.registry import Clock

LINE = 128
WIDE = ("cluster", "gpu", "sys")
RELEASING = ("release", "acq_rel", "sc")


def is_wide(ins: Instr) -> bool:
    """Whether an instruction is, or begins with, a fence of all memory."""
    if ins.mods[0] == "membar":
        return not ins.has("cta")
    if ins.mods[:3] == ("barrier", "cluster", "arrive"):
        return not ins.has("relaxed")
    if ins.mods[0] == "fence" and ins.has("proxy"):
        return ins.mods == ("fence", "proxy", "async") or ins.has("tensormap::generic", "alias")
    if ins.mods[0] == "fence" and ins.has("mbarrier_init"):
        return False
    return ins.has(*RELEASING) and ins.has(*WIDE)


def asked(sm, nbytes: int, answered: float) -> None:
    """Note that the SM has asked memory for bytes, and when it has its answer."""
    sm.unfenced += nbytes
    sm.answered = max(sm.answered, answered)


def wait(w, ins: Instr) -> None:
    """Let a warp pass a fence."""
    c, sm = w.machine.constants, w.cta.sm
    done = w.time + c.fence_gpu
    if sm.unfenced:
        lines = min(sm.unfenced / LINE, c.fence_lines)
        done = max(done + c.fence_asked + c.fence_line * lines, sm.answered)
        sm.unfenced = 0
    sm.fenced = max(sm.fenced, done)  # a fence beside it waits for the same answers
    w.machine.stall(w, sm.fenced, ins, "a fence of all memory")
    Clock.now = w.time
