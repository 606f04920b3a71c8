"""How long bulk loads from DRAM take on a Hopper GPU, one warp of a CTA or four at once loading.

A CTA an SM. In each round every warp waits some time (so that little queues), meets the others of
its CTA, loads so many bytes that nobody has loaded before, and waits for them. Cycles from the
meeting to the bytes: the mean over warps, and of the last warp of each CTA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopper.rewrite import TARGET
from lab.h200.probe import launch

ROUNDS, WARM_UP = 24, 4
PAUSE = 8000  # cycles, and up to as many more
CTAS = 33
SIZES = (512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10)
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
COLUMNS = ("bytes a warp", "one warp", "four, mean", "the last of four")


@dataclass(frozen=True)
class LoadCost:
    """Cycles of loads of `nbytes` by each of `warps` warps."""

    warps: int
    nbytes: int
    mean: float
    last: float


def kernel(warps: int, nbytes: int, target: str = TARGET) -> str:
    """PTX. Parameters: out (a u32 a round and warp), data (`nbytes` a round and warp)."""
    return f""".version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .u64 out, .param .u64 data) .reqntid {32 * warps}, 1, 1
{{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
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
    @%p1 {LOAD} [%r7], [%rd3], {nbytes}, [%r6];
    WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [%r6], %r14;
    @!%p3 bra WAIT;
    mov.u32 %r16, %clock; sub.u32 %r16, %r16, %r15;
    mul.wide.u32 %rd4, %r13, 4; add.u64 %rd5, %rd1, %rd4;
    @%p1 st.global.u32 [%rd5], %r16;
    add.u32 %r8, %r8, 1; setp.lt.u32 %p4, %r8, {ROUNDS}; @%p4 bra ROUND;
    ret;
}}
"""


def measure(warps: int, nbytes: int) -> LoadCost:
    import torch

    out = torch.zeros(ROUNDS, CTAS, warps, dtype=torch.int32, device="cuda")
    data = torch.zeros(out.numel() * nbytes, dtype=torch.uint8, device="cuda")
    launch(kernel(warps, nbytes), CTAS, 32 * warps, 1, out, data, cold=True)
    cycles = out[WARM_UP:].double().cpu()
    return LoadCost(warps, nbytes, cycles.mean().item(), cycles.amax(2).mean().item())


def measure_all() -> list[LoadCost]:
    return [measure(warps, nbytes) for nbytes in SIZES for warps in (1, 4)]


def rows(results: list[LoadCost]) -> Iterator[tuple]:
    for one, four in zip(results[::2], results[1::2], strict=True):
        yield one.nbytes, *(f"{clk:.0f}" for clk in (one.mean, four.mean, four.last))
