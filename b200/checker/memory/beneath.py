"""Weak writes of global memory that lie beneath strong ones and reductions.

The shadow of an allocation has the latest write of each place. Where that is strong, another
strong access does not conflict with it. It conflicts with the weak write beneath, if nothing orders
the two (PTX ISA 8.7): `count[i] = 0; atomicAdd(&count[i], 1);` by several warps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from b200 import sparse
from b200.checker.agent import Agent
from b200.checker.memory.global_conflicts import MORAL, REDUCTION, Access, GlobalConflicts
from b200.checker.memory.shadow import distinct

Units = np.ndarray | slice
COVERS = (*MORAL, REDUCTION)  # kinds that do not conflict among themselves


class Beneath:
    """The weak writes beneath others of one launch, by number as in the shadow."""

    def __init__(self, conflicts: GlobalConflicts):
        self.conflicts = conflicts
        self.shadows: dict[int, np.ndarray] = {}  # base of an allocation -> for each UNIT

    def check(self, agent: Agent, units: Units, access: Access, region: Any) -> None:
        """Check an access of some units of an allocation."""
        shadow = self.shadows.get(region.base)
        if shadow is not None and (below := shadow[units]).any():
            self.conflicts.check(agent, below, access, region)

    def cover(self, agent: Agent, units: Units, access: Access, region: Any, latest: Any) -> None:
        """A strong write or a reduction comes over some units. latest: the allocation's shadow."""
        self.check(agent, units, access, region)
        cells = latest[units]
        writes = ((n, self.conflicts.writes[n]) for n in distinct(cells))
        weak = [n for n, write in writes if write is not None and write.kind not in COVERS]
        if not weak:
            return
        if region.base not in self.shadows:
            self.shadows[region.base] = sparse.zeros(latest.size, np.uint32)
        shadow = self.shadows[region.base]
        shadow[units] = np.where(np.isin(cells, weak), cells, shadow[units])
