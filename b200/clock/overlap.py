"""Launches in a row, of which some start before the one before them has ended.

A launch with the programmatic attribute may start once each CTA of the launch before it has
executed griddepcontrol.launch_dependents or has exited. Its CTAs take the room that they find
(threads, shared and tensor memory), else that of CTAs that exit. Each is held at its
griddepcontrol.wait until the launch before is complete. So what comes before the wait is hidden
where there is room early; what comes behind it is not.

Each launch is timed alone first (timed.py). Here its clusters are dealt again: from its start to
its wait, and from there to its end, a cluster takes as long as it did alone. The pipes of an SM are
shared: where they are asked for more than all of the time, what is active there becomes slower.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from b200.chip.placement import Placement
from b200.clock.constants import Constants
from b200.clock.timeline import CtaTime, Timeline
from b200.hardware import SMEM_RESERVED, TMEM_COLUMNS

TimedAct = Callable[[float], object]  # of the time

FOUR_WARPS = 128  # threads: a CTA takes as many warps of each sub-core
IN_FLIGHT = 8  # launches: no ninth one starts before the first is complete (H200)


# --- what is known of a launch that was timed alone -----------------------------------------------
@dataclass(frozen=True)
class ClusterTimes:
    """A cluster; microseconds from its start. wait, trigger: when its last CTA has come to
    griddepcontrol.wait, and to .launch_dependents; None where a CTA does not.
    """

    end: float
    wait: float | None
    trigger: float | None


@dataclass(frozen=True)
class Grid:
    """A launch. size: CTAs of a cluster. need: what a CTA takes of an SM: bytes of shared memory,
    threads, 1, columns of tensor memory. demand: a CTA's part of the time of an SM's busiest pipe.
    tail: microseconds from the exit of the last CTA to the end of the launch.
    """

    parts: tuple[ClusterTimes, ...]
    size: int
    need: tuple[int, int, int, int]
    dependent: bool
    demand: float
    tail: float


def whole_warps(threads: int) -> int:
    """What a CTA takes of an SM's threads. On an H200 eight CTAs of 192 are resident: 248 of 31
    clusters of 4 find room, and 256 of 32 do not (docs/lab/timing.md).
    """
    return -(-threads // FOUR_WARPS) * FOUR_WARPS


def grid_of(record: Timeline) -> Grid:
    launch, ctas = record.launch, record.ctas
    size = int(np.prod(launch.cluster))
    clusters = [ctas[first : first + size] for first in range(0, len(ctas), size)]
    threads = whole_warps(int(np.prod(launch.block)))
    need = launch.smem_bytes + SMEM_RESERVED, threads, 1, record.tmem_columns
    tail = record.us(record.end - max(cta.until for cta in ctas))
    parts = tuple(_part(record, cluster) for cluster in clusters)
    return Grid(parts, size, need, record.dependent, _demand(record), tail)


def _part(record: Timeline, ctas: Sequence[CtaTime]) -> ClusterTimes:
    begin, numbers = min(cta.start for cta in ctas), [cta.number for cta in ctas]

    def last(times: dict[int, float]) -> float | None:
        found = [times[n] for n in numbers if n in times]
        return record.us(max(found) - begin) if len(found) == len(numbers) else None

    end = record.us(max(cta.until for cta in ctas) - begin)
    return ClusterTimes(end, last(record.waited), last(record.triggered))


def _demand(record: Timeline) -> float:
    """Warps of several CTAs come to different sub-cores, so all four count."""
    present: dict[int, float] = defaultdict(float)
    for cta in record.ctas:
        present[cta.sm] += cta.until - cta.start
    used = [sm for sm in record.sms if present.get(sm.index)]
    pipes = [(sm.index, np.sum([core.busy for core in sm.cores], axis=0) / 4) for sm in used]
    return max((float(busy.max()) / present[index] for index, busy in pipes), default=0.0)


# --- the chip -------------------------------------------------------------------------------------
class Seats:
    """What is free on the SMs, and which CTA left each last: (time, its launch)."""

    def __init__(self, placement: Placement):
        self.groups = [np.array([sm.index for sm in group]) for group in placement.groups]
        self.all = np.concatenate(self.groups)
        self.room = np.zeros((len(self.all), 4), np.int64)
        for sm in placement.sms:
            self.room[sm.index] = (*sm.room, TMEM_COLUMNS)
        self.resident = np.zeros(len(self.all), np.int64)
        self.left: dict[int, tuple[float, int]] = {}
        self.turn = 0

    def take(self, grid: Grid) -> list[int] | None:
        """The SMs of the next cluster; None while there is no room. As Placement chooses: the least
        loaded SMs of a group, the groups by turns; a CTA alone takes any SM.
        """
        groups = [self.all] if grid.size == 1 else self.groups
        fits = np.all(self.room >= grid.need, axis=1)
        best: tuple[int, int, np.ndarray] | None = None
        for i in range(len(groups)):
            number = (self.turn + i) % len(groups)
            free = groups[number][fits[groups[number]]]
            if len(free) >= grid.size:
                chosen = free[np.lexsort((free, self.resident[free]))[: grid.size]]
                load = int(self.resident[chosen].sum())
                if best is None or load < best[0]:
                    best = load, number, chosen
        if best is None:
            return None
        self.turn = (best[1] + 1) % len(groups)
        self._change(best[2], grid, 1)
        return best[2].tolist()

    def leave(self, sms: list[int], grid: Grid, at: float, launch: int) -> None:
        self._change(sms, grid, -1)
        self.left.update(dict.fromkeys(sms, (at, launch)))

    def _change(self, sms: list[int] | np.ndarray, grid: Grid, ctas: int) -> None:
        self.resident[sms] += ctas
        self.room[sms] -= np.multiply(grid.need, ctas)


class Resident:
    """A cluster on its SMs. marks: (microseconds of its own, what happens then), the next one last.
    It has come to `done`, at the time `at`, and goes on at `rate`, or waits where that is 0.
    """

    def __init__(self, launch: int, sms: list[int], demand: float):
        self.launch, self.sms, self.demand = launch, sms, demand
        self.marks: list[tuple[float, TimedAct]] = []
        self.done = self.at = self.rate = 0.0


# --- the queue ------------------------------------------------------------------------------------
class Queue:
    """Deals launches to a chip, one after the other. ended: when each was complete, in microseconds
    from the start of the first.
    """

    def __init__(self, grids: Sequence[Grid], placement: Placement, c: Constants, ghz: float):
        self.grids, self.c, self.ghz = grids, c, ghz
        self.seats = Seats(placement)
        self.events: list[tuple[float, int, TimedAct]] = []
        self.numbers = itertools.count()
        self.waiting: list[
            tuple[int, ClusterTimes]
        ] = []  # clusters that are to start, in their order
        self.load: dict[int, float] = defaultdict(float)  # of an SM's busiest pipe
        self.active: dict[int, set[Resident]] = defaultdict(set)
        self.held: dict[int, list[Resident]] = defaultdict(list)  # of each launch, at its wait
        self.released = 0  # launches whose waits are over
        self.complete = 0  # launches
        self.kept_back: tuple[float, TimedAct] | None = None  # the start of one that is too many
        self.dispatched = 0.0
        self.running = [len(grid.parts) for grid in grids]
        self.silent = [len(grid.parts) for grid in grids]  # clusters that have not let others start
        self.ended = [0.0] * len(grids)

    def run(self) -> list[float]:
        self._follow(0, -self.c.launch_gap_us)
        while self.events:
            at, _, act = heapq.heappop(self.events)
            act(at)
        return self.ended

    def _at(self, at: float, act: TimedAct) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), act))

    # --- launches ---------------------------------------------------------------------------------
    def _follow(self, launch: int, ended: float) -> None:
        """The launch before `launch`, if any, is complete."""
        c = self.c
        self.complete = launch
        if self.kept_back is not None:
            (at, begin), self.kept_back = self.kept_back, None
            self._at(max(at, ended + c.launch_gap_us), begin)
        if launch == len(self.grids):
            return
        if launch and self.grids[launch].dependent:
            self._at(ended + c.dependent_wait_us, partial(self._release, launch))
        else:
            self._release(launch, ended)
            self._admit(launch, ended + c.launch_gap_us + c.cta_start_us)

    def _admit(self, launch: int, at: float) -> None:
        """Its first CTA may execute its first instruction."""

        def begin(now: float) -> None:
            self.waiting += [(launch, part) for part in self.grids[launch].parts]
            self._start(now)

        if launch < IN_FLIGHT or self.complete > launch - IN_FLIGHT:
            self._at(at, begin)
        else:
            self.kept_back = at, begin

    def _release(self, launch: int, now: float) -> None:
        """Its griddepcontrol.wait are over."""
        self.released = launch + 1
        for cluster in self.held.pop(launch, ()):
            self._go_on(cluster, now)

    def _lets_start(self, launch: int, after: float) -> TimedAct:
        """A cluster has executed griddepcontrol.launch_dependents, or has exited without it."""

        def act(now: float) -> None:
            self.silent[launch] -= 1
            following = launch + 1
            if not self.silent[launch] and following < len(self.grids):
                if self.grids[following].dependent:
                    self._admit(following, now + after)

        return act

    # --- clusters ---------------------------------------------------------------------------------
    def _start(self, now: float) -> None:
        """Start clusters while there is room."""
        c, started = self.c, 0
        for launch, part in self.waiting:
            grid = self.grids[launch]
            sms = self.seats.take(grid)
            if sms is None:
                break
            started += 1
            relaunch = (c.cluster_relaunch if grid.size > 1 else c.cta_relaunch) / self.ghz / 1e3
            begin = max(now, self.dispatched)
            for at, of in (self.seats.left[sm] for sm in sms if sm in self.seats.left):
                begin = max(begin, at + relaunch + (c.cta_start_us if of != launch else 0.0))
            self.dispatched = max(now, self.dispatched) + c.cta_dispatch_ns * 1e-3 * grid.size
            cluster = Resident(launch, sms, grid.demand)
            cluster.marks = self._marks(cluster, part)
            self._at(begin, partial(self._go_on, cluster))
        del self.waiting[:started]

    def _marks(self, cluster: Resident, part: ClusterTimes) -> list[tuple[float, TimedAct]]:
        launch, c = cluster.launch, self.c
        found: list[tuple[float, TimedAct]] = [(part.end, partial(self._exit, cluster))]
        if part.wait is not None:
            found.append((part.wait, partial(self._wait, cluster)))
        if part.trigger is not None:
            found.append((part.trigger, self._lets_start(launch, c.dependent_trigger_us)))
        else:
            found.insert(1, (part.end, self._lets_start(launch, c.dependent_exit_us)))
        return sorted(found, key=lambda mark: mark[0], reverse=True)

    def _wait(self, cluster: Resident, now: float) -> None:
        if cluster.launch >= self.released:
            self.held[cluster.launch].append(cluster)
            self._pause(cluster, now)

    def _exit(self, cluster: Resident, now: float) -> None:
        launch = cluster.launch
        self._pause(cluster, now)
        self.seats.leave(cluster.sms, self.grids[launch], now, launch)
        self.running[launch] -= 1
        if not self.running[launch]:
            self.ended[launch] = now + self.grids[launch].tail
            self._at(self.ended[launch], partial(self._follow, launch + 1))
        self._start(now)

    # --- how fast they go -------------------------------------------------------------------------
    def _go_on(self, cluster: Resident, now: float) -> None:
        for sm in cluster.sms:
            self.active[sm].add(cluster)
            self.load[sm] += cluster.demand
        cluster.at = now
        self._pace({cluster, *self._beside(cluster)}, now)

    def _pause(self, cluster: Resident, now: float) -> None:
        beside = self._beside(cluster)
        for sm in cluster.sms:
            self.active[sm].discard(cluster)
            self.load[sm] -= cluster.demand
        cluster.rate = 0.0
        self._pace(beside - {cluster}, now)

    def _beside(self, cluster: Resident) -> set[Resident]:
        """Those that share an SM which is asked for more than it has."""
        return set[Resident]().union(*(self.active[sm] for sm in cluster.sms if self.load[sm] > 1))

    def _pace(self, clusters: Iterable[Resident], now: float) -> None:
        for cluster in clusters:
            cluster.done += (now - cluster.at) * cluster.rate
            cluster.at = now
            cluster.rate = 1 / max(1.0, *(self.load[sm] for sm in cluster.sms))
            self._expect(cluster)

    def _expect(self, cluster: Resident) -> None:
        """The next mark comes, unless the rate changes before."""
        at, rate = cluster.at, cluster.rate
        mark, act = cluster.marks[-1]

        def reach(now: float) -> None:
            if (cluster.at, cluster.rate) != (at, rate) or (mark, act) not in cluster.marks[-1:]:
                return  # the rate has changed, or it has come here by another event
            cluster.marks.pop()
            cluster.done, cluster.at = mark, now
            act(now)
            if cluster.rate and cluster.marks:
                self._expect(cluster)

        self._at(at + (mark - cluster.done) / rate, reach)


MOST_CLUSTERS = 20_000  # that are dealt; further calls take as long as the last half of those


def queue_us(records: Sequence[Timeline], calls: int, placement: Placement, c: Constants) -> float:
    """Microseconds from the start of the first launch to the end of the last one, where `records`
    are the launches of a call, and `calls` calls stand in a queue that never runs empty.
    """
    grids = [grid_of(record) for record in records]
    dealt = max(4, MOST_CLUSTERS // sum(len(grid.parts) for grid in grids))
    dealt = min(calls, dealt)
    ended = Queue(grids * dealt, placement, c, records[0].ghz).run()[len(grids) - 1 :: len(grids)]
    half = dealt // 2
    each = (ended[-1] - ended[half - 1]) / (dealt - half) if half else 0.0
    return ended[-1] + (calls - dealt) * each
