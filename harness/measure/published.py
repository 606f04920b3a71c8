"""Kernels that do what published microbenchmarks did (SemiAnalysis: tma2d_throughput, UMMA), as
PTX. The probes run them, and so do the calibrations that hold the clock against what was published.
"""

from __future__ import annotations

from collections.abc import Sequence

ITERATIONS = 4
UNROLLED = 16  # MMAs in a row; a deeper batch loops over them
KINDS = {
    "BF16": ("f16", 1 << 7 | 1 << 10 | 1 << 4),
    "E4M3": ("f8f6f4", 1 << 4),
    "F4": ("f8f6f4", 5 << 7 | 5 << 10 | 1 << 4),
    "S8": ("i8", 1 << 7 | 1 << 10 | 2 << 4),
    "MXF8": ("mxf8f6f4", 1 << 23),
    "MXF4": ("mxf8f6f4", 1 << 23 | 5 << 7 | 5 << 10),
}
CTAS, WIDTH = 148, 128
LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
EXPECT = "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _,"
WAIT = """{{ .reg .pred P1; LAB: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, [{0}],
    {1}; @P1 bra DONE; bra LAB; DONE: }}"""
START = """
    ld.param.u64 %rd1, [out];
    mov.b64 %rd2, map;
    cvta.param.u64 %rd3, %rd2;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.b32 %r9, dyn;
    mul.wide.u32 %rd4, %r2, 8;
    add.u64 %rd1, %rd1, %rd4;
    setp.eq.u32 %p1, %r1, 0;"""


def ptx(body: str, params: Sequence[str], threads: int = 0, target: str = "sm_100a") -> str:
    """PTX of a kernel `k` around a body, of so many threads (0: of any number). It declares `dyn`,
    dynamic shared memory, and registers %p, %rs, %h (16 bits), %r, %f and %rd.
    """
    block = f" .reqntid {threads}, 1, 1" if threads else ""
    return f""".version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k({", ".join(f".param {p}" for p in params)}){block}
{{
    .reg .pred %p<20>; .reg .b16 %rs<10>; .reg .b16 %h<64>; .reg .b32 %r<200>;
    .reg .f32 %f<64>; .reg .b64 %rd<100>;
    {body}
    ret;
}}
"""


def bandwidth_kernel(
    height: int, stages: int, loads: int, warm: int, ctas: int = CTAS, step: int = 1, group: int = 1
) -> str:
    """PTX of the bandwidth kernel. step: 0 makes a CTA load the same tile again and again. group:
    number of CTAs that load the same tiles.
    """
    tile = WIDTH * 4 * height
    barriers = stages * tile
    init = "\n".join(
        f"@%p1 mbarrier.init.shared::cta.b64 [%r9+{barriers + 8 * s}], 1;" for s in range(stages)
    )
    first = "\n".join(
        f"""@%p1 {EXPECT} [%r9+{barriers + 8 * s}], {tile};
        @%p1 {LOAD} [%r9+{s * tile}], [%rd3, {{0, %r5}}], [%r9+{barriers + 8 * s}];
        add.u32 %r5, %r5, %r6;"""
        for s in range(stages)
    )
    body = f"""{START}
    {init}
    bar.sync 0;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    div.u32 %r5, %r2, {group};
    mul.lo.u32 %r5, %r5, {height};
    mov.b32 %r6, {step * (ctas // group) * height};
    {first}
    mov.b32 %r7, 0;
    LOOP:
    rem.u32 %r10, %r7, {stages};
    div.u32 %r11, %r7, {stages};
    and.b32 %r11, %r11, 1;
    mad.lo.u32 %r12, %r10, 8, %r9;
    add.u32 %r12, %r12, {barriers};
    mad.lo.u32 %r13, %r10, {tile}, %r9;
    {WAIT.format("%r12", "%r11")}
    @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r12], {tile};
    @%p1 {LOAD} [%r13], [%rd3, {{0, %r5}}], [%r12];
    add.u32 %r5, %r5, %r6;
    setp.ne.u32 %p3, %r7, {warm};
    @%p3 bra SKIP;
    mov.u64 %rd20, %clock64;
    SKIP:
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p2, %r7, {loads};
    @%p2 bra LOOP;
    mov.u64 %rd21, %clock64;
    sub.u64 %rd22, %rd21, %rd20;
    st.global.u64 [%rd1], %rd22;"""
    return ptx(body, [".u64 out", ".align 64 .b8 map[128]"], 32)


def shape_bits(m: int, n: int, scaled: bool) -> int:
    return n >> 3 << 17 | (m >> 7 << 27 if scaled else m >> 4 << 24)


def mma_kernel(fmt: str, layout: str, group: int, m: int, n: int, depth: int) -> str:
    """PTX of `k(out, data)`: an iteration issues `depth` MMAs and a commit, and waits; its clk are
    stored in `out`.
    """
    unrolled = min(depth, UNROLLED)
    kind, types = KINDS[fmt]
    scaled = kind.startswith("mx")
    idesc = types | shape_bits(m, n, scaled)
    suffix = ".block_scale" if scaled else ""
    a = "[%r21]" if layout == "TS" else "%rd10"
    scales = "[%r22], [%r23], " if scaled else ""
    mma = (
        f"tcgen05.mma.cta_group::{group}.kind::{kind}{suffix} [%r20], {a}, %rd11, {idesc}, "
        f"{scales}%p4;"
    )
    both = ".multicast::cluster" if group == 2 else ""
    mask = ", %rs1" if group == 2 else ""
    arrive = f"mbarrier::arrive::one.shared::cluster{both}.b64 [%r10]{mask};"
    commit = f"tcgen05.commit.cta_group::{group}.{arrive}"
    sync = "barrier.cluster.arrive; barrier.cluster.wait;" if group == 2 else "bar.sync 0;"
    columns = 512
    body = f"""
    ld.param.u64 %rd1, [out];
    mov.u32 %r33, {depth // unrolled};
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.b32 %r9, dyn;
    add.u32 %r10, %r9, 8;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r9], {columns};
    fence.mbarrier_init.release.cluster;
    {sync}
    ld.shared.u32 %r20, [%r9];
    add.u32 %r21, %r20, 256;
    add.u32 %r22, %r20, 272;
    add.u32 %r23, %r20, 288;
    mov.b16 %rs1, 3;
    add.u32 %r11, %r9, 1024;
    shr.u32 %r12, %r11, 4;
    cvt.u64.u32 %rd5, %r12;
    or.b64 %rd10, %rd5, {1 << 46 | 16 << 32 | 8 << 16};
    add.u64 %rd11, %rd10, 512;
    setp.eq.u32 %p4, %r1, %r1;
    mov.b32 %r30, 0;
    mov.b32 %r31, 0;
    mul.wide.u32 %rd12, %r2, {8 * ITERATIONS};
    add.u64 %rd1, %rd1, %rd12;
    setp.eq.u32 %p2, %r2, 0;
    LOOP:
    mov.u64 %rd20, %clock64;
    elect.sync _|%p3, -1;
    and.pred %p5, %p3, %p2;
    @!%p5 bra WAITS;
    mov.b32 %r32, 0;
    BATCH:
    {mma * unrolled}
    add.u32 %r32, %r32, 1;
    setp.lt.u32 %p7, %r32, %r33;
    @%p7 bra BATCH;
    {commit}
    WAITS:
    {{ .reg .pred P1; LAB: mbarrier.try_wait.parity.shared.b64 P1, [%r10], %r31;
    @P1 bra DONE; bra LAB; DONE: }}
    mov.u64 %rd21, %clock64;
    sub.u64 %rd22, %rd21, %rd20;
    st.global.u64 [%rd1], %rd22;
    add.u64 %rd1, %rd1, 8;
    xor.b32 %r31, %r31, 1;
    add.u32 %r30, %r30, 1;
    setp.lt.u32 %p6, %r30, {ITERATIONS};
    @%p6 bra LOOP;
    {sync}
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r20, {columns};
    """
    return ptx(body, [".u64 out", ".u64 data"], 32)
