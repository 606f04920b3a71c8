"""How fast SMs of a Hopper GPU take in copies from the L2, by the kind of copy.

A warp of each CTA issues the copies of a stage as soon as another warp has seen the stage before in
its place; all stages together hold up to 200 KB and are loaded again and again. `group` CTAs load
the same. In clusters the shared boxes of a stage are multicast to all of its CTAs, which take turns
in issuing them, and the other boxes are the same for CTAs of a rank; a cluster of 16 is a GPC.
Bytes a clk that land in each SM.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from b200.chip.copies.tensormap import TensorMap
from harness.measure.kernels import BULK, TENSOR
from hopper.rewrite import TARGET
from lab.h200 import rig

LOADS, WARM = 48, 16
BEYOND = 1 << 27  # a row that no matrix has


@dataclass(frozen=True)
class Stage:
    """What is copied at a time. row: bytes of a row of the boxes; swizzle as in a tensormap;
    boxes: rows of each box; bulk: bytes of each bulk copy; stages: under way together; shared: rows
    of the boxes that a cluster's CTAs share, turn by turn. fresh: each stage reads from DRAM what
    no stage has read before. pitch: the rows of the matrix are so many bytes apart, and a stage
    reads of the same rows what follows; else they follow each other. outside: CTAs of a cluster,
    the last ones, whose own boxes lie outside of the matrix.
    """

    name: str
    row: int
    swizzle: int
    boxes: tuple[int, ...]
    bulk: tuple[int, ...]
    stages: int
    shared: tuple[tuple[int, ...], ...] = ()
    fresh: bool = False
    pitch: int = 0
    outside: int = 0

    @property
    def sets(self) -> int:
        """Stages whose rows are others."""
        return 1 if self.pitch else LOADS if self.fresh else self.stages

    @property
    def stride(self) -> int:
        """Bytes from row to row of the matrix."""
        return self.pitch or self.row

    @property
    def shared_rows(self) -> int:
        return sum(map(sum, self.shared))

    @property
    def nbytes(self) -> int:
        return self.row * (sum(self.boxes) + self.shared_rows) + sum(self.bulk)


KINDS = (
    Stage("rows of 128 B, swizzled", 128, 3, (256,), (), 6),
    Stage("rows of 512 B", 512, 0, (64,), (), 6),
    Stage("rows of 64 B", 64, 2, (256,), (), 8),
    Stage("rows of 32 B", 32, 1, (256,), (), 8),
    Stage("boxes of 64 rows", 128, 3, (64, 64), (), 8),
    Stage("bulk copies of 2 KB", 128, 0, (), (2048,) * 8, 8),
    Stage("bulk copies of 16 KB", 128, 0, (), (16384,), 8),
    Stage("a stage of a GEMM", 128, 3, (128, 128), (2048, 2048), 6),
    Stage("128 rows, 2 stages", 128, 3, (128,), (), 2),
    Stage("128 rows, 4 stages", 128, 3, (128,), (), 4),
)
PLACES = ((1, 1), (16, 1), (132, 1), (132, 2), (132, 4), (132, 16), (132, 132))
PAIR = ((64, 64),)
SHARED = (
    Stage("128 rows by turns", 128, 3, (), (), 12, PAIR),
    Stage("64 rows by turns", 128, 3, (), (), 12, ((64,), (64,))),
    Stage("256 rows by turns", 128, 3, (), (), 6, ((128, 128),)),
    Stage("128 rows by turns, 2 stages", 128, 3, (), (), 2, PAIR),
    Stage("128 rows by turns, 4 stages", 128, 3, (), (), 4, PAIR),
    Stage("128 rows by turns, 64 alone", 128, 3, (64,), (), 8, PAIR),
    Stage("128 rows by turns, 64 alone, 2 stages", 128, 3, (64,), (), 2, PAIR),
    Stage("128 rows by turns, 128 alone", 128, 3, (64, 64), (), 6, PAIR),
)
CLUSTERS = ((2, 1), (2, 66), (4, 1), (4, 30))  # CTAs of each, clusters
GPC = Stage("128 rows, 12 stages", 128, 3, (64, 64), (), 12)
GPCS = ((8, 1), (16, 1), (16, 7))
FRESH = tuple(
    Stage(f"128 rows from DRAM, {n} stages", 128, 3, (64, 64), (), n, fresh=True) for n in (4, 8)
)
FRESH_PLACES = ((1, 1), (60, 1), (132, 1), (132, 4))
FRESH_SHARED = tuple(
    Stage(f"128 rows from DRAM by turns, {n} stages", 128, 3, (), (), n, PAIR, True) for n in (4, 8)
)
APART = 8192


def apart(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    return tuple(
        replace(s, name=s.name.replace("rows", "rows 8 KB apart"), pitch=APART) for s in stages
    )


def beside(n: int, outside: int) -> Stage:
    """The stage of a GEMM whose CTAs share weights, some of them without tokens."""
    name = f"128 rows 8 KB apart from DRAM by turns, 64 alone, {n} stages, {outside} outside"
    return Stage(name, 128, 3, (64,), (), n, PAIR, True, APART, outside)


def kernel(stage: Stage, group: int, target: str = TARGET, cluster: int = 1) -> str:
    """PTX. Parameters: out (a u64 a CTA: clk of LOADS - 1 - WARM stages), map, data.

    In clusters, `group` of them load the same shared boxes, and CTAs of a rank the same others.
    """
    size, issue, at, column = -(-stage.nbytes // 1024) * 1024, "", 0, "0"
    if stage.pitch:
        issue, column = f"mul.lo.u32 %r28, %r10, {stage.row};\n", "%r28"
        issue += "mov.u32 %r21, %r6; mov.u32 %r25, %r7;\n"
    for turn, boxes in enumerate(stage.shared):
        issue += f"add.u32 %r23, %r10, {turn}; and.b32 %r23, %r23, {cluster - 1};\n"
        issue += f"setp.ne.u32 %p7, %r23, %r24; @%p7 bra PASS{turn};\n"
        for n, rows in enumerate(boxes):
            issue += f"add.u32 %r27, %r25, {sum(boxes[:n])};\n"
            issue += f"{TENSOR}.multicast::cluster [%r20+{at}], [%rd3, {{{column}, %r27}}], [%r22],"
            issue += " %rs1;\n"
            at += rows * stage.row
        issue += f"PASS{turn}: add.u32 %r25, %r25, {sum(boxes)};\n"
    for rows in stage.boxes:
        issue += f"{TENSOR} [%r20+{at}], [%rd3, {{{column}, %r21}}], [%r22];\n"
        issue += f"add.u32 %r21, %r21, {rows};\n"
        at += rows * stage.row
    for nbytes in stage.bulk:
        issue += f"{BULK} [%r20+{at}], [%rd8], {nbytes}, [%r22]; add.u64 %rd8, %rd8, {nbytes};\n"
        at += nbytes
    again = "" if stage.fresh else "mov.u32 %r21, %r6; mov.u32 %r25, %r7; mov.u64 %rd8, %rd6;"
    sets = stage.sets
    end, tile = ("", "%r2") if cluster == 1 else (rig.meet(cluster), "%r24")
    outside = ""
    if stage.outside:
        outside = f"setp.ge.u32 %p7, %r24, {cluster - stage.outside}; @%p7 mov.u32 %r6, {BEYOND};"
    setup = f"""div.u32 %r5, {tile}, {group if cluster == 1 else 1};
    mul.lo.u32 %r6, %r5, {sum(stage.boxes) * sets}; {outside}
    div.u32 %r7, %r2, {cluster * group};
    mad.lo.u32 %r7, %r7, {stage.shared_rows * sets}, {cluster * sum(stage.boxes) * sets};
    mul.wide.u32 %rd7, %r5, {sum(stage.bulk) * sets}; add.u64 %rd6, %rd2, %rd7;
    mov.u32 %r21, %r6; mov.u32 %r25, %r7; mov.u64 %rd8, %rd6;"""
    clock = f"setp.ne.u32 %p6, %r10, {WARM}; @%p6 bra LATER; mov.u64 %rd20, %clock64; LATER:"
    of = {"releases": cluster, "cluster": cluster, "again": again, "seen": clock}
    body = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.b64 %rd4, map; cvta.param.u64 %rd3, %rd4; mov.u64 %rd20, 0;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r9, dyn;
    mul.wide.u32 %rd5, %r2, 8; add.u64 %rd1, %rd1, %rd5;
    mov.b16 %rs1, {(1 << cluster) - 1}; rem.u32 %r24, %r2, {cluster};
    {rig.ring(stage.stages, size, stage.nbytes, LOADS, setup, issue, **of)}
    mov.u64 %rd21, %clock64; sub.u64 %rd22, %rd21, %rd20; st.global.u64 [%rd1], %rd22;
    END: bar.sync 0;
    {end}"""
    return rig.ptx(body, 64, (*rig.OUT_AND_MAP, ".u64 data"), target)


def matrix(stage: Stage, ctas: int, group: int) -> tuple[int, int]:
    """(rows of the matrix that the boxes are of, bytes that the bulk copies read)."""
    sets = (ctas // group + 1) * stage.sets
    return max(1, sum(stage.boxes) + stage.shared_rows) * sets, sum(stage.bulk) * sets + 16


def tensormap(stage: Stage, address: int, rows: int) -> bytes:
    """The matrix's tensormap; elements of 4 bytes where a row has more than a box can have."""
    size, kind = (4, rig.FLOAT32) if stage.row > 256 else (1, rig.BYTE)
    box = (stage.row // size, max(stage.boxes + sum(stage.shared, ()), default=1))
    return TensorMap(
        address, kind, (stage.stride // size, rows), (stage.stride,), box, (1, 1), stage.swizzle
    ).encode()


def parameters(
    stage: Stage, rows: int, offsets: Sequence[int], out: int, boxes: int, bulk: int
) -> bytes:
    """The parameters of a kernel that has them at these offsets: addresses of three allocations."""
    _, map_at, data_at = offsets
    params = struct.pack("<Q", out).ljust(map_at, b"\0") + tensormap(stage, boxes, rows)
    return params.ljust(data_at, b"\0") + struct.pack("<Q", bulk)


def smem(stage: Stage) -> int:
    return stage.stages * (-(-stage.nbytes // 1024) * 1024 + 16)


def measure(stage: Stage, ctas: int, group: int, cluster: int = 1) -> rig.Row:
    """group: CTAs, or clusters, that load the same."""
    shape, (rows, nbytes) = rig.row(ctas, 64, cluster, smem(stage)), matrix(stage, ctas, group)
    out, boxes, bulk = rig.zeros(ctas), rig.room(rows * stage.stride), rig.room(nbytes)
    image = rig.image_of(kernel(stage, group, cluster=cluster))
    offsets = [offset for offset, _, _ in image.places]
    params = parameters(stage, rows, offsets, out.data_ptr(), boxes.data_ptr(), bulk.data_ptr())
    found = []
    for _ in range(4):
        if stage.fresh:
            rig.forget()
        image.launch(shape, params)
        found.append(out.double().mean().item() / (LOADS - 1 - WARM))
    rate = {"bytes_a_clk": stage.nbytes / sorted(found[1:])[1], "cluster": cluster}
    return {"name": stage.name, "ctas": ctas, "group": group} | rate


def results() -> rig.Results:
    for stages, of in ((KINDS, PLACES), (FRESH + apart(FRESH), FRESH_PLACES)):
        yield from (measure(stage, *place) for stage in stages for place in of)
    clusters = [(GPC, *gpcs) for gpcs in GPCS]
    shared = SHARED + FRESH_SHARED + apart(FRESH_SHARED)
    clusters += [(stage, *of) for stage in shared for of in CLUSTERS]
    clusters += [
        (beside(n, outside), size, count)
        for size, count in CLUSTERS
        for n in (4, 8)
        for outside in (0, size // 2, size)
    ]
    yield from (measure(stage, size * n, 1, size) for stage, size, n in clusters)
