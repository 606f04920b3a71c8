"""Which SM a CTA runs on: clusters within a GPC, spread as widely as there is room.

148 SMs in 8 GPCs on 2 dies (four GPCs a die). Which GPC has how many differs from chip to chip; the
one assumed holds 18 or 20. Measured limits of clusters that are resident together overrule it
(NCU1: 33 of 4 CTAs).
"""

from __future__ import annotations

import numpy as np

from b200.chip.state import Cluster
from b200.clock.sm import SM
from b200.hardware import SM_COUNT, SMEM_BYTES

GPCS = (18, 18, 18, 20, 18, 18, 18, 20)
MEASURED_CLUSTERS = {4: 33}
THREADS, CTAS, RESERVED = (
    2048,
    32,
    1024,
)  # of an SM; bytes of shared memory the system takes from a CTA


def max_clusters(size: int) -> int:
    """Clusters of `size` CTAs that are resident together, where an SM holds one CTA."""
    return MEASURED_CLUSTERS.get(size, sum(gpc // size for gpc in GPCS))


class Placement:
    """The SMs of the chip and what is free on them."""

    def __init__(self):
        assert sum(GPCS) == SM_COUNT
        self.sms: list[SM] = []
        self.gpcs: list[list[SM]] = []
        for gpc, count in enumerate(GPCS):
            members = [
                SM(len(self.sms) + i, gpc, gpc // 4, SMEM_BYTES, THREADS, CTAS)
                for i in range(count)
            ]
            self.sms += members
            self.gpcs.append(members)
        self._turn = 0
        self.clusters = 0

    def place(self, launch) -> list[SM] | None:
        """SMs for the CTAs of a cluster, rank by rank; None while there is no room."""
        n = int(np.prod(launch.cluster))
        need = (launch.smem_bytes + RESERVED, int(np.prod(launch.block)))
        per_sm = self._a_sm_holds(need)
        if n in MEASURED_CLUSTERS and self.clusters >= MEASURED_CLUSTERS[n] * per_sm:
            return None
        best = self._choose(n, need)
        if best is None:
            return None
        for sm in best:
            sm.room[0] -= need[0]
            sm.room[1] -= need[1]
            sm.room[2] -= 1
            sm.resident += 1
        self.clusters += 1
        return best

    @staticmethod
    def _a_sm_holds(need) -> int:
        return max(1, min(SMEM_BYTES // need[0], THREADS // need[1], CTAS))

    def _choose(self, n: int, need) -> list[SM] | None:
        """The n least loaded SMs of a GPC, GPCs by turns."""
        candidates = []
        for i in range(len(self.gpcs)):
            gpc = self.gpcs[(self._turn + i) % len(self.gpcs)]
            free = [
                sm
                for sm in gpc
                if sm.room[0] >= need[0] and sm.room[1] >= need[1] and sm.room[2] >= 1
            ]
            if len(free) >= n:
                free.sort(key=lambda sm: (sm.resident, sm.index))
                candidates.append((sum(sm.resident for sm in free[:n]), i, free[:n]))
        if not candidates:
            return None
        _, i, chosen = min(candidates, key=lambda c: c[:2])
        self._turn = (self._turn + i + 1) % len(self.gpcs)
        return chosen

    def release(self, cluster: Cluster, launch):
        """Give back what a finished cluster held."""
        threads = int(np.prod(launch.block))
        for cta in cluster.ctas:
            cta.sm.room[0] += launch.smem_bytes + RESERVED
            cta.sm.room[1] += threads
            cta.sm.room[2] += 1
            cta.sm.resident -= 1
        self.clusters -= 1
