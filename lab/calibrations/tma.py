"""Compares TMA bandwidth by bytes in flight, and the cold latency of one load, with the clock.

As in SemiAnalysis' tma2d_throughput and tma2d_latency, 148 CTAs of one warp load fp32 rows of 512
bytes. The first keeps 1, 2 or 4 loads under way; its clk a load are taken after the pipeline has
filled. The second loads one tile in each CTA, with nothing cached and an L2 full of written lines
(its benchmark clears the L2 with a memset).
"""

from __future__ import annotations

import statistics

import torch

from harness.measure.published import CTAS, LOAD, START, WAIT, WIDTH, bandwidth_kernel, ptx
from lab.calibrations import bench_kernels as bench


def latency_kernel(height: int) -> str:
    tile = WIDTH * 4 * height
    body = f"""{START}
    add.u32 %r12, %r9, {tile};
    @%p1 mbarrier.init.shared::cta.b64 [%r12], 1;
    bar.sync 0;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    mul.lo.u32 %r5, %r2, {height};
    mov.u64 %rd20, %clock64;
    @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r12], {tile};
    @%p1 {LOAD} [%r9], [%rd3, {{0, %r5}}], [%r12];
    {WAIT.format("%r12", "0")}
    mov.u64 %rd21, %clock64;
    sub.u64 %rd22, %rd21, %rd20;
    st.global.u64 [%rd1], %rd22;"""
    return ptx(body, [".u64 out", ".align 64 .b8 map[128]"], 32)


def run(gpu, text: str, height: int, tiles: int, smem: int, ctas: int = CTAS) -> list[int]:
    """The clk that each CTA reports. tiles: number of tiles for each CTA."""
    rows = ctas * tiles * height
    matrix = torch.empty(rows * WIDTH, dtype=torch.float32)
    out = torch.zeros(ctas, dtype=torch.int64)
    parameters = [bench.pointer(out), bench.tensormap(matrix, WIDTH, rows, (WIDTH, height))]
    bench.launch(gpu, text, parameters, ctas, 32, smem=smem)
    return out.tolist()


def main(argv: list[str]) -> None:
    options = bench.arguments("tma", __doc__).parse_args(argv)
    constants = bench.overrides(options.set)
    bandwidth, latency = bench.Errors("clk"), bench.Errors("clk")
    for i, row in enumerate(bench.table(options.data / "sa_tma2d_tput.csv")):
        height, stages = int(row["SmemHeight"]), int(row["NumStages"])
        tile = WIDTH * 4 * height
        loads = max(8, min(100, (96 << 20) // (CTAS * tile))) + 3 * stages
        warm = loads // 3
        text = bandwidth_kernel(height, stages, loads, warm)
        gpu = bench.timed_gpu(constants=constants)
        got = run(gpu, text, height, loads + stages, stages * tile + 1024)
        each, measured = statistics.mean(got) / (loads - 1 - warm), float(row["CyclesPerTMA"])
        bandwidth.add("clk a load, steady", i, f"{stages} x {tile} B in flight", each, measured)
    for i, row in enumerate(bench.table(options.data / "sa_tma2d_lat.csv")):
        height = int(row["SmemHeight"])
        tile = WIDTH * 4 * height
        gpu = bench.timed_gpu(constants=constants, dirty_l2=True)
        got = statistics.median(run(gpu, latency_kernel(height), height, 1, tile + 1024))
        latency.add("one cold load", i, f"{tile} B", got, float(row["LatencyCyclesMedian"]))
    bandwidth.print(options.rows)
    latency.print(options.rows)
    bench.write(options.out, bandwidth, latency)
