"""Times loads and stores of warps, and the way to global memory and back that copies share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from b200.chip.global_memory import GlobalMemory
from b200.clock import membar
from b200.clock.constants import Constants
from b200.clock.memory_system import MemorySystem
from b200.clock.stores import alone, in_part
from b200.clock.timeline import Timeline

if TYPE_CHECKING:
    from b200.chip.global_memory import Region
    from b200.clock.sm import SM
    from b200.clock.timed import TimedFragment

LINE = 128
BANKS = 32


@lru_cache(maxsize=1 << 14)
def _sectors(relative: bytes, nbytes: int) -> tuple[np.ndarray, int, int, float]:
    """(numbers of the 32-byte sectors, count of 128-byte lines) that addresses, int64 from a line's
    start, touch; how many of the sectors they cover in part, and which share alone of their 64
    bytes.
    """
    addresses = np.frombuffer(relative, np.int64)
    ends = np.arange(0, max(nbytes, 1), 32)
    found = np.unique(
        np.concatenate([((addresses[:, None] + ends) >> 5).ravel(), (addresses + nbytes - 1) >> 5])
    )
    found.flags.writeable = False
    return found, len(np.unique(found >> 2)), in_part(addresses, nbytes), alone(found)


def _there(at: float, asked: float, there: float) -> float:
    """When a load of time `at` has a sector that another load of the SM asked for at `asked`, and
    had at `there`. Of two loads the later one may be carried out first: then the earlier one is who
    fetches, and waits as long.
    """
    return there if asked <= at else at + there - asked


@lru_cache(maxsize=1 << 14)
def _wavefronts(relative: bytes, nbytes: int) -> float:
    """Wavefronts of an access of so many bytes a lane at addresses (int64, from a multiple of 128
    bytes). One has lanes with 128 bytes together, or with 256 where two by two have the same
    address: each lane and the next one, or the next but one. Lanes of one wavefront take one for
    each word that the busiest of 32 banks must deliver.

    Source: NVIDIA's forum, 77228 (128 bytes a clk come back, pairs of equal lanes are packed), and
    373160 (wavefronts of LDS.128 on an H100).
    """
    addresses = np.frombuffer(relative, np.int64)
    count = max(1, nbytes // 4)
    words = (addresses >> 2)[:, None] + np.arange(count)
    lanes = max(1, BANKS // count) * (1 + (count > 1 and _in_pairs(addresses)))
    return float(sum(_busiest(words[i : i + lanes]) for i in range(0, len(words), lanes)))


def _in_pairs(addresses: np.ndarray) -> bool:
    """Whether each lane has the address of the next one, or each that of the next but one."""
    return any(
        len(addresses) % (2 * apart) == 0
        and (np.diff(addresses.reshape(-1, 2, apart), axis=1) == 0).all()
        for apart in (1, 2)
    )


def _busiest(words: np.ndarray) -> int:
    """How many words the busiest bank must deliver."""
    return int(np.bincount(np.unique(words) % BANKS, minlength=BANKS).max())


Spans: TypeAlias = Sequence[tuple[np.ndarray, int]]  # where rows start, the bytes of each


class Accesses:
    """Times the memory accesses of one launch. chip: the L2 and what is behind it; c: the clock's
    constants. last_store: when the latest store is done.
    """

    def __init__(self, memory: GlobalMemory, chip: MemorySystem, c: Constants, record: Timeline):
        self.memory, self.chip, self.c, self.record = memory, chip, c, record
        self.last_store = 0.0

    # --- global memory ----------------------------------------------------------------------------
    def _translate(self, sm: SM, region: Region, starts: np.ndarray, nbytes: int) -> float:
        """clk for pages that the SM touches for the first time."""
        size = int(self.c.page_bytes)
        ends = int(starts[0]), int(starts[-1]) + nbytes - 1
        pages = {self.chip.on_chip(region, at) // size for at in ends}
        new = pages - sm.pages
        sm.pages |= new
        return self.c.page_walk if new and self.chip.cold else 0.0

    def fetch(
        self,
        sm: SM,
        at: float,
        spans: Spans,
        latency: float,
        late: float | None = None,
        fan_out: bool = False,
        rows: bool = False,
    ) -> tuple[float, float]:
        """Read spans of global memory; (first, last) arrival. late: as MemorySystem.draw gave it;
        fan_out, rows: see MemorySystem.read.
        """
        first, last = np.inf, at
        for starts, nbytes in spans:
            region = self.memory.region(int(starts[0]))
            self.chip.late = self.chip.draw(region, int(starts[0])) if late is None else late
            walk = self._translate(sm, region, starts, nbytes)
            early, end = self.chip.read(
                at + walk, sm, region, starts, nbytes, latency, fan_out, rows
            )
            first, last = min(first, early), max(last, end)
            membar.asked(sm, len(starts) * nbytes, last)
        if first == np.inf:  # nothing in bounds
            first = last = at + latency
        return first, last

    def store_path(self) -> float:
        """clk from an SM to the L2: half of a load's way there and back."""
        return self.c.ldg_l2 / 2

    def stored(self, warp: TimedFragment, nbytes: int, done: float) -> None:
        membar.asked(warp.cta.sm, nbytes, done)
        self.last_store = max(self.last_store, done)
        self.record.stored(warp, done)

    def access_global(
        self, warp: TimedFragment, kind: str, addresses: np.ndarray, nbytes: int, cached: bool
    ) -> None:
        """Time an ld, st, atom or red (`kind`) of the active lanes, `nbytes` a lane at global
        `addresses`.
        """
        sm, c, sector = warp.cta.sm, self.c, int(self.c.l2_sector)
        origin = int(addresses[0]) & -LINE
        relative, lines, part, lone = _sectors((addresses - origin).tobytes(), nbytes)
        sectors = relative + (origin >> 5)
        width = max(lines, len(addresses) * nbytes / LINE)
        begin = sm.lsu.serve(warp.time, width)
        if kind in ("st", "red"):
            few, each = 0, c.store_add
            if kind == "st":
                few, each = part, 1 + (c.store_alone - 1) * lone
                self.record.sends(len(addresses) * nbytes, len(sectors) * sector)
            self._pass_on(warp, sectors, begin + width, few, each)
            return
        done = begin + width + c.l1_hit
        if kind == "ld" and cached:
            every = sectors.tolist()
            known = [sm.lines[s] for s in every if s in sm.lines]
            done = max([done, *(_there(begin, *line) for line in known)])
            sectors = np.array([s for s in every if s not in sm.lines], np.int64)
            if len(sm.lines) > c.l1_bytes / sector:
                sm.lines.clear()
        if len(sectors):
            spans = [(starts, sector) for _, starts in self._by_region(sectors << 5)]
            last = self.fetch(sm, begin + width, spans, c.ldg_l2)[1]
            done = max(done, last)
            if kind == "ld" and cached:
                sm.lines.update(dict.fromkeys(sectors.tolist(), (begin, last)))
            if kind == "atom":  # the L2 puts the result where the operand was
                for region, starts in self._by_region(sectors << 5):
                    whole = len(starts)
                    self.chip.write(done, sm.die, region, starts, sector, 0, whole, c.store_add)
        warp.state.load_done = done
        self.record.landed(warp, done, len(sectors) * 32)

    def _pass_on(
        self, warp: TimedFragment, sectors: np.ndarray, at: float, part: int, each: float
    ) -> None:
        """Sectors, some of them written in part, go from a warp to the L2, which takes `each` times
        as long for one as for a store's; the warp waits for room.
        """
        sm, c, sector = warp.cta.sm, self.c, int(self.c.l2_sector)
        at = sm.storing.room(at, c.store_queue)
        warp.time = max(warp.time, at)
        sm.store_free = at = max(at, sm.store_free) + len(sectors) * c.store_sector
        for region, starts in self._by_region(sectors << 5):
            few = part * len(starts) // len(sectors)
            arrival = at + self.store_path()
            done = self.chip.write(
                arrival, sm.die, region, starts, sector, few, len(starts) - few, each
            )
            self.stored(warp, len(starts) * sector, done)
            sm.storing.add(done, len(starts))
            self.record.unit(warp.cta, "stores", at, done, f"{len(starts)} sectors")

    def _by_region(self, starts: np.ndarray):
        while len(starts):
            region = self.memory.region(self._legal(int(max(starts[0], 0))))
            inside = (starts + 31 >= region.base) & (starts < region.base + region.size)
            yield region, np.maximum(starts[inside], region.base)
            starts = starts[~inside]

    def _legal(self, sector: int) -> int:
        """The first address of a sector that is known to be in an allocation, else its last: the
        allocation may begin within the sector, and end there.
        """
        within = range(sector, sector + 32)
        return next((at for at in within if self.memory.find(at, 1) is not None), within[-1])

    def access_shared(
        self, warp: TimedFragment, kind: str, addresses: np.ndarray, nbytes: int, remote: bool
    ) -> None:
        """Time an ld, st, atom or red (`kind`) at shared addresses, by wavefronts."""
        sm, c = warp.cta.sm, self.c
        width = _wavefronts((addresses - (int(addresses[0]) & -LINE)).tobytes(), nbytes)
        if kind in ("atom", "red"):
            width *= c.shared_atomic
        begin = sm.lsu.serve(warp.time, width)
        done = begin + width + (c.dsmem if remote else c.smem_load)
        if kind in ("ld", "atom"):
            warp.state.load_done = done
        elif begin - warp.time > c.lsu_queue:
            warp.time = begin - c.lsu_queue

    def access_local(self, warp: TimedFragment, kind: str) -> None:
        begin = warp.cta.sm.lsu.serve(warp.time, 1.0)
        if kind == "ld":
            warp.state.load_done = begin + self.c.l1_hit
