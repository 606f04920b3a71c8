"""Which SM a CTA runs on.

CTAs of a launch without clusters fill the chip GPC after GPC; clusters take the GPCs by turns
(%smid of every CTA, measured on an H200, docs/hopper.md; published for a B300, QuickRunCUDA's
I6_BLOCK_SCHEDULE_TOPOLOGY and I8_CLUSTER_TOPOLOGY). So neighbouring CTAs without clusters share a
GPC, and with it the answers of the L2 (coalescer.py).

A B200 has 148 SMs in 8 GPCs on 2 dies (four GPCs a die). Which GPC has how many differs from chip
to chip; the one assumed holds 18 or 20. Measured limits of clusters that are resident together
overrule it (NCU1: 33 of 4 CTAs). Which die a GPC is on is not published. They are on the dies by
turns here, so that a launch of fewer CTAs than SMs has the L2 of both: with one die first, its
partition held up 112 CTAs that need not wait on silicon (gemm v3 of the ladder, shape 1: 14 % above
the published time, now 4 % below).
"""

from __future__ import annotations

import numpy as np

from b200.chip.state import Cluster
from b200.clock.devices import B200, Device
from b200.clock.sm import SM
from b200.hardware import SM_CTAS, SM_THREADS, SMEM_BYTES, SMEM_RESERVED
from b200.occupancy import ctas_per_sm


def max_clusters(size: int, device: Device = B200) -> int:
    """Clusters of `size` CTAs that are resident together, where an SM holds one CTA."""
    return device.clusters.get(size, sum(gpc // size for gpc in device.gpcs))


class Placement:
    """The SMs of the chip and what is free on them."""

    def __init__(self, device: Device = B200):
        self.device = device
        self.sms: list[SM] = []
        self.gpcs: list[list[SM]] = []
        for gpc, count in enumerate(device.gpcs):
            members = [
                SM(len(self.sms) + i, gpc, gpc % 2, SMEM_BYTES, SM_THREADS, SM_CTAS)
                for i in range(count)
            ]
            self.sms += members
            self.gpcs.append(members)
        self._turn = 0
        self.clusters = 0

    def place(self, launch) -> list[SM] | None:
        """SMs for the CTAs of a cluster, rank by rank; None while there is no room."""
        n = int(np.prod(launch.cluster))
        need = (launch.smem_bytes + SMEM_RESERVED, int(np.prod(launch.block)))
        per_sm = max(1, ctas_per_sm(need[1], launch.smem_bytes, 0))
        if self.clusters >= self.device.clusters.get(n, len(self.sms)) * per_sm:
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
    def _fits(sm: SM, need) -> bool:
        return sm.room[0] >= need[0] and sm.room[1] >= need[1] and sm.room[2] >= 1

    def _choose(self, n: int, need) -> list[SM] | None:
        """The n least loaded SMs of a GPC: of the first one for a CTA alone, else GPCs by turns."""
        if n == 1:
            free = [sm for sm in self.sms if self._fits(sm, need)]
            return [min(free, key=lambda sm: (sm.resident, sm.index))] if free else None
        candidates = []
        for i in range(len(self.gpcs)):
            gpc = self.gpcs[(self._turn + i) % len(self.gpcs)]
            free = [sm for sm in gpc if self._fits(sm, need)]
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
            cta.sm.room[0] += launch.smem_bytes + SMEM_RESERVED
            cta.sm.room[1] += threads
            cta.sm.room[2] += 1
            cta.sm.resident -= 1
        self.clusters -= 1
