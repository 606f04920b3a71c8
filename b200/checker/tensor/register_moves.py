"""Rule: all warps of a warpgroup must execute setmaxnreg (PTX ISA 9.7.19.5).

A warp that asks for more registers than its CTA has left is a deadlock, not a finding of this
rule (chip/sync/registers.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.chip.describe import mnemonic

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.state import CTA

WARPGROUP = 4  # warps


def cta_exited(observer: Observer, cta: CTA) -> None:
    """Check a CTA of which every warp has exited."""
    moves = dict.fromkeys(range(len(cta.warps)))
    moves |= {agent.index: agent.registers for agent in observer.state(cta).agents_of(cta)}
    if not any(moves.values()):
        return
    for first in range(0, len(cta.warps), WARPGROUP):
        group = {i: moves[i] for i in range(first, min(first + WARPGROUP, len(cta.warps)))}
        done = {i: m for i, m in group.items() if m}
        if done and len(done) < len(group):
            _part(observer, cta, done, sorted(set(group) - set(done)))


def _part(observer: Observer, cta: CTA, done: dict, left: list[int]):
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
