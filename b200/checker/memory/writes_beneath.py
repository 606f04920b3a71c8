"""Writes of global memory that lie beneath others with which they do not conflict.

The shadow of an allocation has the latest write of each place. Where that is strong, another
strong access does not conflict with it. It conflicts with the weak write beneath, if nothing orders
the two (PTX ISA 8.7): `count[i] = 0; atomicAdd(&count[i], 1);` by several warps. So does a weak
access with a bulk reduction of another warp beneath the latest one.
"""

from __future__ import annotations

import numpy as np

from b200 import sparse
from b200.checker.memory.global_conflicts import MORAL, REDUCTION, AccessMade, GlobalConflicts
from b200.checker.memory.shadow import distinct

UnitChoice = np.ndarray | slice
COVERS = (*MORAL, REDUCTION)  # kinds that do not conflict among themselves


class Beneath:
    """The writes beneath others of one launch, by number as in the shadow.

    weak, sums: base of an allocation -> for each UNIT the latest weak write beneath, and the latest
    bulk reduction beneath one of another warp.
    """

    def __init__(self, conflicts: GlobalConflicts):
        self.conflicts = conflicts
        self.weak: dict[int, np.ndarray] = {}
        self.sums: dict[int, np.ndarray] = {}

    def check(self, units: UnitChoice, access: AccessMade) -> None:
        """Check an access of some units of an allocation."""
        shadow = (self.weak if access.kind in COVERS else self.sums).get(access.region.base)
        if shadow is not None and (below := shadow[units]).any():
            self.conflicts.check(below, access)

    def cover(self, units: UnitChoice, access: AccessMade, latest: np.ndarray) -> None:
        """An access comes over some units; a strong write or a reduction, and what lies beneath
        stays. latest: the allocation's shadow.
        """
        self.check(units, access)
        if access.kind not in COVERS:
            return
        cells, base = latest[units], access.region.base
        writes = [(n, old) for n in distinct(cells) if (old := self.conflicts.writes[n])]
        weak = [n for n, old in writes if old.kind not in COVERS]
        sums = [n for n, old in writes if old.kind == REDUCTION and old.agent is not access.agent]
        for shadows, numbers in ((self.weak, weak), (self.sums, sums)):
            if numbers:
                if base not in shadows:
                    shadows[base] = sparse.zeros(latest.size, np.uint32)
                shadow = shadows[base]
                shadow[units] = np.where(np.isin(cells, numbers), cells, shadow[units])
