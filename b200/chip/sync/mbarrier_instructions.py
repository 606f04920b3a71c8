"""The instructions of mbarriers (PTX ISA 9.7.13.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from b200 import effects as e
from b200.chip.memory.addressing import issuer, resolver, space_of
from b200.chip.memory.loads_stores import memory_scope, order_of
from b200.chip.sync.mbarrier import MAX_COUNT, AnyOf, MBarrier, mbarrier_at
from b200.errors import Fault, Unsupported
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import SINK, Instr
from b200.registry import (
    FULL,
    QUIET,
    Blocked,
    FailedWaits,
    LaneValues,
    Pure,
    Run,
    Waitable,
    active,
    lane,
    pure,
    warp,
)
from b200.registry import lanes as lanes_of

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

# How often in a row a wait may fail before its warp is parked. test_wait never blocks in hardware:
# a warp that polls it this often without doing anything else is taken to be spinning.
PATIENCE = {"try_wait": 1, "test_wait": 256}


def barrier_operand(ins: Instr) -> Callable[[Any, int], MBarrier]:
    """find(warp, address) -> MBarrier for the mbarrier operand of an instruction."""
    space = space_of(ins)
    locate = resolver(space)

    def find(warp: Fragment, address: int) -> MBarrier:
        return mbarrier_at(*locate(warp, address, 8, 8))

    def find_own(warp: Fragment, address: int) -> MBarrier:
        cta, rank = warp.cta, address >> RANK_SHIFT
        found = cta.mbarriers.get(address & OFFSET_MASK) if not rank or rank == cta.rank else None
        return found if found is not None else find(warp, address)

    return find_own if space == "shared::cta" else find


@lane("mbarrier.init", states=e.InitsMbarrier())
def mbarrier_init(ins: Instr) -> Run:
    """mbarrier.init{.shared{::cta}}.b64 [addr], count; illegal on a barrier in mid-phase."""
    locate = resolver(space_of(ins))

    def run(warp: Fragment, lane: int, address: int, count: int) -> None:
        cta, offset = locate(warp, address, 8, 8)
        old = cta.mbarriers.get(offset)
        if old is not None and (old.waiters or not old.idle):
            raise Fault(f"mbarrier.init over an mbarrier in use: {old.describe()}")
        cta.mbarriers[offset] = MBarrier(cta, offset, count, issuer(warp, ins))

    return run


@lane("mbarrier.inval", states=e.InvalidatesMbarrier())
def mbarrier_inval(ins: Instr) -> Run:
    find = barrier_operand(ins)

    def run(warp: Fragment, lane: int, address: int) -> None:
        barrier = find(warp, address)
        if barrier.waiters:
            raise Fault(f"mbarrier.inval while warps wait: {barrier.describe()}")
        del barrier.cta.mbarriers[barrier.offset]

    return run


@lane("mbarrier.expect_tx", states=e.ExpectsBytes())
def mbarrier_expect_tx(ins: Instr) -> Run:
    find = barrier_operand(ins)

    def run(warp: Fragment, lane: int, address: int, nbytes: int) -> None:
        find(warp, address).expect_tx(nbytes)

    return run


@lane("mbarrier.complete_tx", states=e.CompletesBytes())
def mbarrier_complete_tx(ins: Instr) -> Run:
    """mbarrier.complete_tx: simulates the completion of bytes; no memory is touched."""
    find = barrier_operand(ins)

    def run(warp: Fragment, lane: int, address: int, nbytes: int) -> None:
        find(warp, address).complete_tx(nbytes)

    return run


def _arrives(ins: Instr) -> e.Arrives:
    return e.Arrives(
        order=order_of(ins, "release"),
        scope=memory_scope(ins),
        space=space_of(ins),
        expects=ins.has("expect_tx"),
        drops=ins.mods[1] == "arrive_drop",
    )


@lane("mbarrier.arrive", "mbarrier.arrive_drop", states=_arrives, out=1)
def mbarrier_arrive(ins: Instr) -> Run:
    """mbarrier.arrive{_drop}{.noComplete}{.sem.scope}{.space}.b64 state, [addr]{, count}
    mbarrier.arrive{_drop}.expect_tx{...}.b64 state, [addr], tx_count
    """
    find = barrier_operand(ins)
    effect = _arrives(ins)
    if effect.space == "shared::cluster" and any(o is not SINK for o in ins.operands[:1]):
        raise Unsupported(f"{ins.opcode} returns no state: its destination must be `_`")
    method = MBarrier.arrive_drop if effect.drops else MBarrier.arrive
    complete = not ins.has("noComplete")

    def expect(warp: Fragment, lane: int, address: int, nbytes: int):
        return method(find(warp, address), 1, issuer(warp, ins), nbytes)

    def arrive(warp: Fragment, lane: int, address: int, count: int = 1):
        return method(find(warp, address), count, issuer(warp, ins), 0, complete)

    return expect if effect.expects else arrive


def _waits(ins: Instr) -> e.WaitsForPhase:
    return e.WaitsForPhase(
        order=order_of(ins, "acquire"),
        scope=memory_scope(ins),
        shift=0 if ins.has("parity") else 63,
    )


WAITS = ("mbarrier.test_wait", "mbarrier.try_wait")


@warp(*WAITS, states=_waits, out=1, may_block=True, uniform="args")
def mbarrier_wait(ins: Instr) -> Run:
    """mbarrier.{test,try}_wait{.parity}{.sem.scope}{.shared{::cta}}.b64 done, [addr], phase{, hint}

    phase: a parity or the state an arrive returned.

    A wait parks the warp until the barrier changes phase, if it fails more than PATIENCE times and
    the warp does nothing else in between but look at mbarriers. So a loop around waits costs
    nothing, and a single test never stops the warp. A parked one gives up where nothing else can
    happen (time_limits.py).
    """
    if ins.has("shared::cluster"):
        raise Unsupported(f"{ins.opcode}: waits are legal on shared::cta only")
    find = barrier_operand(ins)
    shift = _waits(ins).shift
    patience = PATIENCE[ins.mods[1]]

    def run(warp: Fragment, mask: int, address: LaneValues, phase: LaneValues, *_hint: LaneValues):
        if isinstance(address, np.ndarray) or isinstance(phase, np.ndarray):
            return run_lanes(warp, mask, address, phase)
        barrier = find(warp, address)
        key = id(ins), address, phase
        if barrier.phase != phase >> shift & 1:
            passed(warp, key)
            return FULL
        return failed(warp, key, (barrier,))

    def run_lanes(warp: Fragment, mask: int, address: LaneValues, phase: LaneValues):
        address, phase = lanes_of(address, np.uint64), lanes_of(phase, np.uint64)
        places, phases = address.tolist(), phase.tolist()
        done = 0
        waiting: dict[int, MBarrier] = {}
        found: dict[int, MBarrier] = {}
        for i in active(mask):
            barrier = found.get(places[i])
            if barrier is None:
                barrier = found[places[i]] = find(warp, places[i])
            if barrier.phase != phases[i] >> shift & 1:
                done |= 1 << i
            else:
                waiting[barrier.offset] = barrier
        key = id(ins), address.tobytes(), phase.tobytes()
        if done:
            passed(warp, key)
            return done
        return failed(warp, key, tuple(waiting.values()))

    def passed(warp: Fragment, key: tuple[object, ...]) -> None:
        if isinstance(warp.spin, dict) and key in warp.spin:
            warp.spin = {k: looks for k, looks in warp.spin.items() if k != key} or QUIET
        warp.machine.wait_passed(warp)

    def failed(warp: Fragment, key: tuple[object, ...], barriers: tuple[Waitable, ...]) -> int:
        if warp.machine.limits.passed(warp):
            return 0
        looks: FailedWaits = warp.spin if isinstance(warp.spin, dict) else {}
        times, _ = looks.get(key, (0, ()))
        if times < patience:
            others = {k: found for k, found in looks.items() if k != key}
            warp.spin = {**others, key: (times + 1, barriers)}  # the latest is the last
            return 0
        since = tuple(looks)[tuple(looks).index(key) + 1 :]
        if since:  # a loop around several waits: each may let it go on
            barriers = tuple({id(b): b for k in (*since, key) for b in looks[k][1]}.values())
            warp.spin = None
        raise Blocked(barriers[0] if len(barriers) == 1 else AnyOf(barriers))

    return run


@pure("mbarrier.pending_count", states=e.ReadsMbarrierState(pipe="integer"))
def mbarrier_pending_count(ins: Instr) -> Pure:
    """mbarrier.pending_count.b64 count, state: the pending count in the state of an arrive."""

    def vector(state: np.ndarray) -> np.ndarray:
        return (-(state.astype(np.int64) >> 43) & MAX_COUNT).astype(np.uint32)

    def scalar(state: int) -> int:
        return -(state >> 43) & MAX_COUNT

    return Pure(
        ins=("b64",),
        outs=("u32",),
        vector=vector,
        scalar=scalar,
    )
