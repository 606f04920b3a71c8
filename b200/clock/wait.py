"""The time that a stateful instruction takes its warp: a wrapper around its run function.

`wrap(ins, run)` gives a function of the same form as `run`. When it is called, `w.time` is
the simulated time of the warp in clk. Asynchronous effects go through the machine's `issue`, which
does not stop the warp.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from b200 import effects as e
from b200.chip.memory.addressing import ranges
from b200.chip.sync.mbarrier_instructions import barrier_operand
from b200.clock import membar
from b200.clock.constants import Constants
from b200.hardware import RANK_SHIFT
from b200.program.module import Instr
from b200.registry import LaneValues, Run, active, as_bools, find
from b200.spaces import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_MASK

if TYPE_CHECKING:
    from b200.clock.timed import TimedFragment

Clk = Callable[[Constants], float]
# Instructions that one thread issues in PTX and a warp in SASS (sm_100a, nvcc 13.0: SYNCS.EXCH,
# SYNCS.ARRIVE, UTMACCTL.PF): the clk are paid once for all lanes that name the same address.
ONCE_A_WARP: dict[type[e.Effect], Clk] = {
    e.InitsMbarrier: lambda c: c.mbarrier_init,
    **dict.fromkeys((e.Arrives, e.ExpectsBytes, e.CompletesBytes), lambda c: c.mbarrier_arrive),
    e.PrefetchesTensormap: lambda c: c.descriptor_prefetch,
}
# Instructions that only take their warp a fixed time: effect -> clk to add. Those of one thread
# take it for every lane: SASS has a loop of ELECT, UTCHMMA or UTCBAR, BRA.U.ANY.
FIXED: dict[type[e.Effect], Clk] = {
    **dict.fromkeys((e.Multiplies, e.Commits, e.ShiftsRows), lambda c: c.mma_issue),
    e.CopiesToTensor: lambda c: c.cp_issue,
    e.FreesTensor: lambda c: c.tmem_dealloc,
    e.SetsRegisters: lambda c: c.setmaxnreg,
    e.ArrivesInCluster: lambda c: c.mbarrier_arrive,
}
# Fences that are no fence of all memory.
NARROW: dict[type[e.Effect], Clk] = {
    e.FencesProxy: lambda c: c.fence_async,
    **dict.fromkeys((e.FencesMemory, e.FencesInits), lambda c: c.fence_cta),
}


def wrap(ins: Instr, run: Run) -> Run:
    """The run function of an instruction, with the time that it takes added."""
    timed = _wrap(ins, run)
    if not membar.is_wide(ins):
        return timed
    entry = find(ins.opcode)
    if entry is not None and entry.style == "lane":
        return _after_fence_of_a_warp(ins, timed)
    return _after_fence(ins, timed)


def _wrap(ins: Instr, run: Run) -> Run:
    effect = ins.effect
    kind = type(effect)
    if isinstance(effect, e.Access):
        return _memory_access(run, effect)
    if effect.properties.lanes and effect.properties.sized:
        return _ranges(run, effect)
    if isinstance(effect, e.MeetsInCta):
        return _cta_barrier(ins, run) if effect.waits else run
    if kind in WAITS:
        return WAITS[kind](ins, run)
    if isinstance(effect, e.Arrives) and effect.space == "shared::cluster":
        run = _over_the_cluster(run)
    if kind in ONCE_A_WARP:
        return _once_a_warp(run, ONCE_A_WARP[kind])
    if kind in FIXED:
        return _fixed(run, FIXED[kind])
    if kind in NARROW and not membar.is_wide(ins):
        return _fixed(run, NARROW[kind])
    return run


def _after_fence(ins: Instr, run: Run) -> Run:
    def timed(warp: TimedFragment, *args: Any) -> Any:
        membar.wait(warp, ins)
        return run(warp, *args)

    return timed


def _after_fence_of_a_warp(ins: Instr, run: Run) -> Run:
    """MEMBAR.ALL.GPU is of the warp, however many lanes what comes after it is carried out for."""
    lanes = LanesOfAWarp()

    def timed(warp: TimedFragment, lane: int, *args: Any) -> Any:
        if lanes.first(warp, lane):
            membar.wait(warp, ins)
        got = run(warp, lane, *args)
        lanes.done(warp, lane)
        return got

    return timed


class LanesOfAWarp:
    """Finds the first lane of each execution of an instruction that is carried out lane by lane.

    A warp goes through its lanes in order, and between two lanes no time passes that `done` has not
    seen.
    """

    def __init__(self):
        self.last: tuple[TimedFragment | None, int, float] = (None, 0, 0.0)
        self.addresses: set[int] = set()

    def first(self, warp: TimedFragment, lane: int) -> bool:
        last, before, time = self.last
        if last is warp and lane > before and warp.time == time:
            return False
        self.addresses.clear()
        return True

    def done(self, warp: TimedFragment, lane: int) -> None:
        self.last = (warp, lane, warp.time)


def _once_a_warp(run: Run, clk: Callable[[Constants], float]) -> Run:
    """Lanes that name one address share an issue."""
    lanes = LanesOfAWarp()

    def timed(warp: TimedFragment, lane: int, address: int, *rest: Any) -> Any:
        lanes.first(warp, lane)
        got = run(warp, lane, address, *rest)
        if address not in lanes.addresses:
            lanes.addresses.add(address)
            warp.time += clk(warp.clock.constants)
        lanes.done(warp, lane)
        return got

    return timed


def _over_the_cluster(run: Run) -> Run:
    """An arrive at another CTA's barrier, which returns nothing, is there a while later. Lanes that
    a branch has parted from others of their warp meet them the later for it.
    """

    def timed(warp: TimedFragment, lane: int, address: int, *rest: Any) -> Any:
        if address >> RANK_SHIFT == warp.cta.rank:
            return run(warp, lane, address, *rest)
        c = warp.clock.constants
        if warp.mask != warp.live:
            warp.held = c.arrive_parted
        warp.clock.at(warp.time + c.dsmem_way, lambda: run(warp, lane, address, *rest))
        return None

    return timed


def _fixed(run: Run, clk: Callable[[Constants], float]) -> Run:
    def timed(warp: TimedFragment, *args: Any) -> Any:
        got = run(warp, *args)
        warp.time += clk(warp.clock.constants)
        return got

    return timed


def _mbarrier_wait(ins: Instr, run: Run) -> Run:
    """A phase that is complete is seen after mbarrier_try, and mbarrier_wake after it is; a warp
    that waited for it goes on mbarrier_asleep after it is, or mbarrier_asleep_parted, if it is
    lanes apart from others of their warp.
    """
    barrier_at = barrier_operand(ins)

    def timed(warp: TimedFragment, mask: int, address: LaneValues, *rest: Any) -> Any:
        done = run(warp, mask, address, *rest)
        c = warp.clock.constants
        if done:
            lanes = [address]
            if isinstance(address, np.ndarray):
                lanes = dict.fromkeys(address[as_bools(mask & done)].tolist())
            passed = [barrier_at(warp, int(at)) for at in lanes]
            barrier, wake = max(passed, key=attrgetter("time")), c.mbarrier_wake
            if warp.woken_by is barrier:
                wake = c.mbarrier_asleep if warp.mask == warp.live else c.mbarrier_asleep_parted
            warp.woken_by = None
            at = barrier.time + wake - c.mbarrier_try
            if at > warp.time:
                warp.clock.stall(warp, at, ins, "an mbarrier", barrier)
        warp.time += c.mbarrier_try
        return done

    return timed


def _cta_barrier(ins: Instr, run: Run) -> Run:
    effect = ins.effect
    counted = isinstance(effect, e.MeetsInCta) and effect.counted

    def timed(warp: TimedFragment, mask: int, number: LaneValues, *rest: Any) -> Any:
        got = run(warp, mask, number, *rest)
        barrier = warp.cta.named_barriers[_of_a_lane(number, mask)]
        c = warp.clock.constants
        if barrier.time > warp.time:
            warp.clock.stall(warp, barrier.time, ins, "a CTA barrier")
        threads = _of_a_lane(rest[0], mask) if rest and counted else 0
        warp.time += c.bar_base + c.bar_warp * ((threads or warp.cta.threads) // 32)
        return got

    return timed


def _of_a_lane(value: LaneValues, mask: int) -> int:
    """An operand that all lanes under a mask have alike."""
    return int(value[active(mask)[0]]) if isinstance(value, np.ndarray) else int(value)


def _cluster_wait(ins: Instr, run: Run) -> Run:
    def timed(warp: TimedFragment, *args: Any) -> Any:
        run(warp, *args)
        at = warp.cta.cluster.barrier.time
        if at > warp.time:
            warp.clock.stall(warp, at, ins, "the cluster barrier")
        warp.time += warp.clock.constants.cluster_sync

    return timed


def _alloc(ins: Instr, run: Run) -> Run:
    def timed(warp: TimedFragment, *args: Any) -> Any:
        run(warp, *args)
        warp.time += warp.clock.constants.tmem_alloc
        record = warp.clock.record
        record.tmem_columns = max(record.tmem_columns, sum(warp.cta.tmem_allocations.values()))

    return timed


def _grid_dependency(ins: Instr, run: Run) -> Run:
    """It takes no time of its own: what a launch waits for is reckoned afterwards (overlap.py)."""
    waits = ins.has("wait")

    def timed(warp: TimedFragment, *args: Any) -> Any:
        warp.clock.record.depends(warp, waits)
        return run(warp, *args)

    return timed


def _tmem_wait(ins: Instr, run: Run) -> Run:
    def timed(warp: TimedFragment, *args: Any) -> Any:
        run(warp, *args)
        if warp.state.tmem_done > warp.time:
            warp.clock.stall(warp, warp.state.tmem_done, ins, "tensor memory")

    return timed


def _tmem_access(ins: Instr, run: Run) -> Run:
    """tcgen05.ld and st: the port of the warp's quarter moves 32 lanes of a column at a time."""
    effect = ins.effect
    assert isinstance(effect, (e.TensorLoads, e.TensorStores))
    columns, load = effect.registers, isinstance(effect, e.TensorLoads)

    def timed(warp: TimedFragment, *args: Any) -> Any:
        got = run(warp, *args)
        c = warp.clock.constants
        width = columns * (c.tmem_ld_column if load else c.tmem_st_column)
        port = warp.core.tmem
        start = port.serve(warp.time, width)
        done = start + width + (c.tmem_ld if load else c.tmem_st)
        warp.state.tmem_done = max(warp.state.tmem_done, done)
        end = start + width
        warp.clock.record.unit(warp.cta, "tensor memory", start, end, "ld" if load else "st")
        if load:
            warp.clock.record.read_tmem(warp)
        return got

    return timed


_WINDOWS = {0: "global", SHARED_WINDOW: "shared::cluster", LOCAL_WINDOW: "local"}


def _memory_access(run: Run, effect: e.Access) -> Run:
    """Loads, stores, atomics of a warp: the addresses decide."""
    if effect.in_constant_bank:
        return run
    space, nbytes, cached = effect.space, effect.nbytes, effect.cached
    if isinstance(effect, (e.MatrixLoads, e.MatrixStores)):
        space = "shared"
    kind = _kind(effect)

    def timed(warp: TimedFragment, mask: int, *args: Any) -> Any:
        got = run(warp, mask, *args)
        address = args[0]
        if isinstance(address, np.ndarray):
            addresses = address[as_bools(mask)].astype(np.int64)
        else:
            addresses = np.array([address], np.int64)
        _access(warp, kind, space, addresses, nbytes, cached)
        return got

    return timed


def _ranges(run: Run, effect: e.Effect) -> Run:
    """Ranges of one memory that an operand gives the size of, one after the other. Shared memory
    takes one at the width of its banks, 128 bytes a clk. Nobody has measured it: grade "unknown".
    """
    kind, asked = _kind(effect), effect.properties
    (memory,) = {*asked.reads, *asked.writes}

    def timed(
        warp: TimedFragment, mask: int, address: LaneValues, size: LaneValues, *rest: Any
    ) -> Any:
        got = run(warp, mask, address, size, *rest)
        for _, at, nbytes in ranges(mask, address, size):
            where = np.array([at & WINDOW_MASK], np.int64)
            _access_in(warp, kind, memory, where, nbytes, cached=True)
        return got

    return timed


def _access(
    warp: TimedFragment, kind: str, space: str, addresses: np.ndarray, nbytes: int, cached: bool
) -> None:
    """A warp accesses `nbytes` at each of some addresses of a state space."""
    if space != "generic":
        _access_in(warp, kind, space, addresses, nbytes, cached)
        return
    windows = addresses & ~WINDOW_MASK
    for window in dict.fromkeys(windows.tolist()):
        inside = addresses[windows == window] & WINDOW_MASK
        _access_in(warp, kind, _WINDOWS.get(window, "param"), inside, nbytes, cached)


def _access_in(
    warp: TimedFragment, kind: str, space: str, addresses: np.ndarray, nbytes: int, cached: bool
) -> None:
    accesses = warp.clock.accesses
    if space == "global":
        accesses.access_global(warp, kind, addresses, nbytes, cached)
    elif space.startswith("shared"):
        far = addresses >> RANK_SHIFT != warp.cta.rank
        if space != "shared::cluster" or far.all() or not far.any():
            remote = space == "shared::cluster" and bool(far[0])
            accesses.access_shared(warp, kind, addresses, nbytes, remote)
            return
        for remote in (False, True):
            accesses.access_shared(warp, kind, addresses[far == remote], nbytes, remote)
    else:
        accesses.access_local(warp, kind)


def _kind(effect: e.Effect) -> str:
    """What an access is to the memory system: "ld", "st", "atom" or "red"."""
    if isinstance(effect, e.Updates):
        return "atom" if effect.returns else "red"
    return "ld" if effect.properties.gives else "st"


# Waits, and what uses the ports of tensor memory or of shared memory: wrapper(ins, run).
WAITS: dict[type[e.Effect], Callable[..., Run]] = {
    e.WaitsForPhase: _mbarrier_wait,
    e.WaitsInCluster: _cluster_wait,
    e.WaitsForTensor: _tmem_wait,
    e.TensorLoads: _tmem_access,
    e.TensorStores: _tmem_access,
    e.AllocatesTensor: _alloc,
    e.OrdersGrids: _grid_dependency,
}
# Those without a line work on registers (rates.py), or access memory (_memory_access). These take
# their warp no time beyond their issue: the unit that they are given to takes the time (units.py),
# or what they wait for is done here at once.
NO_TIME: tuple[type[e.Effect], ...] = (
    *(e.Discards, e.CallsSystem, e.Copies, e.ArrivesBehindCopies, e.CommitsGroup),
    *(e.WaitsForGroups, e.RequestsWork, e.ReadsRequest, e.InvalidatesMbarrier),
    *(e.EndsAllocation, e.FencesTensor, e.FencesTensormap, e.EditsTensormap, e.PublishesTensormap),
)
