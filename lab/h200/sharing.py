"""What it costs on a Hopper GPU that CTAs load the same, and how far they drift apart.

Each CTA has a ring of stages; a warp fills a stage again as soon as another has seen it full. No
CTA reads anything twice, and all of it comes from DRAM. `share` clusters load the same: neighbours
in the launch, or such whose numbers are as far apart as possible. coupled: a stage is filled again
when all CTAs of the cluster have seen it, as in a pair of CTAs. again: only the first `ctas /
share` CTAs do so, the others load a ring's worth from the L2 again and again. outside: all boxes
but the first lie outside of the tensor.

start: us between the first and the last start of CTAs that load the same, the mean; drift: the same
of the times when they see stages, by stage. By the chip's global timer, whose steps are coarse.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass

import torch

from harness.measure.kernels import TENSOR
from lab.h200 import rig

LOADS = 48  # stages that a CTA sees
ROW, ROWS = 128, 128  # of a box, of which a stage has two
STAGE = 2 * ROWS * ROW
SHOWN = (0, 7, 23, 47)  # stages
RUNS = 5


@dataclass(frozen=True)
class Launch:
    """ctas, cluster: of the grid. share: clusters that load the same, neighbours or apart. stages:
    of a ring.
    """

    ctas: int
    cluster: int
    share: int
    apart: bool
    stages: int
    coupled: bool = False
    again: bool = False
    outside: bool = False

    @property
    def tiles(self) -> int:
        return self.ctas // self.cluster // self.share

    @property
    def rows(self) -> int:
        """Rows of the matrix that all boxes are of."""
        return self.tiles * self.cluster * 2 * ROWS * LOADS

    def tile_of(self, cluster: int) -> int:
        return cluster % self.tiles if self.apart else cluster // self.share


LAUNCHES = (
    *(
        Launch(128, cluster, share, apart, stages, coupled)
        for stages in (3, 6)
        for cluster in (1, 2, 4)
        for share in (1, 2, 4, 8)
        for apart in ((False, True) if share > 1 else (False,))
        for coupled in ((False, True) if cluster > 1 else (False,))
    ),
    *(Launch(128, 1, share, True, stages, again=True) for share in (2, 4) for stages in (3, 6)),
    *(Launch(64, 1, 1, False, stages) for stages in (3, 6)),
    *(Launch(ctas, 1, 1, False, 6, outside=True) for ctas in (16, 32, 64, 128)),
)


def kernel(launch: Launch) -> str:
    """PTX. Parameters: out (LOADS + 1 u64 a CTA: the timer at the start, then when each stage was
    full), map.
    """
    releases = launch.cluster if launch.coupled else 1
    if launch.apart:
        tile = f"rem.u32 %r5, %r4, {launch.tiles};"
    else:
        tile = f"div.u32 %r5, %r4, {launch.share};"
    again = ""
    if launch.again:
        again = f"""setp.lt.u32 %p6, %r4, {launch.tiles}; @%p6 bra FIRST;
    mov.b32 %r6, {2 * ROWS * launch.stages}; mul.lo.u32 %r21, %r2, %r6;
    FIRST:"""
    setup = f"""div.u32 %r4, %r2, {launch.cluster}; rem.u32 %r3, %r2, {launch.cluster};
    {tile}
    mad.lo.u32 %r5, %r5, {launch.cluster}, %r3;
    mul.lo.u32 %r21, %r5, {2 * ROWS * LOADS};
    mov.b32 %r6, 0;
    {again}"""
    issue = f"""add.u32 %r23, %r21, {ROWS};
    {TENSOR} [%r20], [%rd3, {{0, %r21}}], [%r22];
    {TENSOR} [%r20+{ROWS * ROW}], [%rd3, {{0, %r23}}], [%r22];"""
    of = {
        "releases": releases,
        "cluster": launch.cluster,
        "filled": f"add.u32 %r21, %r21, {2 * ROWS};",
        "again": "sub.u32 %r21, %r21, %r6;",
        "released": "mov.u64 %rd20, %globaltimer; st.global.u64 [%rd1+8], %rd20;",
        "seen": "add.u64 %rd1, %rd1, 8;",
    }
    body = f"""ld.param.u64 %rd1, [out]; mov.b64 %rd4, map; cvta.param.u64 %rd3, %rd4;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r9, dyn;
    mul.wide.u32 %rd5, %r2, {8 * (LOADS + 1)}; add.u64 %rd1, %rd1, %rd5;
    mov.u64 %rd20, %globaltimer;
    setp.eq.u32 %p7, %r1, 0; @%p7 st.global.u64 [%rd1], %rd20;
    {rig.ring(launch.stages, STAGE, STAGE, LOADS, setup, issue, **of)}
    END: bar.sync 0;
    {rig.meet(launch.cluster)}"""
    return rig.ptx(body, 64, rig.OUT_AND_MAP)


def tensormap(launch: Launch, address: int) -> bytes:
    """The tensormap of the matrix, or of its first box alone."""
    return rig.matrix(address, ROW, ROWS if launch.outside else launch.rows, (ROW, ROWS))


def smem(launch: Launch) -> int:
    return launch.stages * (STAGE + 16)


def measure(launch: Launch) -> rig.Row:
    """us: from the first start to the last stage seen. bytes_a_ns: that arrive in all SMs."""
    image, data = rig.image_of(kernel(launch)), rig.room(launch.rows * ROW)
    out, shape = (
        rig.zeros(launch.ctas, LOADS + 1),
        rig.row(launch.ctas, 64, launch.cluster, smem(launch)),
    )
    params = struct.pack("<Q", out.data_ptr()).ljust(image.places[1][0], b"\0")
    params += tensormap(launch, data.data_ptr())
    found = []
    for _ in range(RUNS):
        rig.forget()
        image.launch(shape, params)
        times = out.cpu().double() / 1e3
        found.append((float(times[:, -1].max() - times[:, 0].min()), times))
    us, times = sorted(found[1:], key=lambda f: f[0])[(RUNS - 1) // 2]
    members: dict[tuple[int, int], list[int]] = {}
    for cta in range(launch.ctas):
        cluster, rank = divmod(cta, launch.cluster)
        members.setdefault((launch.tile_of(cluster), rank), []).append(cta)
    spread = torch.stack(
        [times[of].max(0).values - times[of].min(0).values for of in members.values()]
    ).mean(0)
    drift = [round(float(spread[stage]), 3) for stage in (0, *(1 + stage for stage in SHOWN))]
    rate = {"us": us, "bytes_a_ns": launch.ctas * LOADS * STAGE / (us * 1e3)}
    return {"launch": asdict(launch)} | rate | {"start": drift[0], "drift": drift[1:]}


def results() -> rig.Results:
    return map(measure, LAUNCHES)
