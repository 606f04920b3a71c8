"""Weak writes of global memory that lie beneath strong ones.

The shadow of an allocation has the latest write of each place. Where that is strong, another
strong access does not conflict with it. It conflicts with the weak write beneath, if nothing orders
the two (PTX ISA 8.7): `count[i] = 0; atomicAdd(&count[i], 1);` by several warps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from b200 import sparse
from b200.checker.memory.global_conflicts import MORAL, Access, GlobalConflicts
from b200.checker.memory.shadow import distinct
from b200.checker.vector_clocks import Agent


class Beneath:
    """The weak writes beneath strong ones of one launch, by number as in the shadow."""

    def __init__(self, conflicts: GlobalConflicts):
        self.conflicts = conflicts
        self.shadows: dict[int, np.ndarray] = {}  # base of an allocation -> for each UNIT

    def strong(self, agent: Agent, units: np.ndarray, access: Access, region: Any) -> None:
        """Check a strong access of some units of an allocation."""
        shadow = self.shadows.get(region.base)
        if shadow is not None and (below := shadow[units]).any():
            self.conflicts.check(agent, below, access, region)

    def covered(self, units: np.ndarray, cells: np.ndarray, region: Any, size: int) -> None:
        """A strong write comes over what `cells` have. size: of the allocation's shadow."""
        writes = ((n, self.conflicts.writes[n]) for n in distinct(cells))
        weak = [n for n, write in writes if write is not None and write.kind not in MORAL]
        if not weak:
            return
        if region.base not in self.shadows:
            self.shadows[region.base] = sparse.zeros(size, np.uint32)
        shadow = self.shadows[region.base]
        shadow[units] = np.where(np.isin(cells, weak), cells, shadow[units])
