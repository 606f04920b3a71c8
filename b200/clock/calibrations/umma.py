"""Compares the UMMA tables of SemiAnalysis with the clock.

Throughput: clk an instruction, in batches of 16 to 256 that each end with a commit and a wait for
it. Latency: clk of one instruction and its commit. The kernels are PTX and run in the timed
emulator; those of cta_group::2 run as a cluster of two.
"""

from __future__ import annotations

import torch

from b200.clock.calibrations.bench_kernels import (
    Errors,
    arguments,
    launch,
    overrides,
    pointer,
    ptx,
    table,
    timed_gpu,
    write,
)

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


def shape_bits(m: int, n: int, scaled: bool) -> int:
    return n >> 3 << 17 | (m >> 7 << 27 if scaled else m >> 4 << 24)


def kernel(fmt: str, layout: str, group: int, m: int, n: int, depth: int) -> str:
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


def clk(gpu, fmt, layout, group, m, n, depth) -> float:
    """The clk of an iteration: the median over the iterations."""
    out = torch.zeros(2 * ITERATIONS, dtype=torch.int64)
    text = kernel(fmt, layout, group, m, n, depth)
    launch(gpu, text, [pointer(out)] * 2, grid=group, threads=32, cluster=group, smem=32768)
    return float(out[:ITERATIONS].sort().values[ITERATIONS // 2])


def main(argv: list[str]) -> None:
    options = arguments("umma", __doc__).parse_args(argv)
    gpu = timed_gpu(constants=overrides(options.set))
    latency, throughput = Errors("clk"), Errors("clk")
    for i, row in enumerate(table(options.data / "sa_umma_lat_full.csv")):
        key = row["Format"], row["ABLayout"], int(row["CTAGroup"]), int(row["M"]), int(row["N"])
        latency.add(
            f"latency {key[1]} cta{key[2]} M{key[3]}",
            i,
            f"{key[0]} N{key[4]}",
            clk(gpu, *key, 1),
            float(row["MedianCycles"]),
        )
    for i, row in enumerate(table(options.data / "sa_umma_tput_full.csv")):
        key = row["Format"], row["ABLayout"], int(row["CTAGroup"]), int(row["M"]), int(row["N"])
        if not options.all and i % 5 not in (0, 3):
            continue
        depth = int(row["PipelineDepth"])
        throughput.add(
            f"throughput {key[1]} cta{key[2]} M{key[3]}",
            i,
            f"{key[0]} N{key[4]} depth {depth}",
            clk(gpu, *key, depth) / depth,
            float(row["CyclesPerMMA"]),
        )
    latency.print(options.rows)
    throughput.print(options.rows, absolute=True)
    write(options.json, latency, throughput)
