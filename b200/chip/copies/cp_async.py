"""Copies of 4, 8 or 16 bytes by each thread: cp.async (PTX ISA 9.7.9.25.3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.copies.async_groups import commit, groups_of, issue_in_group, wait
from b200.chip.global_memory import Region
from b200.chip.memory.addressing import issuer, shared_address
from b200.chip.memory.patterns import active_lanes
from b200.chip.memory.places import one_span
from b200.chip.operations import CpAsync, CpAsyncArrive
from b200.chip.sync.mbarrier import mbarrier_at
from b200.chip.sync.mbarrier_instructions import barrier_operand
from b200.effects import ArrivesBehindCopies, CommitsGroup, Copies, WaitsForGroups
from b200.errors import Fault
from b200.hardware import SMEM_BASE
from b200.program.module import Instr, Not, Reg
from b200.registry import FULL, LaneValues, Run, as_bools, lane, warp
from b200.registry import lanes as lanes_of

if TYPE_CHECKING:
    from b200.chip.copies.async_groups import Copy
    from b200.chip.fragment import Fragment

SIZES = {"ca": (4, 8, 16), "cg": (16,)}


@warp(
    "cp.async.ca",
    "cp.async.cg",
    states=Copies(source="global", target="shared", signals="cp.async"),
)
def cp_async(ins: Instr) -> Run:
    """cp.async.{ca|cg}.shared{::cta}.global{.L2::cache_hint}{.L2::SIZE} [dst], [src], cp_size
    {, src_size | ignore_src}{, cache_policy}: bytes from src_size on, or all, are zeros.
    """
    sizes, policy = SIZES[ins.mods[2]], ins.has("L2::cache_hint")
    fourth = ins.operands[3] if len(ins.operands) > 3 else None
    cached = ins.mods[2] == "ca"
    ignores = isinstance(fourth, Not) or isinstance(fourth, Reg) and fourth.type == "pred"

    def at_once(warp: Fragment, mask: int, nbytes: int, dst: LaneValues, src: LaneValues) -> bool:
        """All lanes copy all their bytes out of one allocation, aligned; False if they do not."""
        addresses = [lanes_of(x, np.uint64) for x in (dst, src)]
        target = one_span(warp, mask, "shared", addresses[0], nbytes, nbytes)
        source = one_span(warp, mask, "global", addresses[1], nbytes, nbytes)
        if target is None or source is None:
            return False
        to, offsets = target[1][0], source[1][0]
        if mask != FULL:
            chosen = active_lanes(mask)
            to, offsets, *addresses = (x[chosen] for x in (to, offsets, *addresses))
        places = (x.astype(np.int64) for x in addresses)
        issue(warp, mask, nbytes, nbytes, *places, (source[0], offsets), (target[0], to))
        return True

    def issue(
        warp: Fragment,
        mask: int,
        nbytes: int,
        filled: int,
        dst: np.ndarray,
        src: np.ndarray,
        source: tuple[np.ndarray, np.ndarray | None],
        target: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Lanes that copy `filled` bytes each; dst, src: their addresses. source, target: as in
        _sources and _targets.
        """
        (items, offsets), (memory, to) = source, target

        def move() -> None:
            if offsets is not None and items.dtype == memory.dtype:
                memory[to] = items[offsets]
                return
            rows = np.zeros((len(dst), nbytes), np.uint8)
            if offsets is not None:
                rows[:, :filled] = items[offsets]
            memory[to] = rows.view(memory.dtype)[:, 0]

        operation = CpAsync(filled, nbytes, src, dst, _numbers(mask), cached)
        issue_in_group(warp, "cp.async", mask, ins, operation, move)

    def run(
        warp: Fragment, mask: int, dst: LaneValues, src: LaneValues, nbytes: int, *rest: Any
    ) -> None:
        if nbytes not in sizes:
            raise Fault(f"cp.async.{ins.mods[2]} of {nbytes} bytes: must be one of {sizes}")
        given, by_thread = rest[0] if len(rest) > policy else None, warp.machine.order.by_thread
        whole = given is None or isinstance(given, int) and not ignores and given == nbytes
        if whole and not by_thread and at_once(warp, mask, nbytes, dst, src):
            return
        chosen = active_lanes(mask)
        filled = _filled(ignores, given, nbytes, chosen)
        if (filled > nbytes).any():
            raise Fault(f"cp.async with src-size {filled.max()}, more than its cp-size {nbytes}")
        places = [lanes_of(x, np.uint64)[chosen].astype(np.int64) for x in (dst, src)]
        for part in _parts(warp, filled, places[1]):
            n, (dst, src) = int(filled[part][0]), (x[part] for x in places)
            own = sum(1 << lane for lane in chosen[part].tolist())
            source = _sources(warp, src, nbytes, n)
            issue(warp, own, nbytes, n, dst, src, source, _targets(warp, dst, nbytes))

    return run


@lru_cache(maxsize=256)
def _numbers(mask: int) -> np.ndarray:
    """The lanes in a mask, uint8."""
    return active_lanes(mask).astype(np.uint8)


def _filled(ignores: bool, given: LaneValues | None, nbytes: int, chosen: np.ndarray) -> np.ndarray:
    """How many bytes each of the lanes copies: its src-size, none where it ignores its source."""
    if given is None:
        return np.full(chosen.size, nbytes)
    if ignores:
        assert isinstance(given, int)
        return np.where(as_bools(given & FULL)[chosen], 0, nbytes)
    return lanes_of(given, np.uint32)[chosen].astype(np.int64)


def _parts(warp: Fragment, filled: np.ndarray, src: np.ndarray) -> Iterator[np.ndarray]:
    """The lanes that copy as one: equally many bytes out of one allocation; or each for itself, for
    an order that lets the copies of threads happen when it likes.
    """
    left, memory = np.arange(filled.size), warp.machine.memory
    if warp.machine.order.by_thread:
        yield from left[:, None]
        return
    n, low, high = int(filled[0]), int(src.min()), int(src.max())
    if n and (filled == n).all() and memory.find(low, high + n - low) is not None:
        yield left
        return
    while left.size:
        n, first = int(filled[left[0]]), int(src[left[0]])
        alike = filled[left] == n
        if n:
            region = memory.region(first, n)
            alike &= (src[left] >= region.base) & (src[left] + n <= region.base + region.size)
        yield left[alike]
        left = left[~alike]


def _sources(
    warp: Fragment, src: np.ndarray, nbytes: int, filled: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """(the allocation as items of `nbytes`, index of each source) of copies out of it. Where less
    is copied, or the allocation is not aligned so: (its bytes, index of each byte).
    """
    if (off := src % nbytes).any():
        wrong = int(src[off.argmax()])
        raise Fault(f"cp.async from {wrong:#x}, which is not a multiple of its size {nbytes}")
    if not filled:
        return np.zeros(0, np.uint8), None
    region = warp.machine.memory.region(int(src[0]), filled)
    if filled < nbytes or region.base % nbytes:
        return region.u8, (src - region.base)[:, None] + np.arange(filled)
    return _items(region, nbytes), (src - region.base) // nbytes


def _targets(warp: Fragment, dst: np.ndarray, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """(shared memory as items of `nbytes`, index of each target)."""
    cta = warp.cta
    low, high = int(dst.min()), int(dst.max()) + nbytes
    if low < SMEM_BASE or high > cta.smem_end or int(np.bitwise_or.reduce(dst)) % nbytes:
        of_cta = [shared_address(warp, int(at)) for at in dst]
        dst = np.array([cta.smem_offset(at, nbytes, nbytes) for at in of_cta])
    return _items(cta.smem, nbytes), dst // nbytes


def _items(region: Region, nbytes: int) -> np.ndarray:
    return {4: region.u32, 8: region.u64, 16: region.u128}[nbytes]


@warp("cp.async.commit_group", states=CommitsGroup(bulk=False))
def cp_async_commit_group(ins: Instr) -> Run:

    def run(warp: Fragment, mask: int) -> None:
        commit(warp, "cp.async", mask)

    return run


def _waits(ins: Instr) -> WaitsForGroups:
    return WaitsForGroups(bulk=False, everything=ins.mods[2] == "wait_all")


@warp("cp.async.wait_group", "cp.async.wait_all", states=_waits, may_block=True)
def cp_async_wait_group(ins: Instr) -> Run:
    """cp.async.wait_group N: at most the N most recent groups are left under way.
    cp.async.wait_all: none is, nor a copy that was not committed.
    """
    everything = _waits(ins).everything

    def run(warp: Fragment, mask: int, n: int = 0) -> None:
        if everything:
            commit(warp, "cp.async", mask)
        wait(warp, "cp.async", mask, n)

    return run


def _arrives(ins: Instr) -> ArrivesBehindCopies:
    return ArrivesBehindCopies(counted=ins.has("noinc"))


@lane("cp.async.mbarrier.arrive", states=_arrives)
def cp_async_mbarrier_arrive(ins: Instr) -> Run:
    """cp.async.mbarrier.arrive{.noinc}{.shared{::cta}}.b64 [addr] (PTX ISA 9.7.13.15): arrives when
    the thread's earlier cp.async are complete; without .noinc the phase expects one more for it.
    """
    find = barrier_operand(ins)
    increment = not _arrives(ins).counted

    def run(warp: Fragment, lane: int, address: int) -> None:
        barrier = find(warp, address)
        cta, offset, who = barrier.cta, barrier.offset, issuer(warp, ins, "cp.async")
        if increment:
            barrier.expect_arrival()
        groups = groups_of(warp, "cp.async", lane)
        left = groups.under_way() if groups is not None else []
        arrival = CpAsyncArrive(cta, offset)

        def arrive() -> None:
            mbarrier_at(cta, offset).arrive(1, who)

        if not left:
            warp.machine.issue(arrival, warp, arrive)
            return
        arrive = warp.machine.watched(arrival, warp, arrive)

        def copied(copy: Copy) -> None:
            left.remove(copy)
            if not left:
                arrive()

        for copy in tuple(left):
            copy.then.append(lambda copy=copy: copied(copy))

    return run
