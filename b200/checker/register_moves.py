"""setmaxnreg (PTX ISA 9.7.19.5): executed by all warps of a warpgroup, inside the SM's registers.

ptxas is not run, so what a thread starts with is not known: only warps that have executed one are
counted, which finds no sum that is none.
"""

from __future__ import annotations

from b200.checker import naming as words
from b200.chip.describe import mnemonic

WARPGROUP = 4  # warps
REGISTERS = 65536  # of an SM


def cta_exited(observer, cta):
    """Every warp of a CTA has exited."""
    moves = {w.index: w.agent and w.agent.registers for w in cta.warps}
    if not any(moves.values()):
        return
    for first in range(0, len(cta.warps), WARPGROUP):
        group = {i: moves[i] for i in range(first, min(first + WARPGROUP, len(cta.warps)))}
        done = {i: m for i, m in group.items() if m}
        if done and len(done) < len(group):
            _part(observer, cta, done, sorted(set(group) - set(done)))
    total = sum(32 * m[0] for m in moves.values() if m)
    if total > REGISTERS:
        _budget(observer, cta, moves, total)


def _part(observer, cta, done: dict, left: list[int]):
    index, (n, ins) = next(iter(done.items()))
    observer.found(
        "protocol",
        f"{mnemonic(ins)} {n} is executed by a part of a warpgroup only",
        (
            f"this access: {words.line(ins)}, by warp(s) {', '.join(map(str, done))} of CTA "
            f"{cta.index}",
            f"not by warp(s) {', '.join(map(str, left))} of the same warpgroup (warps "
            f"{index // WARPGROUP * WARPGROUP} to {index // WARPGROUP * WARPGROUP + 3})",
            "missing: setmaxnreg by all four warps of the warpgroup, or roles that fill it",
        ),
        ins,
    )


def _budget(observer, cta, moves: dict, total: int):
    kept = {i: m for i, m in moves.items() if m}
    ins = max(kept.values(), key=lambda m: m[0])[1]
    each = ", ".join(f"warp {i}: {n}" for i, (n, _) in kept.items())
    observer.found(
        "protocol",
        f"setmaxnreg asks for {total:,} registers, an SM has {REGISTERS:,}: the last to ask waits "
        "for ever",
        (
            f"this access: {words.line(ins)}, in CTA {cta.index}",
            f"registers a thread: {each}",
            f"missing: values whose sum over the CTA's threads is at most {REGISTERS:,}",
        ),
        ins,
    )
