"""Compares published multicast fill rates with the clock.

As in SemiAnalysis' tma2dmcast_throughput, 148 CTAs of four warps run rounds; in each round every
warp makes one load, and all warps of a cluster meet. The modes are "no sharing" (each CTA loads its
own data), "explicit_mcast" (the first CTA of a cluster loads for all) and "implicit_l2_cross" (the
CTAs of a sharing group read the same addresses, each in a GPC of its own for groups of up to 8).
The rate is what arrives in shared memory of all SMs together. Of the 405 rows a spread sample is
run: 26 explicit ones, 5 of each other group.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import torch

from harness.measure.published import START, WAIT, ptx
from lab.calibrations import bench_kernels as bench

WARPS = 4
MODES = ("explicit_mcast", "no_sharing", "implicit_l2_cross")
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


def kernel(
    mode: str, cluster: int, group: int, width: int, height: int, rounds: int, ctas: int = 148
) -> str:
    """PTX of `rounds` rounds; the tensor is `width` floats wide."""
    tile = 4 * width * height
    sharing = cluster if mode == "explicit_mcast" else group if mode.startswith("implicit") else 1
    groups = -(-ctas // sharing)
    spread = mode == "implicit_l2_cross"  # members of a group lie as far apart as they can
    if mode == "explicit_mcast":
        multicast = f"{LOAD}.multicast::cluster [%r13], [%rd3, {{0, %r5}}], [%r12], %rs1;"
        load = f"@%p4 {multicast}"
    else:
        load = f"@%p1 {LOAD} [%r13], [%rd3, {{0, %r5}}], [%r12];"
    body = f"""{START}
    and.b32 %r15, %r1, 31;
    setp.eq.u32 %p1, %r15, 0;
    shr.u32 %r16, %r1, 5;
    mov.u32 %r17, %cluster_ctarank;
    setp.eq.and.u32 %p4, %r17, 0, %p1;
    mov.b16 %rs1, {(1 << cluster) - 1};
    mad.lo.u32 %r12, %r16, 8, %r9;
    add.u32 %r12, %r12, {WARPS * tile};
    mad.lo.u32 %r13, %r16, {tile}, %r9;
    @%p1 mbarrier.init.shared::cta.b64 [%r12], 1;
    bar.sync 0;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive; barrier.cluster.wait;
    {"rem" if spread else "div"}.u32 %r6, %r2, {groups if spread else sharing};
    mad.lo.u32 %r5, %r6, {WARPS}, %r16;
    mul.lo.u32 %r5, %r5, {height};
    mov.b32 %r7, 0;
    LOOP:
    and.b32 %r11, %r7, 1;
    @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r12], {tile};
    {load}
    {WAIT.format("%r12", "%r11")}
    barrier.cluster.arrive; barrier.cluster.wait;
    add.u32 %r5, %r5, {groups * WARPS * height};
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p2, %r7, {rounds};
    @%p2 bra LOOP;"""
    return ptx(body, [".u64 out", ".align 64 .b8 map[128]"], 32 * WARPS)


def rate(row: dict, constants: dict[str, float], rounds: tuple[int, int] = (2, 14)) -> float:
    """TB/s that fill shared memory, from the difference of two launches."""
    mode, cluster, group = row["mode_name"], int(row["cluster_size"]), int(row["sharing_group"])
    width, height = int(row["smem_width"]), int(row["smem_height"])
    tile, ctas = 4 * width * height, 148 // cluster * cluster
    if mode.startswith("implicit"):
        ctas = ctas // group * group
    rows = 160 * WARPS * height * (rounds[1] + 1)
    matrix, out = torch.empty(rows * width, dtype=torch.float32), torch.zeros(1, dtype=torch.int64)
    times = []
    for n in rounds:
        gpu = bench.timed_gpu(constants=constants)
        text = kernel(mode, cluster, group, width, height, n)
        parameters = [bench.pointer(out), bench.tensormap(matrix, width, rows, (width, height))]
        done = bench.launch(gpu, text, parameters, ctas, 32 * WARPS, cluster, 232_448)
        times.append(done.time.time_us)
    return ctas * WARPS * tile * (rounds[1] - rounds[0]) / (times[1] - times[0]) / 1e6


def spread(rows: list, count: int) -> list:
    """`count` of the rows, first and last among them, at even distances."""
    if count >= len(rows):
        return rows
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


def main(argv: list[str]) -> None:
    parser = bench.arguments("mcast", __doc__)
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    options = parser.parse_args(argv)
    errors = bench.Errors("TB/s")
    groups: dict[str, list] = {}
    for row in bench.table(options.data / "sa_tma_mcast.csv"):
        if row["mode_name"] in MODES:
            name = f"{row['mode_name']} {row['cluster_size']}/{row['sharing_group']}"
            of_this = groups.setdefault(name, [])
            of_this.append((len(of_this), row))
    chosen = []
    for name, rows in groups.items():
        count = len(rows) if options.all else 13 if name.startswith("explicit") else 5
        chosen += [(name, i, row) for i, row in spread(rows, count)]
    with ProcessPoolExecutor(options.jobs) as pool:
        constants = [bench.overrides(options.set)] * len(chosen)
        rates = list(pool.map(rate, [row for *_, row in chosen], constants))
    for (name, i, row), modelled in zip(chosen, rates, strict=True):
        measured = float(row["tma_ld_bytes"]) / float(row["gpu_time_ns"]) / 1e3
        label = f"4 x {row['tile_bytes']} B, rows of {4 * int(row['smem_width'])} B"
        errors.add(name, i, label, modelled, measured)
    errors.print(options.rows)
    bench.write(options.out, errors)
