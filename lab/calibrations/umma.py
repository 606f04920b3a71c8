"""Compares the UMMA tables of SemiAnalysis with the clock.

Throughput: clk an instruction, in batches of 16 to 256 that each end with a commit and a wait for
it. Latency: clk of one instruction and its commit. The kernels are PTX and run in the timed
emulator; those of cta_group::2 run as a cluster of two.
"""

from __future__ import annotations

import torch

from harness.measure.published import ITERATIONS, mma_kernel
from lab.calibrations.bench_kernels import (
    Errors,
    arguments,
    launch,
    overrides,
    pointer,
    table,
    timed_gpu,
    write,
)


def clk(gpu, fmt, layout, group, m, n, depth) -> float:
    """The clk of an iteration: the median over the iterations."""
    out = torch.zeros(2 * ITERATIONS, dtype=torch.int64)
    text = mma_kernel(fmt, layout, group, m, n, depth)
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
    write(options.out, latency, throughput)
