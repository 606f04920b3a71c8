"""Stages and accumulators that are filled again: a stage by generic stores, columns by the next sum."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import ints, start, store_own

M, N, STEPS = 128, 16, 2
IDESC = 1 << 4 | N >> 3 << 17 | M >> 4 << 24  # f16 operands, sums in f32
ROW_BYTES = 32  # 16 elements of f16


def begin(threads: int, barriers: int) -> Source:
    """Tensor memory at %r4, mbarriers from 8200 on, each of count 1, and the descriptors of A at 0
    and B behind it in %rd20 and %rd22. Threads above 31 skip the allocation.
    """
    k = start(threads)
    k.only(0, lambda: _allocate(k), 31)
    k.only(0, lambda: _initialise(k, barriers))
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+8192];")
    for at, rows, r in ((0, M, 20), (M * ROW_BYTES, N, 22)):
        k(f"add.u32 %r11, %r1, {at};")
        k("shr.u32 %r11, %r11, 4;")
        k("cvt.u64.u32 %rd11, %r11;")
        k(f"or.b64 %rd{r}, %rd11, {rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46};")
    return k


def refilled(bug: bool) -> Source:
    """Two MMAs of one sum read the same place; the bug fills it once only."""
    k = begin(32, 1)
    for step in range(STEPS):
        if step == 0 or not bug:
            _fill(k)
        k("fence.proxy.async.shared::cta;")
        k("bar.sync 0;")
        k.only(0, lambda step=step: _multiply(k, step))
        k.wait("%r1+8200", step & 1)
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];")
    k("tcgen05.wait::ld.sync.aligned;")
    store_own(k, "%r5")
    k("bar.sync 0;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    return k


def next_sum(bug: bool) -> Source:
    """Thread 32 starts two sums in the same columns, warp 0 reads each. The bug does not wait until
    the first one is read.
    """
    k = begin(64, 3)
    k.only(0, lambda: _fill(k), 31)
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")

    def multiply():
        _multiply(k, 0, 8200)
        if not bug:
            k.wait("%r1+8216", 0)
            k("tcgen05.fence::after_thread_sync;")
        _multiply(k, 0, 8208)

    def read():
        for tile in range(2):
            k.wait(f"%r1+{8200 + 8 * tile}", 0)
            k("tcgen05.fence::after_thread_sync;")
            k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];", "read")
            k("tcgen05.wait::ld.sync.aligned;")
            k("tcgen05.fence::before_thread_sync;")
            k("bar.warp.sync -1;")
            if tile == 0:
                k.only(0, lambda: k("mbarrier.arrive.shared::cta.b64 _, [%r1+8216];"))
        store_own(k, "%r5")

    k.only(32, multiply)
    k.only(0, read, 31)
    k("bar.sync 0;")
    k.only(0, lambda: k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;"), 31)
    return k


def _allocate(k: Source):
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+8192], 32;")


def _initialise(k: Source, barriers: int):
    for i in range(barriers):
        k(f"mbarrier.init.shared::cta.b64 [%r1+{8200 + 8 * i}], 1;")
    k("fence.mbarrier_init.release.cluster;")


def _fill(k: Source):
    """Warp 0 fills both operands with ones."""
    for i in range((M + N) * ROW_BYTES // 128):
        k(f"st.shared.u32 [%r3+{128 * i}], 0x3c003c00;")


def _multiply(k: Source, step: int, barrier: int = 8200):
    k(f"setp.ne.u32 %p5, 0, {step};")
    k(f"tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd20, %rd22, {IDESC}, %p5;", "mma")
    k(f"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+{barrier}];")


PLANTED = [
    PlantedBug(
        "step_not_stored_again",
        "a stage that generic stores fill is not filled for the second K-step",
        refilled,
        "product",
        ("a K-step is counted twice",),
        ("mma",),
        ints(32),
        lambda a: torch.full((32,), float(16 * STEPS)).view(torch.int32),
    ),
    PlantedBug(
        "next_sum_too_soon",
        "a sum is started in the columns of one that is still to be read",
        next_sum,
        "race",
        (
            "tcgen05.mma overwrites tensor memory before the tcgen05.ld that reads it is complete",
            "it has waited for this sum",
        ),
        ("mma", "read"),
        ints(32),
        lambda a: torch.full((32,), 16.0).view(torch.int32),
    ),
]
