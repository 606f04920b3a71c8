"""The time that a stateful instruction takes its warp: a wrapper around its run function.

`wrap(ins, run)` gives a function of the same form as `run`. When it is called, `w.time` is
the simulated time of the warp in clk. Asynchronous effects go through the machine's `issue`, which
does not stop the warp.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import numpy as np

from b200 import effects as e
from b200.chip.memory.fill import ranges
from b200.chip.sync.mbarrier import barrier_operand
from b200.clock import membar
from b200.clock.constants import Constants
from b200.hardware import RANK_SHIFT
from b200.program.module import Instr
from b200.properties import properties
from b200.registry import Run, active, as_bools, find
from b200.spaces import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_MASK

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


def wrap(ins: Instr, run) -> Run:
    """The run function of an instruction, with the time that it takes added."""
    timed = _wrap(ins, run)
    if not membar.is_wide(ins):
        return timed
    entry = find(ins.opcode)
    if entry is not None and entry.style == "lane":
        return _after_fence_of_a_warp(ins, timed)
    return _after_fence(ins, timed)


def _wrap(ins: Instr, run):
    effect = ins.effect
    kind = type(effect)
    if isinstance(effect, e.Access):
        return _memory_access(run, effect)
    if isinstance(effect, e.MeetsInCta):
        return _cta_barrier(ins, run) if effect.waits else run
    if kind in WAITS:
        return WAITS[kind](ins, run)
    if isinstance(effect, e.Arrives) and effect.space == "shared::cluster":
        run = _over_the_cluster(ins, run)
    if kind in ONCE_A_WARP:
        return _once_a_warp(run, ONCE_A_WARP[kind])
    if kind in FIXED:
        return _fixed(run, FIXED[kind])
    if kind in NARROW and not membar.is_wide(ins):
        return _fixed(run, NARROW[kind])
    return run


def _after_fence(ins: Instr, run):
    def timed(w, *args):
        membar.wait(w, ins)
        return run(w, *args)

    return timed


def _after_fence_of_a_warp(ins: Instr, run):
    """MEMBAR.ALL.GPU is of the warp, however many lanes what comes after it is carried out for."""
    lanes = LanesOfAWarp()

    def timed(w, lane, *args):
        if lanes.first(w, lane):
            membar.wait(w, ins)
        got = run(w, lane, *args)
        lanes.done(w, lane)
        return got

    return timed


class LanesOfAWarp:
    """Finds the first lane of each execution of an instruction that is carried out lane by lane.

    A warp goes through its lanes in order, and between two lanes no time passes that `done` has not
    seen.
    """

    def __init__(self):
        self.last: tuple = (None, 0, 0.0)
        self.addresses: set[int] = set()

    def first(self, w, lane: int) -> bool:
        warp, before, time = self.last
        if warp is w and lane > before and w.time == time:
            return False
        self.addresses.clear()
        return True

    def done(self, w, lane: int) -> None:
        self.last = (w, lane, w.time)


def _once_a_warp(run, clk: Callable[[Constants], float]):
    """Lanes that name one address share an issue."""
    lanes = LanesOfAWarp()

    def timed(w, lane, address, *rest):
        lanes.first(w, lane)
        got = run(w, lane, address, *rest)
        if address not in lanes.addresses:
            lanes.addresses.add(address)
            w.time += clk(w.clock.constants)
        lanes.done(w, lane)
        return got

    return timed


def _over_the_cluster(ins: Instr, run):
    """An arrive at another CTA's barrier, which returns nothing, is there a while later. Lanes that
    a branch has parted from others of their warp meet them the later for it.
    """

    def timed(w, lane, address, *rest):
        if address >> RANK_SHIFT == w.cta.rank:
            return run(w, lane, address, *rest)
        c = w.clock.constants
        if w.mask != w.live:
            w.held = c.arrive_parted
        w.clock.at(w.time + c.dsmem_way, lambda: run(w, lane, address, *rest))
        return None

    return timed


def _fixed(run, clk: Callable[[Constants], float]):
    def timed(w, *args):
        got = run(w, *args)
        w.time += clk(w.clock.constants)
        return got

    return timed


def _mbarrier_wait(ins: Instr, run):
    """A phase that is complete is seen after mbarrier_try, and mbarrier_wake after it is; a warp
    that waited for it goes on mbarrier_asleep after it is, or mbarrier_asleep_parted, if it is
    lanes apart from others of their warp.
    """
    barrier_at = barrier_operand(ins)

    def timed(w, mask, address, *rest):
        done = run(w, mask, address, *rest)
        c = w.clock.constants
        if done:
            lanes = address[as_bools(mask & done)] if isinstance(address, np.ndarray) else [address]
            passed = {barrier_at(w, int(at)) for at in lanes}
            barrier, wake = max(passed, key=attrgetter("time")), c.mbarrier_wake
            if w.woken_by is barrier:
                wake = c.mbarrier_asleep if w.mask == w.live else c.mbarrier_asleep_parted
            w.woken_by = None
            at = barrier.time + wake - c.mbarrier_try
            if at > w.time:
                w.clock.stall(w, at, ins, "an mbarrier", barrier)
        w.time += c.mbarrier_try
        return done

    return timed


def _cta_barrier(ins, run):
    def timed(w, mask, number, *rest):
        got = run(w, mask, number, *rest)
        number = number if isinstance(number, int) else int(number[active(mask)[0]])
        barrier, c = w.cta.named_barriers[number], w.clock.constants
        if barrier.time > w.time:
            w.clock.stall(w, barrier.time, ins, "a CTA barrier")
        threads = rest[0] if rest and isinstance(rest[0], int) else 0
        w.time += c.bar_base + c.bar_warp * ((threads or w.cta.threads) // 32)
        return got

    return timed


def _cluster_wait(ins, run):
    def timed(w, *args):
        run(w, *args)
        at = w.cta.cluster.barrier.time
        if at > w.time:
            w.clock.stall(w, at, ins, "the cluster barrier")
        w.time += w.clock.constants.cluster_sync

    return timed


def _alloc(ins: Instr, run):
    def timed(w, *args):
        run(w, *args)
        w.time += w.clock.constants.tmem_alloc
        record = w.clock.record
        record.tmem_columns = max(record.tmem_columns, sum(w.cta.tmem_allocations.values()))

    return timed


def _grid_dependency(ins: Instr, run):
    """It takes no time of its own: what a launch waits for is reckoned afterwards (overlap.py)."""
    waits = ins.has("wait")

    def timed(w, *args):
        w.clock.record.depends(w, waits)
        return run(w, *args)

    return timed


def _tmem_wait(ins, run):
    def timed(w, *args):
        run(w, *args)
        if w.state.tmem_done > w.time:
            w.clock.stall(w, w.state.tmem_done, ins, "tensor memory")

    return timed


def _tmem_access(ins: Instr, run):
    """tcgen05.ld and st: the port of the warp's quarter moves 32 lanes of a column at a time."""
    effect = ins.effect
    assert isinstance(effect, (e.TensorLoads, e.TensorStores))
    columns, load = effect.registers, isinstance(effect, e.TensorLoads)

    def timed(w, *args):
        got = run(w, *args)
        c = w.clock.constants
        width = columns * (c.tmem_ld_column if load else c.tmem_st_column)
        port = w.core.tmem
        start = port.serve(w.time, width)
        done = start + width + (c.tmem_ld if load else c.tmem_st)
        w.state.tmem_done = max(w.state.tmem_done, done)
        end = start + width
        w.clock.record.unit(w.cta, "tensor memory", start, end, "ld" if load else "st")
        if load:
            w.clock.record.read_tmem(w)
        return got

    return timed


_WINDOWS = {0: "global", SHARED_WINDOW: "shared::cluster", LOCAL_WINDOW: "local"}


def _memory_access(run, effect: e.Access):
    """Loads, stores, atomics of a warp: the addresses decide."""
    if effect.in_constant_bank:
        return run
    space, nbytes = effect.space, effect.nbytes
    if isinstance(effect, (e.MatrixLoads, e.MatrixStores)):
        space = "shared"
    kind = _kind(effect)

    def timed_in(w, where: str, addresses: np.ndarray):
        if where == "global":
            w.clock.accesses.access_global(w, kind, addresses, nbytes, effect.cached)
        elif where.startswith("shared"):
            far = addresses >> RANK_SHIFT != w.cta.rank
            if where != "shared::cluster" or far.all() or not far.any():
                remote = where == "shared::cluster" and bool(far[0])
                w.clock.accesses.access_shared(w, kind, addresses, nbytes, remote)
                return
            for remote in (False, True):
                part = addresses[far == remote]
                w.clock.accesses.access_shared(w, kind, part, nbytes, remote)
        else:
            w.clock.accesses.access_local(w, kind)

    def timed(w, mask, *args):
        got = run(w, mask, *args)
        address = args[0]
        if isinstance(address, np.ndarray):
            addresses = address[as_bools(mask)].astype(np.int64)
        else:
            addresses = np.array([address], np.int64)
        if space != "generic":
            timed_in(w, space, addresses)
            return got
        windows = addresses & ~WINDOW_MASK
        for window in dict.fromkeys(windows.tolist()):
            inside = addresses[windows == window] & WINDOW_MASK
            timed_in(w, _WINDOWS.get(window, "param"), inside)
        return got

    return timed


def _fill(ins: Instr, run):
    """st.bulk: shared memory takes a range at the width of its banks, 128 bytes a clk, one range
    after the other. Nobody has measured it: grade "unknown".
    """

    def timed(w, mask, address, size, *rest):
        run(w, mask, address, size, *rest)
        for _, at, nbytes in ranges(mask, address, size):
            where = np.array([at & WINDOW_MASK], np.int64)
            w.clock.accesses.access_shared(w, "st", where, nbytes, remote=False)

    return timed


def _kind(effect: e.Access) -> str:
    """What an access is to the memory system: "ld", "st", "atom" or "red"."""
    if isinstance(effect, e.Updates):
        return "atom" if effect.returns else "red"
    return "ld" if properties(effect).gives else "st"


# Waits, and what uses the ports of tensor memory or of shared memory: wrapper(ins, run).
WAITS: dict[type[e.Effect], Callable[..., Run]] = {
    e.WaitsForPhase: _mbarrier_wait,
    e.WaitsInCluster: _cluster_wait,
    e.WaitsForTensor: _tmem_wait,
    e.TensorLoads: _tmem_access,
    e.TensorStores: _tmem_access,
    e.AllocatesTensor: _alloc,
    e.OrdersGrids: _grid_dependency,
    e.Fills: _fill,
}
# What takes its warp no time beyond its issue: it works on registers (rates.py), the unit that it
# is given to takes the time (units.py), or what it waits for is done here at once.
NO_TIME: tuple[type[e.Effect], ...] = (
    *(
        e.Exchanges,
        e.Elects,
        e.MultipliesInWarp,
        e.Transposes,
        e.LooksAtLanes,
        e.Jumps,
        e.Traps,
        e.Sleeps,
    ),
    *(
        e.Hints,
        e.Discards,
        e.CallsSystem,
        e.MeetsInWarp,
        e.Copies,
        e.ArrivesBehindCopies,
        e.CommitsGroup,
    ),
    *(e.WaitsForGroups, e.RequestsWork, e.ReadsRequest, e.InvalidatesMbarrier),
    *(e.EndsAllocation, e.FencesTensor, e.FencesTensormap, e.EditsTensormap, e.PublishesTensormap),
)
