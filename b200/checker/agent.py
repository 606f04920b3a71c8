"""A warp as the checker sees it: what it is ordered after, by its vector clock (vector_clocks.py).

Acquires and releases by some lanes tell its lanes apart (memory/lane_sync.py).
Operations that it issues and that end later lie in streams (streams.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from b200.checker.memory.lane_sync import LaneAcquire, LaneAcquires, LaneRelease, left_out
from b200.checker.streams import LatestCopies, Told, WarpStream
from b200.checker.vector_clocks import (
    AFTER,
    ASYNC,
    BEFORE,
    CTA,
    FENCED,
    FENCES,
    GLOBAL,
    HB,
    INIT,
    ORDER,
    PENDING,
    ROWS,
    SHARED_ROWS,
    TENSOR,
    join,
    lanes_among,
    order_of,
    weakened,
)
from b200.registry import FULL, active

if TYPE_CHECKING:
    from b200.checker.accesses import Barrier, ClusterState, Record
    from b200.checker.memory.lane_sync import Ticket
    from b200.chip.fragment import WarpState
    from b200.program.module import Instr


class Agent:
    """A warp as the checker sees it. state: the checker's state of its cluster.

    epoch: number of its current stretch of instructions between two releases. roles: what it was
    seen doing, such as "store". waits: mbarrier -> (parity, phases completed then, instruction) of
    its latest wait. touched: lanes with accesses after which there was no release of all lanes and
    no bar.warp.sync. base: epoch of the latest of these. met: epoch at the latest other instruction
    that brought the lanes together. lane_releases: epoch -> the releases by some lanes that have it
    (lane_release_rule.py): of a fence's, one for each that it orders. lane_components: (lanes,
    instruction) -> the component of these. lane_acquire: the present acquire, None if all lanes
    acquire. lane_acquires: what such acquires have told (lane_sync.py). looked: mbarrier ->
    (parity, instruction, failed) of a test_wait or try_wait there that failed and was not repeated
    so far, or that passed and whose answer nobody heeds. heeds: whether anything depends on what
    the present access reads (dependents.py).
    """

    def __init__(self, state: ClusterState, warp: WarpState):
        self.state, self.components = state, state.components
        self.cta, self.index = warp.cta, warp.index
        self.component = self.components.new()
        self.epoch = 1
        self.touched = self.base = self.met = 0
        self.lane_releases: dict[int, list[LaneRelease]] = {}
        self.lane_components: dict[tuple[int, Instr | None], int] = {}
        self.lane_acquire: LaneAcquire | None = None
        self.lane_acquires: LaneAcquires | None = None
        self.lanes = FULL  # that execute the present access
        self.clock = np.zeros((ROWS, max(64, self.components.count + 32)), np.int32)
        self.snapshot: np.ndarray | None = None
        self.fenced: np.ndarray | None = None  # clock at the latest fence
        # (epoch, lanes) of each fence.proxy.async by some
        self.half_fences: deque[tuple[int, int]] = deque(maxlen=256)
        # snapshot, distance, the clock of a relaxed arrive
        self.weak: tuple[np.ndarray, int, np.ndarray] | None = None
        # distance -> what relaxed waits for that far have brought, for the next fence
        self.acquired: dict[int, np.ndarray] = {}
        # The same of what its own lanes have released: (turn, distance, by whom, clock)
        self.acquired_own: list[tuple[int, int, LaneAcquire, np.ndarray]] = []
        self.relaxed_wait: Instr | None = None  # the latest of these
        self.streams: dict[tuple[str, int | None], WarpStream] = {}  # by name, lane or None
        self.roles: set[str] = set()
        # (key of an instruction, rank of the CTA, whether of parts of words) -> of generic accesses
        self.records: dict[tuple[int, int, bool], Record] = {}
        # mbarrier -> parity, phases so far, instruction of the latest wait; the latest one is last
        self.waits: dict[Barrier, tuple[int, int, Instr]] = {}
        # mbarrier -> parity, instruction of the latest look, whether it has failed
        self.looked: dict[Barrier, tuple[int, Instr, bool]] = {}
        self.heeds = True
        # (mbarrier, parity, instruction, that of the wait before) of a wait as the one before
        self.again: tuple[Barrier, int, Instr, Instr] | None = None
        # (mbarrier, wait) -> how often it has passed, and how often as another wait had before
        self.passes: dict[tuple[Barrier, Instr], int] = {}
        self.doubled: dict[tuple[Barrier, Instr], int] = {}
        # id() of a tcgen05.ld -> the record of its latest execution
        self.loads: dict[int, Record] = {}
        # ld of global memory -> addresses of its latest executions, where warps are replicas
        self.loaded: dict[int, list[np.ndarray]] = {}
        self.copies = LatestCopies()
        # of bar.warp.sync and other barriers: lanes see each other's stores of earlier turns
        self.turn = 0
        # (turn, for each lane the epoch up to which it knows of each other's accesses)
        self.lane_order: tuple[int, np.ndarray | None] = -1, None
        self.tickets: deque[Ticket] = deque(maxlen=64)  # taken lately (memory/lane_sync.py)
        self.in_step = 0  # the lanes that execute the present access, or are predicated off there
        # mbarriers whose initialisation it is known to see; (mbarrier, 1): the async proxy, too
        self.trusted: set[Barrier | tuple[Barrier, int]] = set()
        self.started: set[int] = {self.cta.rank}  # ranks known to run, or said not to be
        self.last_copy: Record | None = None  # out of shared memory, in a bulk group
        self.registers: tuple[int, Instr] | None = None  # of its latest setmaxnreg, and that

    def stream(self, name: str, lane: int | None = None) -> WarpStream:
        """lane: of operations that a lane issues for itself, None where the warp has one stream."""
        found = self.streams.get((name, lane))
        if found is None:
            found = self.streams[name, lane] = WarpStream(self.components.new())
        return found

    def streams_of(self, name: str, lanes: int = FULL) -> list[WarpStream]:
        """The streams of this name that some lanes have operations in."""
        return [
            stream
            for (of, lane), stream in self.streams.items()
            if of == name and (lane is None or lanes >> lane & 1)
        ]

    def knows(self, row: int, component: int, step: int) -> bool:
        clock = self.clock
        return component < clock.shape[1] and clock[row, component] >= step

    def waited_for(self, stream: WarpStream, step: int, lanes: int = FULL) -> None:
        """Lanes have waited for the operations to `step` of one of the warp's own streams."""
        at = stream.component
        known = int(self.clock[HB, at]) if at < self.clock.shape[1] else 0
        if step > known:
            stream.told.append(Told(known, step, self.turn, self.now(), lanes))
        self.learn(at, step)

    def learn(self, component: int, step: int) -> None:
        """The warp has waited for step `step` of one of its own streams."""
        self._widen(component)
        self.clock[(HB, ORDER), component] = np.maximum(self.clock[(HB, ORDER), component], step)
        self._changed()

    def learn_order(self, component: int, step: int) -> None:
        """A step happened before in the order of execution, which says nothing about memory."""
        self._widen(component)
        self.clock[ORDER, component] = max(self.clock[ORDER, component], step)
        self._changed()

    def _widen(self, component: int) -> None:
        if component >= self.clock.shape[1]:
            wide = np.zeros((ROWS, component + 64), np.int32)
            wide[:, : self.clock.shape[1]] = self.clock
            self.clock = wide

    def _changed(self) -> None:
        if self.snapshot is not None:
            self._next_epoch()

    def _next_epoch(self) -> None:
        self.epoch += 1
        self.snapshot = None

    def _settle(self) -> None:
        """Nothing that a lane has done is left that a release does not hand over."""
        self.touched, self.base = 0, self.epoch

    def forget(self) -> None:
        """The cluster has ended: forget copies of the clock."""
        self.snapshot = self.weak = self.lane_acquires = None
        self.acquired.clear()
        self.acquired_own.clear()

    def now(self) -> int:
        """The epoch of an access that the warp makes now."""
        self._changed()
        return self.epoch

    def release(self, lanes: int = FULL, ins: Instr | None = None) -> np.ndarray:
        """The clock that a release by this warp publishes: [SHARED_ROWS, n], which nobody
        may change. lanes: those that release, by instruction `ins`.
        """
        if self.touched & ~lanes or self.epoch in self.lane_releases:
            return self._release_of(lanes, ins)
        if self.snapshot is None:
            self._settle()
            return self._snapshot()
        return self.snapshot

    def _snapshot(self) -> np.ndarray:
        self._widen(self.component)
        self.clock[(HB, ORDER), self.component] = self.epoch
        snapshot = self.clock[:SHARED_ROWS].copy()
        np.maximum(snapshot[TENSOR], self.clock[BEFORE], out=snapshot[TENSOR])
        self.snapshot = snapshot
        return snapshot

    def _release_of(self, lanes: int, ins: Instr | None) -> np.ndarray:
        """A release by some lanes, or one after it: its epoch is no other release's."""
        left, before = self.touched & ~self._met(lanes), self.lane_releases.get(self.epoch)
        if self.snapshot is not None:
            if before is not None and left and before[-1].ins is ins:  # further lanes of it
                release = before[-1]
                release.left, release.lanes = release.left & left, release.lanes | lanes
                if not release.left:
                    del self.lane_releases[self.epoch]
                    self._settle()
                return self.snapshot
            self._changed()
        if not left:
            self._settle()
            return self._snapshot()
        component = self.lane_components.get((lanes, ins))
        if component is None:
            component = self.lane_components[lanes, ins] = self.components.new()
        self._widen(component)
        snapshot = self._snapshot()
        release = LaneRelease(ins, lanes, component, left, self.base, self.met)
        for row in FENCES:  # a fence keeps the epoch before its own for this (fence_release)
            if (fenced := int(snapshot[row, self.component])) > self.base:
                snapshot[row, self.component] = snapshot[row, component] = fenced - 1
                others = self.lane_releases.setdefault(fenced - 1, [])
                if release not in others:
                    others.append(release)
        snapshot[HB, component] = self.epoch
        self.lane_releases[self.epoch] = [release]
        return snapshot

    def _met(self, lanes: int) -> int:
        """Some lanes, and those that they have met in groups since all came together."""
        if (order := self.in_groups) is None:
            return lanes
        return lanes | int((1 << np.flatnonzero(order[active(lanes)].max(0) > self.base)).sum())

    def together(self) -> None:
        """bar.warp.sync: each lane knows what the others have done and acquired."""
        self.turn += 1
        self.lane_acquires = None
        if self.touched:
            self._settle()
            self._next_epoch()

    def together_in(self, groups: set[int]) -> None:
        """bar.warp.sync by groups of lanes, each of which names its own."""
        if (order := self.in_groups) is None:
            order = np.zeros((32, 32), np.int32)
            self.lane_order = self.turn, order
        for group in groups:
            lanes = active(group)
            order[lanes, lanes] = self.epoch
            order[lanes] = order[lanes].max(0)
        if any(not self.touched & ~group for group in groups):
            self._settle()
        self.lane_acquires = None
        self._next_epoch()

    @property
    def in_groups(self) -> np.ndarray | None:
        """The order of lanes that have met in groups in this turn; None if all are together."""
        turn, order = self.lane_order
        return order if turn == self.turn else None

    def in_order(self, step: int, before: np.ndarray, lanes: np.ndarray | int) -> np.ndarray | bool:
        """Whether lanes know of accesses that the warp's lanes `before` have made up to epoch
        `step` of this turn: by such groups, or by what they have acquired of one another. A marker
        in place of a lane (shadow.py) knows by groups alone.
        """
        one, other = np.broadcast_arrays(before, lanes)
        found = np.zeros(one.shape, bool)
        if (order := self.in_groups) is not None:
            found |= (one >= 32) | (other >= 32)
            found |= order[np.minimum(other, 31), np.minimum(one, 31)] >= step
        for ticket in self.tickets:
            if ticket.turn == self.turn and ticket.epoch >= step:
                found |= ticket.orders(one, other)
        acquired = self.lane_acquires.rows if self.lane_acquires is not None else {}
        for lanes_, row in acquired.items():
            known = int(row[self.component]) if self.component < row.size else 0
            if known >= step:
                left = left_out(self, step, row)
                knows = FULL & ~left[1] if left else FULL
                found |= lanes_among(lanes_, other) & lanes_among(knows, one)
        return found

    def release_relaxed(
        self, distance: int, lanes: int = FULL, ins: Instr | None = None
    ) -> np.ndarray:
        """The clock of an arrive that does not release to a waiter at this distance. It hands over
        the order of execution, fenced initialisations, tensor memory (9.7.16.6.4 has relaxed
        arrives), and what a fence covers.
        """
        released = self.release(lanes, ins)
        if self.weak is not None and self.weak[0] is released and self.weak[1] == distance:
            return self.weak[2]
        clock = weakened(released, distance)
        self.weak = released, distance, clock
        return clock

    def lanes_acquire(self, clock: np.ndarray | None) -> None:
        """Lanes are about to acquire a clock; None for one of another cluster."""
        if self.lane_acquire is None:
            self.lane_acquires = None
            return
        lanes, ins, _ = self.lane_acquire
        if self.lane_acquires is None:
            self.lane_acquires = LaneAcquires(self.clock.copy())
            self.lane_acquires.before[HB, self.component] = self.epoch
            self._next_epoch()
        self.lane_acquires.add(lanes, self.clock[HB, :0] if clock is None else clock[HB], ins)

    def acquire_own(self, clock: np.ndarray, ins: Instr) -> None:
        """Lanes are about to acquire a clock that others of the warp have released."""
        present, self.lane_acquire = self.lane_acquire, LaneAcquire(self.lanes, ins)
        self.lanes_acquire(clock)
        self.lane_acquire = present
        components = [c for c in self.lane_components.values() if c < clock.shape[1]]
        mine, its = self.clock[HB, components], clock[HB, components]
        if (its > mine).any():  # who acquires from these lanes knows it, too
            self.clock[HB, components] = np.maximum(mine, its)
            self._changed()

    def acquire(self, clock: np.ndarray) -> None:
        """Join a clock that came through an mbarrier: tensor memory included."""
        if self.lane_acquire is not None or self.lane_acquires is not None:
            self.lanes_acquire(clock)
        self.turn += self.lane_acquire is None
        self.clock = join(self.clock, clock)
        self._changed()

    def acquire_relaxed(self, clock: np.ndarray, ins: Instr, far: int = CTA) -> None:
        """Join the clock of a relaxed wait: all but memory. A later fence whose scope reaches as
        far may bring memory.
        """
        self.acquire_barrier(order_of(clock))
        have = self.acquired.get(far)
        self.acquired[far] = clock.copy() if have is None else join(have, clock)
        self.relaxed_wait = ins

    def acquire_own_relaxed(self, clock: np.ndarray, ins: Instr, far: int = CTA) -> None:
        """The same of a clock that other lanes of the warp have released: for a later fence by the
        lanes that have read it. Once all have met, they know it without one.
        """
        kept = [entry for entry in self.acquired_own if entry[0] == self.turn]
        if not any(by.lanes == self.lanes and known is clock for _, _, by, known in kept):
            kept.append((self.turn, far, LaneAcquire(self.lanes, ins), clock))
        self.acquired_own = kept

    def acquire_barrier(self, clock: np.ndarray) -> None:
        """Join a clock of bar.sync or the cluster barrier; TENSOR at the next tcgen05 fence."""
        if self.lane_acquire is not None or self.lane_acquires is not None:
            self.lanes_acquire(clock)
        self.turn += self.lane_acquire is None
        n = clock.shape[1]
        self._widen(n - 1)
        mine, pending = self.clock[:TENSOR, :n], self.clock[PENDING, :n]
        np.maximum(mine, clock[:TENSOR], out=mine)
        np.maximum(pending, clock[TENSOR], out=pending)
        self._changed()

    # --- fences ---------------------------------------------------------------------------------
    def fence_async_global(self) -> None:
        self._raise(GLOBAL, HB)

    def _raise(self, row: int, to: int) -> None:
        self.clock[(HB, ORDER), self.component] = self.epoch
        np.maximum(self.clock[row], self.clock[to], out=self.clock[row])
        self._next_epoch()

    def fence_async(self, lanes: int = FULL) -> None:
        """fence.proxy.async for shared memory: the async proxy now sees the generic accesses
        before it. Of its own warp's, a fence by some lanes covers theirs, and what is in order
        with them (half_fences).
        """
        whole, lanes = self.clock[ASYNC, self.component], self._met(lanes)
        half = self.touched & ~lanes
        if half:
            self.half_fences.append((self.epoch, lanes))
        self._raise(ASYNC, HB)
        if half:
            self.clock[ASYNC, self.component] = max(whole, self.base)
        self.clock[INIT] = np.maximum(self.clock[INIT], self.clock[HB])

    def half_fenced(self, by: Agent, step: int, lanes: int) -> bool:
        """Whether fence.proxy.async of some lanes each of warp `by`, of which this one knows, cover
        what `lanes` there have done in epoch `step`.
        """
        known = [
            fenced
            for epoch, fenced in by.half_fences
            if step <= epoch and (by is self or self.knows(HB, by.component, epoch + 1))
        ]
        for fenced in known:
            lanes &= ~fenced
        return bool(known) and not lanes

    def fence_init(self) -> None:
        self._raise(INIT, HB)

    def fence_before(self) -> None:
        self._raise(BEFORE, HB)

    def fence_after(self) -> None:
        self._raise(TENSOR, PENDING)
        self._raise(AFTER, HB)

    def fence_acquire(self, scope: int) -> None:
        """fence.acquire, and the first half of fence.acq_rel, fence.sc, membar: relaxed operations
        before the fence order memory, as far as its scope reaches. A fence of every lane counts for
        what one of them has acquired, as one of another thread does (memory-order.md, choices).
        """
        if self.lane_acquire is None or self.lane_acquire.every:
            self.lane_acquires = None
        for ticket in self.tickets:
            ticket.acquired |= self.lanes
        for far in [far for far in self.acquired if far <= scope]:
            self.acquire_barrier(self.acquired.pop(far))
        for turn, far, by, clock in self.acquired_own:
            if turn == self.turn and far <= scope and by.lanes & self.lanes:
                self.acquire_own(clock, by.ins)

    def fence_release(self, scope: int) -> None:
        """fence.release, and the other half: relaxed operations behind the fence order memory."""
        for distance in range(scope + 1):
            self._raise(FENCED + distance, HB)
        # The epoch before is for releases by some lanes after the fence (_release_of).
        self.clock[FENCED : FENCED + scope + 1, self.component] = self.epoch + 1
        self.epoch += 2
        self.fenced = self.clock[:SHARED_ROWS].copy()
