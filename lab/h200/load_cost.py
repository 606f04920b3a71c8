"""How long bulk loads from DRAM take on a Hopper GPU, one warp of a CTA or four at once loading.

A CTA an SM. In each round every warp waits some time (so that little queues), meets the others of
its CTA, loads so many bytes that nobody has loaded before, and waits for them. Cycles from the
meeting to the bytes: the mean over warps, and of the last warp of each CTA.
"""

from __future__ import annotations

import torch

from harness.measure.kernels import BULK
from lab.h200 import rig

ROUNDS, WARM_UP = 24, 4
PAUSE = 8000  # cycles, and up to as many more
CTAS = 33
SIZES = (512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10)


def kernel(warps: int, nbytes: int) -> str:
    """PTX. Parameters: out (a u32 a round and warp), data (`nbytes` a round and warp)."""
    body = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; shr.u32 %r3, %r1, 5; and.b32 %r4, %r1, 31;
    setp.eq.u32 %p1, %r4, 0;
    mov.b32 %r5, dyn; mad.lo.u32 %r6, %r3, 8, %r5;
    mad.lo.u32 %r7, %r3, {nbytes}, %r5; add.u32 %r7, %r7, 1024;
    @%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
    fence.mbarrier_init.release.cluster; bar.sync 0;
    mov.b32 %r8, 0; mad.lo.u32 %r9, %r2, 977, 13;
    ROUND:
    mad.lo.u32 %r9, %r9, 1664525, 1013904223; shr.u32 %r10, %r9, 8;
    rem.u32 %r10, %r10, {PAUSE}; add.u32 %r10, %r10, {PAUSE}; mov.u32 %r11, %clock;
    PAUSE: mov.u32 %r12, %clock; sub.u32 %r12, %r12, %r11;
    setp.lt.u32 %p2, %r12, %r10; @%p2 bra PAUSE;
    mad.lo.u32 %r13, %r8, {CTAS}, %r2; mad.lo.u32 %r13, %r13, {warps}, %r3;
    mul.wide.u32 %rd3, %r13, {nbytes}; add.u64 %rd3, %rd3, %rd2;
    and.b32 %r14, %r8, 1;
    bar.sync 0;
    mov.u32 %r15, %clock;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], {nbytes};
    @%p1 {BULK} [%r7], [%rd3], {nbytes}, [%r6];
    WAIT: {rig.TRY} %p3, [%r6], %r14; @!%p3 bra WAIT;
    mov.u32 %r16, %clock; sub.u32 %r16, %r16, %r15;
    mul.wide.u32 %rd4, %r13, 4; add.u64 %rd5, %rd1, %rd4;
    @%p1 st.global.u32 [%rd5], %r16;
    add.u32 %r8, %r8, 1; setp.lt.u32 %p4, %r8, {ROUNDS}; @%p4 bra ROUND;"""
    return rig.ptx(body, 32 * warps)


def results() -> rig.Results:
    for nbytes in SIZES:
        for warps in (1, 4):
            out = rig.zeros(ROUNDS, CTAS, warps, dtype=torch.int32)
            shape, data = rig.row(CTAS, 32 * warps, 1, rig.SMEM), rig.room(out.numel() * nbytes)
            rig.launch(kernel(warps, nbytes), shape, out, data, cold=True)
            cycles = out[WARM_UP:].double().cpu()
            took = {"mean": cycles.mean().item(), "last": cycles.amax(2).mean().item()}
            yield {"warps": warps, "nbytes": nbytes} | took
