"""Releases by some lanes of a warp, and the accesses of the others that they leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.agent import Agent


@dataclass(slots=True, eq=False)
class Spoken:
    """A release by some lanes of a warp.

    left: lanes whose accesses it leaves out. base: accesses up to this epoch are ordered all the
    same. met: accesses up to this epoch were executed before the lanes met at a `.sync`.
    """

    ins: Instr | None
    lanes: int
    left: int
    base: int
    met: int


def left_out(of: Agent, step: int, known: int) -> tuple[Spoken, int] | None:
    """(the release by which somebody knows of an access of warp `of`, the lanes that it and those
    before it leave out); None if the access is released whole. step: epoch of the access. known:
    the latest epoch of the warp that is known.
    """
    spoken = of.spoken.get(known)
    if spoken is None or step <= spoken.base:
        return None
    left = spoken.left
    for epoch in reversed(of.spoken):
        if epoch < step:
            break
        if epoch < known:
            left &= of.spoken[epoch].left
    return (spoken, left) if left else None
