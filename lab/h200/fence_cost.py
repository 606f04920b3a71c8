"""What a fence of all memory takes a warp of a Hopper GPU.

After nothing, loads, stores; of the warp that asked for them and of another; in another SM.

One warp a CTA, a CTA an SM, in rounds: an access of so many bytes, a wait until it is complete,
a fence (membar.gl, in SASS MEMBAR.SC.GPU as __threadfence is), and another one. "in flight": the
first fence does not wait for the access. Cycles, means over rounds and CTAs. The forms that are
such a fence, too, are listed in b200/clock/membar.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from harness.measure.kernels import BULK, RENDEZVOUS
from hopper.rewrite import TARGET
from lab.h200 import rig

ROUNDS, WARM_UP = 100, 10
SIZES = (128, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10)
WAIT = f"WAIT: {rig.TRY} %p3, [%r10], %r11; @!%p3 bra WAIT;"


@dataclass(frozen=True)
class Case:
    """access: none | bulk | multicast | ld | st, of `nbytes` by each CTA (multicast: by the first
    of a cluster); in_flight: the first fence does not wait for it; other: another warp of the CTA
    fences than the one that asks.
    """

    access: str
    nbytes: int = 0
    ctas: int = 4
    cluster: int = 1
    in_flight: bool = False
    other: bool = False

    @property
    def threads(self) -> int:
        return 64 if self.other else 32


def kernel(case: Case, target: str = TARGET) -> str:
    """PTX. Parameters: out (three u64 a CTA), data (a block of `nbytes` a CTA and round)."""
    expect = f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {case.nbytes};"
    own = f"{BULK} [%r12], [%rd3], {case.nbytes}, [%r10];"
    shared = f"{BULK}.multicast::cluster [%r12], [%rd3], {case.nbytes}, [%r10], %rs1;"
    lanes = f"""mov.u32 %r13, %r9;
    EACH: mul.wide.u32 %rd4, %r13, 16; add.u64 %rd5, %rd3, %rd4;
    {{}}
    add.u32 %r13, %r13, 32; setp.lt.u32 %p4, %r13, {case.nbytes // 16}; @%p4 bra EACH;"""
    ask = {
        "none": "",
        "bulk": f"{expect} @%p1 {own}",
        "multicast": f"{expect} @%p2 {shared}",
        "ld": lanes.format(
            "ld.volatile.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd5]; xor.b32 %r24, %r24, %r20;"
        ),
        "st": lanes.format("st.global.v4.u32 [%rd5], {%r7, %r7, %r7, %r7};"),
    }[case.access]
    wait = WAIT if case.access in ("bulk", "multicast") else "xor.b32 %r25, %r24, 1;"
    before, after = ask + ("" if case.in_flight else wait), wait if case.in_flight else ""
    if case.other:
        before = f"@%p7 bra ASKED; {before} ASKED: bar.sync 0; @!%p7 bra FENCED;"
    body = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r9, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank;
    mov.b32 %r10, dyn; add.u32 %r12, %r10, 1024;
    setp.eq.u32 %p1, %r9, 0; setp.eq.u32 %p0, %r9, {case.threads - 32}; setp.ge.u32 %p7, %r9, 32;
    setp.eq.and.u32 %p2, %r2, 0, %p1;
    mov.b16 %rs1, {(1 << case.cluster) - 1};
    @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
    fence.mbarrier_init.release.cluster; bar.sync 0; {RENDEZVOUS}
    mov.b64 %rd10, 0; mov.b64 %rd11, 0; mov.b32 %r24, 0; mov.b32 %r7, 0;
    ROUND:
    mad.lo.u32 %r8, %r7, {case.ctas}, %r1;
    mul.wide.u32 %rd3, %r8, {max(case.nbytes, 16)}; add.u64 %rd3, %rd3, %rd2;
    and.b32 %r11, %r7, 1;
    {before}
    bar.warp.sync 0xffffffff;
    mov.u64 %rd20, %clock64;
    membar.gl;
    mov.u64 %rd21, %clock64;
    membar.gl;
    mov.u64 %rd22, %clock64;
    {after}
    setp.ge.u32 %p5, %r7, {WARM_UP};
    sub.u64 %rd21, %rd21, %rd20; sub.u64 %rd22, %rd22, %rd20; sub.u64 %rd22, %rd22, %rd21;
    @%p5 add.u64 %rd10, %rd10, %rd21; @%p5 add.u64 %rd11, %rd11, %rd22;
    FENCED: {RENDEZVOUS}
    add.u32 %r7, %r7, 1; setp.lt.u32 %p6, %r7, {ROUNDS}; @%p6 bra ROUND;
    mul.wide.u32 %rd12, %r1, 24; add.u64 %rd13, %rd1, %rd12; cvt.u64.u32 %rd14, %r24;
    @%p0 st.global.u64 [%rd13], %rd10; @%p0 st.global.u64 [%rd13+8], %rd11;
    @%p0 st.global.u64 [%rd13+16], %rd14;"""
    return rig.ptx(body, case.threads, target=target)


def cases(sms: int) -> list[Case]:
    """What is measured: few CTAs, where nothing queues, and one on every SM."""
    whole = sms // 4 * 4
    found = [Case("none", ctas=n) for n in (4, whole)]
    found += [Case("bulk", size, n) for n in (4, whole) for size in SIZES]
    found += [Case(access, size) for access in ("ld", "st") for size in (512, 4096, 16384)]
    found += [Case("bulk", size, other=True) for size in (1024, 16384)]
    found += [Case("multicast", size, cluster=2) for size in (1024, 16384)]
    found += [Case("bulk", size, n, in_flight=True) for n in (4, whole) for size in (8192, 131072)]
    return found


def measure(case: Case) -> rig.Row:
    """Cycles of the first fence after the access and of the one after it; peer: of the first fence
    in the CTAs that a multicast only writes to.
    """
    out, data = rig.zeros(case.ctas, 3), rig.room(max(case.nbytes, 16) * case.ctas * ROUNDS)
    shape = rig.row(case.ctas, case.threads, case.cluster, rig.SMEM)
    rig.launch(kernel(case), shape, out, data)
    cycles = out.view(-1, case.cluster, 3).double().cpu() / (ROUNDS - WARM_UP)
    first, second, _ = cycles[:, 0].mean(0).tolist()
    peer = cycles[:, 1:, 0].mean().item() if case.access == "multicast" else None
    return {"case": asdict(case), "first": first, "second": second, "peer": peer}


def results() -> rig.Results:
    return map(measure, cases(rig.sms()))
