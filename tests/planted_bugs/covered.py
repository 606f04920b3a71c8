"""Planted bugs that a later access of the same warp, or its wait, seems to cover."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import ints, start, store_own
from tests.planted_bugs.grid import tensormap

BINS = 16


def counted(bug: bool, space: str) -> Source:
    """Some threads set counts to zero, and all threads add to them. The warp that has set them adds
    first, so its sums are the latest writes that the other warp meets.
    """
    k = start(64, ".param .u64 counts, .param .u64 out")
    k(f"and.b32 %r5, %r0, {BINS - 1};")
    k("shl.b32 %r5, %r5, 2;")
    if space == "global":
        k("cvt.u64.u32 %rd5, %r5;")
        k("add.u64 %rd4, %rd0, %rd5;")
        at = "%rd4"
    else:
        k("add.u32 %r6, %r5, %r1;")
        at = "%r6"
    k(f"setp.lt.u32 %p5, %r0, {BINS};")
    k(f"@%p5 st.{space}.u32 [{at}], 0;", "zero")
    if not bug:
        k("bar.sync 0;")
    k(f"red.{space}.add.u32 [{at}], 1;", "add")
    k("bar.sync 0;")
    k(f"ld.{space}.u32 %r7, [{at}];")
    store_own(k, "%r7", "%rd1")
    return k


def zeroed_result(bug: bool, box: bool) -> Source:
    """The first of two CTAs sets a result to zero, to which both add by one reduction each."""
    params = ".param .align 64 .b8 map[128], " if box else ""
    k = Source(f"{params}.param .u64 out", 64)
    for line in ("mov.u32 %r0, %tid.x;", "mov.u32 %r1, dyn;", "ld.param.u64 %rd0, [out];"):
        k(line)
    k("mul.wide.u32 %rd1, %r0, 4;")
    k("add.u64 %rd1, %rd1, %rd0;")
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k("st.shared.u32 [%r3], %r0;")
    k("mov.u32 %r5, %ctaid.x;")
    k("setp.eq.u32 %p5, %r5, 0;")
    if bug:
        k("@%p5 st.global.u32 [%rd1], 0;", "zero")
    k("fence.proxy.async;")
    k("bar.sync 0;")
    target = "[%rd0], [%r1], 256"
    name = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
    if box:
        k("mov.b64 %rd2, map;")
        k("cvta.param.u64 %rd2, %rd2;")
        name = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
        target = "[%rd2, {0, 0}], [%r1]"

    def add():
        k(f"{name} {target};", "add")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")

    k.only(0, add)
    return k


def read_too_soon(bug: bool) -> Source:
    """Two CTAs add a box of a tensor each, and the last one by a counter reads the sums. In the bug
    the second CTA reads them.
    """
    k = Source(
        ".param .align 64 .b8 map[128], .param .u64 sums, .param .u64 count, .param .u64 out", 64
    )
    for line in ("mov.u32 %r0, %tid.x;", "mov.u32 %r1, dyn;", "ld.param.u64 %rd0, [sums];"):
        k(line)
    k("ld.param.u64 %rd3, [count];")
    k("ld.param.u64 %rd4, [out];")
    k("mul.wide.u32 %rd1, %r0, 4;")
    k("add.u64 %rd1, %rd1, %rd0;")
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k("st.shared.u32 [%r3], %r0;")
    k("fence.proxy.async;")
    k("bar.sync 0;")
    k("mov.b64 %rd2, map;")
    k("cvta.param.u64 %rd2, %rd2;")

    def add():
        name = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
        k(f"{name} [%rd2, {{0, 0}}], [%r1];", "add")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")
        if not bug:
            k("atom.acq_rel.gpu.global.add.u32 %r4, [%rd3], 1;")
            k("st.shared.u32 [%r1+1024], %r4;")

    k.only(0, add)
    k("bar.sync 0;")
    k("setp.lt.u32 %p5, %r0, 32;")
    k("mov.u32 %r4, %ctaid.x;" if bug else "ld.shared.u32 %r4, [%r1+1024];")
    k("setp.eq.and.u32 %p5, %r4, 1, %p5;")
    k("@!%p5 bra END;")
    k("ld.global.u32 %r5, [%rd1];", "read")
    store_own(k, "%r5", "%rd4")
    k("END: mov.u32 %r99, 0;")
    return k


def box_of_result() -> list:
    out = torch.zeros(16, 64, dtype=torch.int32)
    return [tensormap(address=out.data_ptr()), out]


def box_of_sums() -> torch.Tensor:
    """Of a box of 2 x 32."""
    want = torch.zeros(16, 64, dtype=torch.int32)
    want[:2, :32] = 2 * torch.arange(64, dtype=torch.int32).view(2, 32)
    return want


def copied(bug: bool) -> Source:
    """Each lane copies a word, waits for its own copy, and reads another lane's."""
    k = start(32, ".param .u64 src, .param .u64 out")
    k("cvt.u64.u32 %rd5, %r2;")
    k("add.u64 %rd4, %rd0, %rd5;")
    k("cp.async.ca.shared.global [%r3], [%rd4], 4;", "copy")
    k("cp.async.wait_all;")
    if not bug:
        k("bar.warp.sync -1;")
    k("xor.b32 %r5, %r2, 124;")
    k("add.u32 %r5, %r5, %r1;")
    k("ld.shared.u32 %r6, [%r5];", "read")
    store_own(k, "%r6", "%rd1")
    return k


def reused(bug: bool) -> Source:
    """Shared memory that the other warp has read becomes an mbarrier."""
    k = start(64)
    k("st.shared.u32 [%r3], %r0;")
    k("bar.sync 0;")
    k("xor.b32 %r4, %r2, 252;")
    k("add.u32 %r4, %r4, %r1;")
    k("ld.shared.u32 %r5, [%r4];", "read")
    if not bug:
        k("bar.sync 0;")
    k.only(0, lambda: k("mbarrier.init.shared::cta.b64 [%r1], 64;", "init"))
    k("bar.sync 0;")
    k("mbarrier.arrive.shared::cta.b64 _, [%r1];")
    k.wait("%r1", 0)
    store_own(k, "%r5")
    return k


PLANTED = [
    PlantedBug(
        "mbarrier_over_what_is_read",
        "a buffer becomes an mbarrier while another warp may read it",
        reused,
        "race",
        ("mbarrier.init writes shared memory that", "of another warp reads"),
        ("read", "init"),
        ints(64),
        lambda args: torch.arange(63, -1, -1, dtype=torch.int32),
    ),
    *(
        PlantedBug(
            f"zeroed_beneath_sums_{space}",
            "counts are set to zero, and added to, with no barrier between",
            lambda bug, space=space: counted(bug, space),
            kind,
            words,
            ("zero", "add"),
            lambda: [torch.zeros(n, dtype=torch.int32) for n in (BINS, 64)],
            lambda args: torch.full((64,), 64 // BINS, dtype=torch.int32),
        )
        for space, kind, words in (
            ("shared", "race", ("writes shared memory that", "of another warp writes")),
            ("global", "global", ("two warps of a CTA write the same address of global memory",)),
        )
    ),
    *(
        PlantedBug(
            f"zeroed_beneath_a_reduction{'_of_a_box' * box}",
            "a CTA sets a result to zero, to which other CTAs add",
            lambda bug, box=box: zeroed_result(bug, box),
            "global",
            ("two CTAs write the same address of global memory",),
            ("zero", "add"),
            box_of_result if box else ints(64),
            lambda args, box=box: box_of_sums() if box else 2 * torch.arange(64, dtype=torch.int32),
            grid=(2, 1, 1),
        )
        for box in (False, True)
    ),
    PlantedBug(
        "read_beneath_ones_own_reduction",
        "a CTA reads the sums that it has added to, and another CTA may not have",
        read_too_soon,
        "global",
        ("that another CTA writes in the same launch, with nothing to order the two",),
        ("read", "add"),
        lambda: [*box_of_result(), *(torch.zeros(n, dtype=torch.int32) for n in (1, 32))],
        lambda args: 2 * torch.arange(32, dtype=torch.int32),
        grid=(2, 1, 1),
    ),
    PlantedBug(
        "copied_by_another_lane",
        "a lane reads what another lane has copied, behind its own wait",
        copied,
        "race",
        (
            "race (portability): ",
            "reads what another lane of the warp has just copied, without bar.warp.sync",
        ),
        ("copy", "read"),
        lambda: [torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)],
        lambda args: torch.arange(31, -1, -1, dtype=torch.int32),
    ),
]
