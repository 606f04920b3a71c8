"""Copies of 4, 8 or 16 bytes by each thread: cp.async (PTX ISA 9.7.9.25.3)."""

from __future__ import annotations

from b200.chip.copies.async_groups import commit, groups_of, issue_in_group, wait
from b200.chip.copies.bulk import global_view, shared_view
from b200.chip.operations import CpAsync, CpAsyncArrive
from b200.chip.sync.mbarrier import barrier_operand, mbarrier_at
from b200.effects import ArrivesBehindCopies, CommitsGroup, Copies, WaitsForGroups
from b200.errors import Fault
from b200.program.module import Instr
from b200.registry import Run, lane, warp

SIZES = {"ca": (4, 8, 16), "cg": (16,)}


@lane(
    "cp.async.ca",
    "cp.async.cg",
    states=Copies(source="global", target="shared", signals="cp.async"),
)
def cp_async(ins: Instr) -> Run:
    """cp.async.{ca|cg}.shared{::cta}.global{.L2::cache_hint}{.L2::SIZE} [dst], [src], cp_size
    {, src_size | ignore_src}{, cache_policy}: bytes from src_size on, or all, are zeros.
    """
    sizes, policy = SIZES[ins.mods[2]], ins.has("L2::cache_hint")

    def run(warp, lane, dst, src, nbytes, *rest):
        warp.spin = None
        if nbytes not in sizes:
            raise Fault(f"cp.async.{ins.mods[2]} of {nbytes} bytes: must be one of {sizes}")
        filled = rest[0] if len(rest) > policy else nbytes
        if isinstance(filled, bool):
            filled = 0 if filled else nbytes
        if filled > nbytes:
            raise Fault(f"cp.async with src-size {filled}, more than its cp-size {nbytes}")
        if src % nbytes:
            raise Fault(f"cp.async from {src:#x}, which is not a multiple of its size {nbytes}")
        to = shared_view(warp, dst, nbytes, nbytes)
        data = global_view(warp, src, filled, 1) if filled else None

        def move():
            to[filled:] = 0
            if filled:
                to[:filled] = data

        operation = CpAsync(filled, nbytes, source=src, destination=dst)
        issue_in_group(warp, "cp.async", 1 << lane, ins, operation, move)

    return run


@warp("cp.async.commit_group", states=CommitsGroup(bulk=False))
def cp_async_commit_group(ins: Instr) -> Run:
    def run(warp, mask):
        warp.spin = None
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

    def run(warp, mask, n=0):
        warp.spin = None
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

    def run(warp, lane, address):
        warp.spin = None
        barrier = find(warp, address)
        cta, offset, who = barrier.cta, barrier.offset, (warp.cta.rank, "cp.async", ins.loc)
        if increment:
            barrier.expect_arrival()
        groups = groups_of(warp, "cp.async", lane)
        left = groups.under_way() if groups is not None else []

        def copied(copy=None):
            if copy is not None:
                left.remove(copy)
            if not left:
                mbarrier_at(cta, offset).arrive(1, who)

        for copy in tuple(left):
            copy.then.append(lambda copy=copy: copied(copy))
        if not left:
            warp.machine.issue(CpAsyncArrive(cta, offset), warp, copied)

    return run
