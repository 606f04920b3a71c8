"""Bulk copies of contiguous bytes: cp.async.bulk, cp.reduce.async.bulk (PTX ISA 9.7.9.25.4).

Addresses and sizes are multiples of 16 bytes. Operands are checked at issue; the bytes move when
the machine lets the copy happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip import operations as ops
from b200.chip.copies.async_groups import commit, issue_in_group, wait
from b200.chip.copies.landing import Landing, complete
from b200.chip.memory.addressing import shared_address
from b200.chip.memory.reductions import GLOBAL, SHARED, combiner
from b200.effects import CommitsGroup, Copies, WaitsForGroups
from b200.errors import Fault
from b200.program.module import Instr
from b200.registry import Run, lane, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

UNIT = 16


def check_bulk_size(nbytes: int) -> None:
    if nbytes % UNIT:
        raise Fault(f"a bulk copy of {nbytes} bytes: the size must be a multiple of {UNIT}")


def global_view(warp: Fragment, address: int, nbytes: int, align: int = UNIT) -> np.ndarray:
    """uint8 view of global memory, checked."""
    region = warp.machine.memory.region(address, nbytes)
    at = region.offset(address, nbytes, align)
    return region.u8[at : at + nbytes]


def shared_view(warp: Fragment, address: int, nbytes: int, align: int = UNIT) -> np.ndarray:
    """uint8 view of the own CTA's shared memory, checked."""
    at = warp.cta.smem_offset(shared_address(warp, address), nbytes, align)
    return warp.cta.smem.u8[at : at + nbytes]


def bulk_copy(ins: Instr) -> Copies:
    """The effect of a bulk copy, reduction or prefetch, of a tensor or not."""
    spaces = [m for m in ins.mods if m == "global" or m.startswith("shared")]  # the target first
    prefetch = ins.has("prefetch")
    operation = ins.one(*GLOBAL) if ins.has("reduce") else ""
    return Copies(
        source=spaces[-1],
        target="L2" if prefetch else spaces[0],
        signals="" if prefetch else "bulk" if spaces[0] == "global" else "mbarrier",
        bulk=True,
        operation=operation,
        floats=ins.mods[-1].startswith(("f", "bf")),
        multicast=ins.has("multicast::cluster"),
    )


@lane("cp.async.bulk.shared::cta", "cp.async.bulk.shared::cluster", states=bulk_copy)
def bulk_load(ins: Instr) -> Run:
    """cp.async.bulk.{shared::cta|shared::cluster}.{global|shared::cta}.mbarrier::complete_tx::bytes
    {.multicast::cluster}{.L2::cache_hint} [dst], [src], size, [mbar]{, cta_mask}{, cache_policy}
    """
    find = Landing(ins, UNIT, ins.mods[3])
    from_global = ins.mods[4] == "global"
    view = global_view if from_global else shared_view

    def run(
        warp: Fragment, lane: int, dst: int, src: int, nbytes: int, mbar: int, *rest: Any
    ) -> None:
        check_bulk_size(nbytes)
        if from_global:
            src = warp.machine.memory.readable(src, nbytes)
        data = view(warp, src, nbytes)
        places = find(warp, dst, nbytes, mbar, rest[0] if find.multicast else None)

        def apply() -> None:
            for place in places:
                place.cta.smem.u8[place.offset : place.offset + nbytes] = data
                complete(place, nbytes, warp, ins)

        load, to_peer = ops.BulkLoad(nbytes, src, places), ops.BulkToPeer(nbytes, src, places[0])
        warp.machine.issue(load if from_global else to_peer, warp, apply)

    return run


@lane("cp.async.bulk.global", states=bulk_copy)
def bulk_store(ins: Instr) -> Run:
    """cp.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}{.cp_mask} [dst], [src], size
    {, cache_policy}{, byte_mask}: bit i of the mask stands for byte i of each 16.
    """
    masked = ins.has("cp_mask")

    def run(warp: Fragment, lane: int, dst: int, src: int, nbytes: int, *rest: Any) -> None:
        check_bulk_size(nbytes)
        data, to = shared_view(warp, src, nbytes), global_view(warp, dst, nbytes)
        mask = rest[-1] & 0xFFFF if masked else 0xFFFF
        chosen = np.array([mask >> i & 1 for i in range(UNIT)], bool)

        def move() -> None:
            if masked:
                np.copyto(to.reshape(-1, UNIT), data.reshape(-1, UNIT), where=chosen)
            else:
                to[:] = data

        operation = ops.BulkStore(nbytes, source=src, destination=dst, mask=mask)
        issue_in_group(warp, "bulk", 1 << lane, ins, operation, move)

    return run


@lane("cp.reduce.async.bulk", states=bulk_copy)
def bulk_reduce(ins: Instr) -> Run:
    """cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.OP.TYPE
    [dst], [src], size, [mbar]
    cp.reduce.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}.OP{.noftz}.TYPE
    [dst], [src], size{, cache_policy}
    """
    op = ins.one(*GLOBAL)
    kind = ins.mods[-1]
    to_global = ins.mods[4] == "global"
    combine = combiner(op, kind, GLOBAL if to_global else SHARED)

    def run_global(warp: Fragment, lane: int, dst: int, src: int, nbytes: int, *rest: Any) -> None:
        check_bulk_size(nbytes)
        data, to = shared_view(warp, src, nbytes), global_view(warp, dst, nbytes)

        def move() -> None:
            to[:] = combine(to, data)

        operation = ops.BulkReduce(nbytes, source=src, destination=dst)
        issue_in_group(warp, "bulk", 1 << lane, ins, operation, move)

    def run_shared(warp: Fragment, lane: int, dst: int, src: int, nbytes: int, mbar: int) -> None:
        check_bulk_size(nbytes)
        data = shared_view(warp, src, nbytes)
        (place,) = find(warp, dst, nbytes, mbar)

        def apply() -> None:
            to = place.cta.smem.u8[place.offset : place.offset + nbytes]
            to[:] = combine(to, data)
            complete(place, nbytes, warp, ins)

        warp.machine.issue(ops.BulkReduceToPeer(nbytes, src, place), warp, apply)

    if to_global:
        return run_global
    find = Landing(ins, UNIT, ins.mods[4])
    return run_shared


@lane("cp.async.bulk.prefetch", states=bulk_copy)
def bulk_prefetch(ins: Instr) -> Run:
    """cp.async.bulk.prefetch.L2.global{.L2::cache_hint} [src], size{, cache_policy}"""

    def run(warp: Fragment, lane: int, src: int, nbytes: int, *rest: Any) -> None:
        check_bulk_size(nbytes)
        src = warp.machine.memory.readable(src, nbytes)
        global_view(warp, src, nbytes)
        warp.machine.issue(ops.BulkPrefetch(nbytes, src), warp, lambda: None)

    return run


@warp("cp.async.bulk.commit_group", states=CommitsGroup(bulk=True))
def bulk_commit_group(ins: Instr) -> Run:

    def run(warp: Fragment, mask: int) -> None:
        commit(warp, "bulk", mask)

    return run


@warp(
    "cp.async.bulk.wait_group",
    states=lambda ins: WaitsForGroups(bulk=True, sources=ins.has("read")),
    may_block=True,
)
def bulk_wait_group(ins: Instr) -> Run:
    """cp.async.bulk.wait_group{.read} N: at most the N most recent groups are left under way.

    Sources are read when destinations are written here, so .read waits as long.
    """

    def run(warp: Fragment, mask: int, n: int) -> None:
        wait(warp, "bulk", mask, n)

    return run
