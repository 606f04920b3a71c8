"""Compares the UMMA tables of SemiAnalysis with the clock.

Throughput: clk an instruction, in batches of 16 to 256 that each end with a commit and a wait for
it. Latency: clk of one instruction and its commit. The kernels are PTX and run in the timed
emulator; those of cta_group::2 run as a cluster of two.
"""

from __future__ import annotations

import torch

from harness.measure.published import ITERATIONS, mma_kernel
from lab.calibrations import bench_kernels as bench


def clk(gpu, fmt, layout, group, m, n, depth) -> float:
    """The clk of an iteration: the median over the iterations."""
    out = torch.zeros(2 * ITERATIONS, dtype=torch.int64)
    text = mma_kernel(fmt, layout, group, m, n, depth)
    parameters = [bench.pointer(out)] * 2
    bench.launch(gpu, text, parameters, group, 32, group, 32768)
    return float(out[:ITERATIONS].sort().values[ITERATIONS // 2])


def main(argv: list[str]) -> None:
    options = bench.arguments("umma", __doc__).parse_args(argv)
    gpu = bench.timed_gpu(constants=bench.overrides(options.set))
    latency, throughput = bench.Errors("clk"), bench.Errors("clk")
    for i, row in enumerate(bench.table(options.data / "sa_umma_lat_full.csv")):
        key = row["Format"], row["ABLayout"], int(row["CTAGroup"]), int(row["M"]), int(row["N"])
        group, label = f"latency {key[1]} cta{key[2]} M{key[3]}", f"{key[0]} N{key[4]}"
        latency.add(group, i, label, clk(gpu, *key, 1), float(row["MedianCycles"]))
    for i, row in enumerate(bench.table(options.data / "sa_umma_tput_full.csv")):
        key = row["Format"], row["ABLayout"], int(row["CTAGroup"]), int(row["M"]), int(row["N"])
        if not options.all and i % 5 not in (0, 3):
            continue
        depth = int(row["PipelineDepth"])
        group = f"throughput {key[1]} cta{key[2]} M{key[3]}"
        label, each = f"{key[0]} N{key[4]} depth {depth}", clk(gpu, *key, depth) / depth
        throughput.add(group, i, label, each, float(row["CyclesPerMMA"]))
    latency.print(options.rows)
    throughput.print(options.rows, absolute=True)
    bench.write(options.out, latency, throughput)
