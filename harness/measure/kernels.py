"""PTX of the probes: rounds of a few instructions between two reads of the clock.

Registers that a body may use: %r1 thread, %r2 CTA, %r3 rank in the cluster, %r4 round, %r5 parity
of the round, %r9 shared memory (the first KB holds barriers), %r10 an mbarrier of count 1, %r20 to
%r59 its own; %rd1 out, %rd2 data, %rd3 the tensormap, %rd10 to %rd39 its own; %p1 thread 0, %p2
thread 0 of the cluster's first CTA, %p10 to %p19 its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.measure.devices import ProbeKernel
from harness.measure.published import ptx

ROUNDS = 12
WAIT = """{{ .reg .pred P1; LAB: mbarrier.try_wait.parity.shared::cta.b64 P1, [%r10], %r5;
    @P1 bra DONE; bra LAB; DONE: }}""".replace("{{", "{").replace("}}", "}")
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], "
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
RENDEZVOUS = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"


def rounds(
    body: str,
    target: str,
    setup: str = "",
    before: str = "",
    after: str = "",
    finish: str = "",
    count: int = ROUNDS,
    **launch: Any,
) -> ProbeKernel:
    """A kernel whose every CTA writes the clk of `count` rounds of `body`.

    setup: before the rounds. before, after: in a round, not timed. finish: after all. launch:
    fields of ProbeKernel.
    """
    made = ProbeKernel("", count, **launch)
    sync = RENDEZVOUS if made.cluster > 1 else "bar.sync 0;"
    params = [".u64 out", ".u64 data", *([".align 64 .b8 map[128]"] if made.box else [])]
    address = "mov.b64 %rd3, map; cvta.param.u64 %rd3, %rd3;" if made.box else ""
    text = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data]; {address}
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %cluster_ctarank;
    mov.b32 %r9, dyn; add.u32 %r10, %r9, 8;
    setp.eq.u32 %p1, %r1, 0; setp.eq.and.u32 %p2, %r3, 0, %p1;
    @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
    fence.mbarrier_init.release.cluster;
    mad.lo.u32 %r6, %r2, {8 * count}, 0; cvt.u64.u32 %rd4, %r6; add.u64 %rd1, %rd1, %rd4;
    mov.b32 %r4, 0;
    {setup}
    {sync}
    ROUND:
    and.b32 %r5, %r4, 1;
    {before}
    mov.u64 %rd5, %clock64;
    {body}
    mov.u64 %rd6, %clock64;
    sub.u64 %rd7, %rd6, %rd5;
    @%p1 st.global.u64 [%rd1], %rd7;
    add.u64 %rd1, %rd1, 8;
    {after}
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p3, %r4, {count};
    @%p3 bra ROUND;
    {finish}
    {sync}"""
    return replace(made, text=ptx(text, params, made.threads, target), words=made.ctas * count)


def tensor_memory(columns: int = 512) -> tuple[str, str]:
    """Set-up and end of a probe with tensor memory: its address in %r20."""
    alloc = f"""tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9], {columns};
    bar.sync 0; ld.shared.u32 %r20, [%r9];"""
    return alloc, f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, {columns};"
