"""Planted bugs in tensor memory, without MMAs."""

from __future__ import annotations

import torch

from b200.hardware import SM_COUNT
from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import ints, start, store_own


def tensor_memory(
    fences=True,
    wait_store=True,
    grow=False,
    wait_all=True,
    again=False,
    other=False,
    free_first=False,
    late=False,
) -> Source:
    """Warp 0 writes tensor memory, warp 4 (same quarter) reads it after a CTA barrier."""
    k = start(160)
    columns = 512 if again else 32

    def alloc():
        k(
            f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2048], {columns};",
            "alloc",
        )
        if again:
            k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2052], 512;", "again")
        if grow:
            k(
                "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2052], 64;",
                "alloc more",
            )

    def write():
        k("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r0};", "tmem store")
        if wait_store:
            k("tcgen05.wait::st.sync.aligned;")
        if fences:
            k("tcgen05.fence::before_thread_sync;")

    def read():
        if fences:
            k("tcgen05.fence::after_thread_sync;")
        k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];", "tmem load")
        if not late:
            take()

    def take():
        if wait_all:
            k("tcgen05.wait::ld.sync.aligned;")
        k("mul.wide.u32 %rd8, %r0, 4;")
        k("add.u64 %rd9, %rd0, %rd8;")
        k("st.global.u32 [%rd9+-512], %r5;")

    def free():
        k(f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, {columns};", "dealloc")

    k.only(0, alloc, 31)
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+2048];")
    k.only(0, write, 31)
    if other:  # a warp of the same quarter of the lanes
        k.only(128, write, 159)
    if free_first:
        k.only(0, free, 31)
    k("bar.sync 0;")
    k.only(128, read, 159)
    k("bar.sync 0;")
    if not free_first:
        k.only(0, free, 31)
    if late:
        k.only(128, take, 159)
    return k


def freed_behind_cluster_barrier(bug: bool) -> Source:
    """Warp 4 loads, meets the others at a CTA barrier, waits for its load, and meets them at the
    cluster's barrier, behind which warp 0 frees the columns. The bug arrives there relaxed.
    """
    k = start(160)

    def alloc():
        k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2048], 32;")

    def write():
        k("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r0};")
        k("tcgen05.wait::st.sync.aligned;")
        k("tcgen05.fence::before_thread_sync;")

    def read():
        k("tcgen05.fence::after_thread_sync;")
        k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];", "tmem load")

    def take():
        k("tcgen05.wait::ld.sync.aligned;")
        k("tcgen05.fence::before_thread_sync;")
        k("mul.wide.u32 %rd8, %r0, 4;")
        k("add.u64 %rd9, %rd0, %rd8;")
        k("st.global.u32 [%rd9+-512], %r5;")

    k.only(0, alloc, 31)
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+2048];")
    k.only(0, write, 31)
    k("bar.sync 0;")
    k.only(128, read, 159)
    k("bar.sync 0;")
    k.only(128, take, 159)
    k(f"barrier.cluster.arrive{'.relaxed' if bug else ''}.aligned;")
    k("barrier.cluster.wait.aligned;")
    dealloc = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;"
    k.only(0, lambda: k(dealloc, "dealloc"), 31)
    return k


def two_ranges(bug: bool) -> Source:
    """Two stores of 16x32bx2, each to two columns, which lie in one another: the same columns in
    the bug.
    """
    k = start(32)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2048], 32;")
    k("ld.shared.b32 %r4, [%r1+2048];")
    k("tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%r4], 4, {%r0};", "first")
    k("add.u32 %r5, %r4, 2;")
    k(f"tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%r5], {2 if bug else 4}, {{%r0}};", "second")
    k("tcgen05.wait::st.sync.aligned;")
    k(f"tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {{%r6}}, [%r4], {2 if bug else 4};")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    store_own(k, "%r6")
    return k


def base_of_an_sm(bug: bool) -> Source:
    """More CTAs than SMs, each with columns of its own; the bug takes 0 for their address."""
    k = start(32)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2048], 256;")
    k("ld.shared.b32 %r4, [%r1+2048];")
    k(f"mov.u32 %r5, {'0' if bug else '%r4'};")
    k("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r0};", "tmem store")
    k("tcgen05.wait::st.sync.aligned;")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r6}, [%r5];")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 256;")
    k("mov.u32 %r7, %ctaid.x;")
    k("mad.lo.u32 %r0, %r7, 32, %r0;")
    store_own(k, "%r6")
    return k


LANES, COLUMNS = "lanes", "columns"


def partly_written(what: str, bug: bool) -> Source:
    """One column is written, in 16 or all lanes, and 32 lanes of two columns are loaded. The bug
    uses what nothing has written: the other lanes, or the other column.
    """
    k = start(32)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2048], 32;")
    k("ld.shared.b32 %r4, [%r1+2048];")
    shape, half = ("16x32bx2", "4, ") if what == LANES else ("32x32b", "")
    k(f"tcgen05.st.sync.aligned.{shape}.x1.b32 [%r4], {half}{{%r0}};", "tmem store")
    k("tcgen05.wait::st.sync.aligned;")
    k("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r5, %r6}, [%r4];", "tmem load")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    k(f"setp.{'ge' if bug and what == LANES else 'lt'}.u32 %p4, %r0, 16;")
    k(f"selp.u32 %r7, %r{6 if bug and what == COLUMNS else 5}, %r0, %p4;")
    store_own(k, "%r7")
    return k


def reaches(name: str, title: str, what: str, place: str) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda bug: partly_written(what, bug),
        "uninitialised",
        (f"tcgen05.ld reads {place} of tensor memory that nothing has written", "depends on it"),
        ("tmem load", "tmem store"),
        ints(32),
        lambda args: torch.arange(32, dtype=torch.int32),
    )


def tensor(name, title, kind, words, marks, **options) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda bug: tensor_memory(**(options if bug else {})),
        kind,
        words,
        marks,
        ints(32),
        lambda args: torch.arange(32, dtype=torch.int32),
    )


PLANTED = [
    reaches(
        "unwritten_lanes",
        "lanes that nothing has written are stored",
        LANES,
        "lanes 16-31 and columns [1, 2)",
    ),
    reaches(
        "unwritten_column",
        "a column that nothing has written is stored",
        COLUMNS,
        "columns [1, 2)",
    ),
    PlantedBug(
        "base_taken_for_zero",
        "the address that tcgen05.alloc gives is ignored and 0 taken, with two CTAs an SM",
        base_of_an_sm,
        "fault",
        ("columns [0, 256) are those of another CTA of its SM", "that tcgen05.alloc has written"),
        ("tmem store",),
        ints(32 * (SM_COUNT + 1)),
        lambda args: torch.arange(32, dtype=torch.int32).repeat(SM_COUNT + 1),
        grid=(SM_COUNT + 1, 1, 1),
    ),
    PlantedBug(
        "two_ranges_meet",
        "two stores of two ranges of columns each meet in one of them",
        two_ranges,
        "race",
        ("tcgen05.st overwrites tensor memory that tcgen05.st may still use",),
        ("first", "second"),
        ints(32),
        lambda args: torch.arange(32, dtype=torch.int32),
    ),
    tensor(
        "tmem_without_fences",
        "tensor memory is handed over by bar.sync without tcgen05 fences",
        "race",
        ("after a barrier without tcgen05 fences", "tcgen05.fence::before_thread_sync"),
        ("tmem load", "tmem store"),
        fences=False,
    ),
    tensor(
        "no_wait_st",
        "tensor memory is handed over before tcgen05.wait::st",
        "race",
        (
            "reads tensor memory before the tcgen05.st that writes it is complete",
            "tcgen05.wait::st",
        ),
        ("tmem load", "tmem store"),
        wait_store=False,
    ),
    tensor(
        "alloc_grows",
        "a second tcgen05.alloc is larger than the first",
        "fault",
        ("must not grow",),
        ("alloc more",),
        grow=True,
    ),
    tensor(
        "alloc_of_what_is_taken",
        "tensor memory is allocated twice and freed at the end",
        "deadlock",
        ("and it keeps what it has allocated at", "a tcgen05.dealloc that is missing"),
        ("again",),
        again=True,
    ),
    tensor(
        "two_warps_one_column",
        "two warps store to the same lanes and column",
        "race",
        ("tcgen05.st overwrites tensor memory that tcgen05.st may still use",),
        ("tmem store",),
        other=True,
    ),
    tensor(
        "used_after_dealloc",
        "tensor memory is read after its tcgen05.dealloc",
        "lifetime",
        ("tcgen05.ld uses tensor memory that is deallocated", "before tcgen05.dealloc"),
        ("tmem load", "dealloc"),
        free_first=True,
    ),
    tensor(
        "freed_before_wait_ld",
        "tensor memory is freed behind a barrier that a warp passes before its tcgen05.wait::ld",
        "lifetime",
        ("is deallocated before tcgen05.ld of it is waited for", "missing: tcgen05.wait::ld by"),
        ("tmem load", "dealloc"),
        late=True,
    ),
    PlantedBug(
        "freed_behind_a_relaxed_arrive",
        "tensor memory is freed behind a cluster barrier at which a warp arrives relaxed",
        freed_behind_cluster_barrier,
        "race",
        ("deallocated after a barrier whose arrive is relaxed", "(portability)"),
        ("tmem load", "dealloc"),
        ints(32),
        lambda args: torch.arange(32, dtype=torch.int32) + 0,
    ),
]
