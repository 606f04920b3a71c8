"""A stage that generic stores fill again for each K-step, without a copy that could be told apart."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import ints, start, store_own

M, N, STEPS = 128, 16, 2
IDESC = 1 << 4 | N >> 3 << 17 | M >> 4 << 24  # f16 operands, sums in f32
ROW_BYTES = 32  # 16 elements of f16


def refilled(bug: bool) -> Source:
    """Two MMAs of one sum read the same place; the bug fills it once only."""
    k = start(32)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+8192], 32;")

    def init():
        k("mbarrier.init.shared::cta.b64 [%r1+8200], 1;")
        k("fence.mbarrier_init.release.cluster;")

    k.only(0, init)
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+8192];")
    for at, rows, r in ((0, M, 20), (M * ROW_BYTES, N, 22)):
        k(f"add.u32 %r11, %r1, {at};")
        k("shr.u32 %r11, %r11, 4;")
        k("cvt.u64.u32 %rd11, %r11;")
        k(f"or.b64 %rd{r}, %rd11, {rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46};")
    for step in range(STEPS):
        if step == 0 or not bug:
            for i in range((M + N) * ROW_BYTES // 128):
                k(f"st.shared.u32 [%r3+{128 * i}], 0x3c003c00;")
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


def _multiply(k: Source, step: int):
    k(f"setp.ne.u32 %p5, 0, {step};")
    k(f"tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd20, %rd22, {IDESC}, %p5;", "mma")
    k("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8200];")


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
]
