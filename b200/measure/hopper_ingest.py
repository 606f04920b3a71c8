"""How fast SMs of a Hopper GPU take in copies from the L2, by the kind of copy.

    python -m b200.measure.hopper_ingest [--json FILE]

A warp of each CTA issues the copies of a stage as soon as another warp has seen the stage before in
its place; all stages together hold up to 200 KB and are loaded again and again. `group` CTAs load
the same. Bytes a clk that land in each SM.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass

from b200.chip.copies.tensormap import TensorMap
from b200.hopper.probe import command
from b200.hopper.rewrite import TARGET
from b200.hopper.run import Image, Shape, places_of

TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
TRY = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
LOADS, WARM = 48, 16
FLOAT32, BYTE = 7, 0  # element types


@dataclass(frozen=True)
class Stage:
    """What is copied at a time. row: bytes of a row of the boxes; swizzle as in a tensormap;
    boxes: rows of each box; bulk: bytes of each bulk copy; stages: under way together.
    """

    name: str
    row: int
    swizzle: int
    boxes: tuple[int, ...]
    bulk: tuple[int, ...]
    stages: int

    @property
    def nbytes(self) -> int:
        return self.row * sum(self.boxes) + sum(self.bulk)


KINDS = (
    Stage("rows of 128 B, swizzled", 128, 3, (256,), (), 6),
    Stage("rows of 512 B", 512, 0, (64,), (), 6),
    Stage("rows of 64 B", 64, 2, (256,), (), 8),
    Stage("rows of 32 B", 32, 1, (256,), (), 8),
    Stage("boxes of 64 rows", 128, 3, (64, 64), (), 8),
    Stage("bulk copies of 2 KB", 128, 0, (), (2048,) * 8, 8),
    Stage("bulk copies of 16 KB", 128, 0, (), (16384,), 8),
    Stage("a stage of a GEMM", 128, 3, (128, 128), (2048, 2048), 6),
)
PLACES = ((1, 1), (16, 1), (132, 1), (132, 2), (132, 4), (132, 16), (132, 132))


@dataclass(frozen=True)
class Measured:
    name: str
    ctas: int
    group: int
    bytes_a_clk: float


def kernel(stage: Stage, group: int, target: str = TARGET) -> str:
    """PTX. Parameters: out (a u64 a CTA: clk of LOADS - 1 - WARM stages), map, data."""
    size, issue, at = -(-stage.nbytes // 1024) * 1024, "", 0
    for rows in stage.boxes:
        issue += f"{TENSOR} [%r20+{at}], [%rd3, {{0, %r21}}], [%r22]; add.u32 %r21, %r21, {rows};\n"
        at += rows * stage.row
    for nbytes in stage.bulk:
        issue += f"{BULK} [%r20+{at}], [%rd8], {nbytes}, [%r22]; add.u64 %rd8, %rd8, {nbytes};\n"
        at += nbytes
    full = stage.stages * size
    empty = full + 8 * stage.stages
    init = "\n".join(
        f"mbarrier.init.shared::cta.b64 [%r9+{full + 8 * s}], 1;" for s in range(2 * stage.stages)
    )
    return f""".version 8.6
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .u64 out, .param .align 64 .b8 map[128], .param .u64 data)
.reqntid 64, 1, 1
{{
    .reg .pred %p<8>; .reg .b32 %r<40>; .reg .b64 %rd<24>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.b64 %rd4, map; cvta.param.u64 %rd3, %rd4;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r9, dyn;
    mul.wide.u32 %rd5, %r2, 8; add.u64 %rd1, %rd1, %rd5;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    {init}
    fence.mbarrier_init.release.cluster;
    READY: bar.sync 0;
    mov.b32 %r10, 0; mov.b32 %r11, 0;
    setp.eq.u32 %p2, %r1, 32; @%p2 bra CONSUME;
    @%p1 bra END;
    div.u32 %r5, %r2, {group}; mul.lo.u32 %r6, %r5, {sum(stage.boxes) * stage.stages};
    mul.wide.u32 %rd7, %r5, {sum(stage.bulk) * stage.stages}; add.u64 %rd6, %rd2, %rd7;
    mov.b32 %r12, 1; mov.u32 %r21, %r6; mov.u64 %rd8, %rd6;
    LOAD: mad.lo.u32 %r22, %r11, 8, %r9; mad.lo.u32 %r20, %r11, {size}, %r9;
    FREE: {TRY} %p3, [%r22+{empty}], %r12; @!%p3 bra FREE;
    add.u32 %r22, %r22, {full};
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r22], {stage.nbytes};
    {issue}
    add.u32 %r11, %r11, 1; add.u32 %r10, %r10, 1;
    setp.ne.u32 %p4, %r11, {stage.stages}; @%p4 bra NEXT;
    mov.b32 %r11, 0; xor.b32 %r12, %r12, 1; mov.u32 %r21, %r6; mov.u64 %rd8, %rd6;
    NEXT: setp.lt.u32 %p5, %r10, {LOADS}; @%p5 bra LOAD;
    bra END;
    CONSUME: mov.b32 %r12, 0; mov.u64 %rd20, 0;
    SEE: mad.lo.u32 %r32, %r11, 8, %r9;
    THERE: {TRY} %p3, [%r32+{full}], %r12; @!%p3 bra THERE;
    mbarrier.arrive.shared::cta.b64 _, [%r32+{empty}];
    setp.ne.u32 %p6, %r10, {WARM}; @%p6 bra LATER; mov.u64 %rd20, %clock64;
    LATER: add.u32 %r11, %r11, 1; add.u32 %r10, %r10, 1;
    setp.ne.u32 %p4, %r11, {stage.stages}; @%p4 bra SAME; mov.b32 %r11, 0; xor.b32 %r12, %r12, 1;
    SAME: setp.lt.u32 %p5, %r10, {LOADS}; @%p5 bra SEE;
    mov.u64 %rd21, %clock64; sub.u64 %rd22, %rd21, %rd20; st.global.u64 [%rd1], %rd22;
    END: ret;
}}
"""


def matrix(stage: Stage, ctas: int, group: int) -> tuple[int, int]:
    """(rows of the matrix that the boxes are of, bytes that the bulk copies read)."""
    sets = (ctas // group + 1) * stage.stages
    return max(1, sum(stage.boxes)) * sets, sum(stage.bulk) * sets + 16


def tensormap(stage: Stage, address: int, rows: int) -> bytes:
    """Of the matrix; elements of 4 bytes where a row has more than a box can have elements."""
    size, kind = (4, FLOAT32) if stage.row > 256 else (1, BYTE)
    box = (stage.row // size, max(stage.boxes, default=1))
    return TensorMap(
        address, kind, (stage.row // size, rows), (stage.row,), box, (1, 1), stage.swizzle
    ).encode()


def smem(stage: Stage) -> int:
    return stage.stages * (-(-stage.nbytes // 1024) * 1024 + 16)


def measure(stage: Stage, ctas: int, group: int) -> Measured:
    import torch

    text, (rows, nbytes) = kernel(stage, group), matrix(stage, ctas, group)
    boxes = torch.zeros(rows * stage.row, dtype=torch.uint8, device="cuda")
    bulk = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    out = torch.zeros(ctas, dtype=torch.int64, device="cuda")
    image = Image(text, "k", places_of(text, "k"))
    (_, map_at, data_at) = (offset for offset, _, _ in image.places)
    params = struct.pack("<Q", out.data_ptr()).ljust(map_at, b"\0")
    params += tensormap(stage, boxes.data_ptr(), rows)
    params = params.ljust(data_at, b"\0") + struct.pack("<Q", bulk.data_ptr())
    found = []
    for _ in range(4):
        image.launch(Shape((ctas, 1, 1), (64, 1, 1), (1, 1, 1), smem(stage)), params)
        found.append(out.double().mean().item() / (LOADS - 1 - WARM))
    return Measured(stage.name, ctas, group, stage.nbytes / sorted(found[1:])[1])


def measure_all() -> list[Measured]:
    return [measure(stage, ctas, group) for stage in KINDS for ctas, group in PLACES]


def table(results: list[Measured]) -> str:
    lines = ["| copies | CTAs | of which load the same | B a clk |", "|---|---|---|---|"]
    for r in results:
        lines.append(f"| {r.name} | {r.ctas} | {r.group} | {r.bytes_a_clk:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure_all, table))
