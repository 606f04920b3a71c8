"""Releases by some lanes of a warp, and the accesses of the others that they leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from b200.program.module import Instr
from b200.registry import FULL

if TYPE_CHECKING:
    from b200.checker.agent import Agent


@dataclass(slots=True, eq=False)
class LaneRelease:
    """A release by some lanes of a warp.

    component: the component that tells who knows of it; it counts releases by these lanes alone.
    left: lanes whose accesses it leaves out. base: accesses up to this epoch are ordered all the
    same. met: accesses up to this epoch were executed before the lanes met at a `.sync`.
    """

    ins: Instr | None
    lanes: int
    component: int
    left: int
    base: int
    met: int


def left_out(of: Agent, step: int, row: np.ndarray) -> tuple[LaneRelease, int] | None:
    """(the release by which somebody knows of an access of warp `of`, the lanes that it and others
    that are known leave out); None if the access is released whole. step: epoch of the access.
    row: what is known, a row of a clock.
    """
    known = int(row[of.component]) if of.component < row.size else 0
    releases = of.lane_releases.get(known)
    if releases is None or step <= releases[-1].base:
        return None
    left = FULL
    for epoch in reversed(of.lane_releases):
        if epoch < step:
            break
        for told in of.lane_releases[epoch]:
            if told.component < row.size and row[told.component] >= epoch:
                left &= told.left
    return (releases[-1], left) if left else None
