"""Which SM a CTA runs on.

CTAs of a launch without clusters come GPC after GPC; clusters take the GPCs by turns, TPC after TPC
(%smid of every CTA, measured on an H200, docs/hopper.md; published for a B300, QuickRunCUDA's
I6_BLOCK_SCHEDULE_TOPOLOGY and I8_CLUSTER_TOPOLOGY). So neighbouring CTAs without clusters share a
GPC, and with it the answers of the L2 (coalescer.py); clusters share one with those that come as
many later as there are GPCs with a free TPC. Fewer CTAs than SMs are spread: all GPCs get as many
as each other, and a TPC a second one when all have one (H200, 4 to 112 CTAs). A few TPCs, of the
first GPC as the order has it, are in clusters of two at most, and come first. How many clusters fit
follows: on an H200 66, 39, 30, 22, 17, 15 and 15 of 2 to 8 CTAs, as its driver says. A GPC has
three CPCs, its TPCs by turns; of eight TPCs one CPC has two (H200, hopper_depth: what shares a
limit, window.py), the strays are in the other two.

Which GPC of a B200 has how many SMs differs from chip to chip. Which die a GPC is on is not
published; they are on the dies by turns here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from b200.chip.state import Cluster
from b200.clock.devices import B200, Device
from b200.clock.sm import SM
from b200.hardware import SM_CTAS, SM_THREADS, SMEM_BYTES, SMEM_RESERVED

TPC = 2  # SMs
CPCS = 3  # of a GPC


def max_clusters(size: int, device: Device = B200) -> int:
    """Clusters of `size` CTAs that are resident together, where an SM holds one CTA."""
    return sum(sms // size for _, sms in _groups(device))


def _groups(device: Device) -> list[tuple[int, int]]:
    """(GPC, SMs) of what clusters lie within, in the order of its turns."""
    whole = [sms - TPC * device.strays * (gpc == 0) for gpc, sms in enumerate(device.gpcs)]
    return [(0, TPC)] * device.strays + list(enumerate(whole))


def _cpcs(tpcs: int) -> list[int]:
    """The CPC of each TPC of a GPC: by turns; the first has no more TPCs than the others."""
    room = [(tpcs + cpc) // CPCS for cpc in range(CPCS)]
    turns = sorted((turn, cpc) for cpc, most in enumerate(room) for turn in range(most))
    return [cpc for _, cpc in turns]


def _share(items: int, room: list[int]) -> list[int]:
    """How many of the items each group gets: as many as the others as far as it has room."""
    got = [0] * len(room)
    while items and got != room:
        open_ = [i for i, most in enumerate(room) if got[i] < most]
        each = max(1, min(items // len(open_), min(room[i] - got[i] for i in open_)))
        for i in open_[:items]:
            got[i] += each
            items -= each
    return got


class Placement:
    """The SMs of the chip and what is free on them."""

    def __init__(self, device: Device = B200):
        self.sms: list[SM] = []
        self.groups: list[list[SM]] = []
        cpcs = [deque(_cpcs(sms // TPC)) for sms in device.gpcs]
        for n, (gpc, count) in enumerate(_groups(device)):
            cpc_of_next = cpcs[gpc].pop if n < device.strays else cpcs[gpc].popleft
            members = []
            for _ in range(count // TPC):
                place = gpc, gpc * CPCS + cpc_of_next(), gpc % 2
                members += [
                    SM(len(self.sms) + len(members) + i, *place, SMEM_BYTES, SM_THREADS, SM_CTAS)
                    for i in range(TPC)
                ]
            self.sms += members
            self.groups.append(members)
        self._strays = device.strays
        self._turn = 0
        self._first: Iterator[SM] | None = None  # where the next CTAs alone go

    def place(self, launch) -> list[SM] | None:
        """SMs for the CTAs of a cluster, rank by rank; None while there is no room."""
        n = int(np.prod(launch.cluster))
        need = (launch.smem_bytes + SMEM_RESERVED, int(np.prod(launch.block)))
        best = self._alone(launch, need) if n == 1 else self._choose(n, need)
        if best is None:
            return None
        for sm in best:
            sm.room[0] -= need[0]
            sm.room[1] -= need[1]
            sm.room[2] -= 1
            sm.resident += 1
        return best

    @staticmethod
    def _fits(sm: SM, need) -> bool:
        return sm.room[0] >= need[0] and sm.room[1] >= need[1] and sm.room[2] >= 1

    def _alone(self, launch, need) -> list[SM] | None:
        """The SM of a CTA without a cluster."""
        if self._first is None:
            self._first = iter(self._spread(int(np.prod(launch.grid))))
        if (sm := next(self._first, None)) is not None:
            return [sm]
        free = [sm for sm in self.sms if self._fits(sm, need)]
        return [min(free, key=lambda sm: (sm.resident, sm.index))] if free else None

    def _spread(self, ctas: int) -> list[SM]:
        """The SMs of the first CTAs of a launch, at most one each, in their order."""
        tpcs = [len(group) // TPC for group in self.groups]
        strays, whole = tpcs[: self._strays], tpcs[self._strays :]
        counts = []
        for room in (strays, strays, whole, whole):
            counts.append(_share(ctas, room))
            ctas -= sum(counts[-1])
        found, (first, second) = [], (counts[0] + counts[2], counts[1] + counts[3])
        for group, ones, twos in zip(self.groups, first, second, strict=True):
            for tpc in range(ones):
                found += group[TPC * tpc : TPC * tpc + (2 if tpc < twos else 1)]
        return found

    def _choose(self, n: int, need) -> list[SM] | None:
        """The n least loaded SMs of a group, by turns."""
        candidates = []
        for i in range(len(self.groups)):
            group = self.groups[(self._turn + i) % len(self.groups)]
            free = [sm for sm in group if self._fits(sm, need)]
            if len(free) >= n:
                free.sort(key=lambda sm: (sm.resident, sm.index))
                candidates.append((sum(sm.resident for sm in free[:n]), i, free[:n]))
        if not candidates:
            return None
        _, i, chosen = min(candidates, key=lambda c: c[:2])
        self._turn = (self._turn + i + 1) % len(self.groups)
        return chosen

    def release(self, cluster: Cluster, launch):
        """Give back what a finished cluster held."""
        threads = int(np.prod(launch.block))
        for cta in cluster.ctas:
            cta.sm.room[0] += launch.smem_bytes + SMEM_RESERVED
            cta.sm.room[1] += threads
            cta.sm.room[2] += 1
            cta.sm.resident -= 1
