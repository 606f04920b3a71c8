"""Which SM a CTA runs on.

CTAs of a launch without clusters fill one GPC after the other. Clusters take the GPCs by turns, TPC
after TPC (%smid of every CTA, measured on an H200, docs/lab/hopper.md; published for a B300,
QuickRunCUDA's I6_BLOCK_SCHEDULE_TOPOLOGY and I8_CLUSTER_TOPOLOGY). So neighbouring CTAs without
clusters share a GPC, and with it the answers of the L2 (coalescer.py). Clusters are dealt
round-robin: cluster i shares its GPC with cluster i + G, where G GPCs have a free TPC. A launch
with fewer CTAs than SMs is spread: all GPCs get equally many, and a TPC gets a second CTA only when
every TPC has one (H200, 4 to 112 CTAs).

A few TPCs of the first GPC, the strays, take clusters of at most two CTAs, and are filled first.
The number of clusters that fit follows from this: on an H200 66, 39, 30, 22, 17, 15 and 15 of 2 to
8 CTAs, as its driver says. A GPC has three CPCs, to which its TPCs are dealt by turns; of eight
TPCs one CPC has two (H200, rig depth: what shares a limit, window.py), the strays are in the other
two.

The number of SMs in each GPC of a B200 differs from chip to chip. The die of a GPC is not
published; here the GPCs alternate between the dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import prod
from operator import itemgetter
from typing import Any

from b200 import occupancy
from b200.chip.launch import Launch
from b200.hardware import (
    GPC_SMS,
    SM_COUNT,
    SM_CTAS,
    SM_THREADS,
    SMEM_BYTES,
    SMEM_RESERVED,
    STRAY_TPCS,
)

TPC = 2  # SMs
CPCS = 3  # of a GPC


class Seat:
    """An SM as a place for CTAs. gpc, cpc: numbered over the whole chip.

    room: what is free for CTAs (bytes of shared memory, threads, CTAs). resident: number of CTAs.
    """

    def __init__(self, index: int, gpc: int, cpc: int, die: int):
        self.index, self.gpc, self.cpc, self.die = index, gpc, cpc, die
        self.room = [SMEM_BYTES, SM_THREADS, SM_CTAS]
        self.resident = 0


def shares_sm(launch: Launch, index: tuple[int, int, int]) -> bool:
    """Whether the CTAs of the cluster with this index come to SMs that have a CTA of the launch
    already: each SM gets one, then each a second one, as far as there is room. Registers are not
    known here.
    """
    (nx, ny, _), (x, y, z) = (g // c for g, c in zip(launch.grid, launch.cluster)), index
    before = prod(launch.cluster) * (x + nx * (y + ny * z))
    if before < SM_COUNT:
        return False
    room = occupancy.ctas_per_sm(prod(launch.block), launch.smem_bytes, 0)
    return before // SM_COUNT % room > 0


def max_clusters(size: int, gpcs: tuple[int, ...] = GPC_SMS, strays: int = STRAY_TPCS) -> int:
    """How many clusters of `size` CTAs are resident at a time if an SM holds one CTA."""
    return sum(sms // size for _, sms in _groups(gpcs, strays))


def _groups(gpcs: tuple[int, ...], strays: int) -> list[tuple[int, int]]:
    """(GPC, SMs) of what clusters lie within, in the order of its turns."""
    whole = [sms - TPC * strays * (gpc == 0) for gpc, sms in enumerate(gpcs)]
    return [(0, TPC)] * strays + list(enumerate(whole))


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


def _need(launch: Launch) -> tuple[int, int]:
    """What a CTA takes of an SM: bytes of shared memory, threads."""
    return launch.smem_bytes + SMEM_RESERVED, prod(launch.block)


class Placement:
    """The SMs of a chip and what is free on them.

    gpcs: number of SMs of each GPC; the GPCs alternate between die (or L2 partition) 0 and 1.
    strays: number of TPCs of the first GPC whose two SMs share clusters with no other SM. seat: the
    type of an SM.
    """

    def __init__(
        self, gpcs: tuple[int, ...] = GPC_SMS, strays: int = STRAY_TPCS, seat: type[Seat] = Seat
    ):
        self.sms: list[Any] = []
        self.groups: list[list[Any]] = []
        cpcs = [deque(_cpcs(sms // TPC)) for sms in gpcs]
        for n, (gpc, count) in enumerate(_groups(gpcs, strays)):
            cpc_of_next = cpcs[gpc].pop if n < strays else cpcs[gpc].popleft
            members: list[Any] = []
            for _ in range(count // TPC):
                place = gpc, gpc * CPCS + cpc_of_next(), gpc % 2
                first = len(self.sms) + len(members)
                members += [seat(first + i, *place) for i in range(TPC)]
            self.sms += members
            self.groups.append(members)
        self._strays = strays
        self._turn = 0
        self._first: Iterator[Any] | None = None  # where the next CTAs alone go

    def place(self, launch: Launch) -> list[Any] | None:
        """The SM for each CTA of the next cluster, by rank; None while there is no room."""
        n, need = prod(launch.cluster), _need(launch)
        best = self._alone(launch, need) if n == 1 else self._choose(n, need)
        if best is None:
            return None
        self._take(best, need)
        return best

    @staticmethod
    def _take(sms: Iterable[Seat], need: tuple[int, int], ctas: int = 1) -> None:
        """Take what `ctas` CTAs need of each SM; -1 gives it back."""
        for sm in sms:
            sm.room[0] -= ctas * need[0]
            sm.room[1] -= ctas * need[1]
            sm.room[2] -= ctas
            sm.resident += ctas

    @staticmethod
    def _fits(sm: Seat, need: tuple[int, int]) -> bool:
        return sm.room[0] >= need[0] and sm.room[1] >= need[1] and sm.room[2] >= 1

    def _alone(self, launch: Launch, need: tuple[int, int]) -> list[Any] | None:
        """The SM of a CTA without a cluster."""
        if self._first is None:
            self._first = iter(self._spread(prod(launch.grid)))
        if (sm := next(self._first, None)) is not None:
            return [sm]
        free = [sm for sm in self.sms if self._fits(sm, need)]
        return [min(free, key=lambda sm: (sm.resident, sm.index))] if free else None

    def _spread(self, ctas: int) -> list[Any]:
        """The SMs of the first CTAs of a launch, at most one each, in their order."""
        tpcs = [len(group) // TPC for group in self.groups]
        strays, whole = tpcs[: self._strays], tpcs[self._strays :]
        counts: list[list[int]] = []
        for room in (strays, strays, whole, whole):
            counts.append(_share(ctas, room))
            ctas -= sum(counts[-1])
        found: list[Any] = []
        first, second = (counts[0] + counts[2], counts[1] + counts[3])
        for group, ones, twos in zip(self.groups, first, second, strict=True):
            for tpc in range(ones):
                found += group[TPC * tpc : TPC * tpc + (2 if tpc < twos else 1)]
        return found

    def _choose(self, n: int, need: tuple[int, int]) -> list[Any] | None:
        """The n least loaded SMs of a group, by turns."""
        candidates: list[tuple[int, int, list[Any]]] = []
        for i in range(len(self.groups)):
            group = self.groups[(self._turn + i) % len(self.groups)]
            free = [sm for sm in group if self._fits(sm, need)]
            if len(free) >= n:
                free.sort(key=lambda sm: (sm.resident, sm.index))
                candidates.append((sum(sm.resident for sm in free[:n]), i, free[:n]))
        if not candidates:
            return None
        _, i, chosen = min(candidates, key=itemgetter(0, 1))
        self._turn = (self._turn + i + 1) % len(self.groups)
        return chosen

    def release(self, sms: Iterable[Seat], launch: Launch) -> None:
        """Give back what the CTAs of a finished cluster held on their SMs."""
        self._take(sms, _need(launch), -1)
