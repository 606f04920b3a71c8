"""What reads cost a Hopper GPU's DRAM beside stores, which it writes back while it reads.

Every CTA, of 128 threads and one an SM, loads `steps` times 16 KB, eight under way, and stores
whole lines. along: some bytes every so many steps. after: all of them after the last load. rows:
in each of 8 rows 64 bytes a warp and 256 a CTA, of rows that all CTAs make up. boxes: along, and
what is loaded are 128 bytes of each of 128 rows 4 KB apart, as a GEMM's are; else it is one piece.
hits: along, but the same 128 KB are loaded again and again, by each call. us: a call, in a CUDA
graph; but for hits no call reads or stores what one of the last ones did, as far back as the L2
holds twice over, so each writes back as much as it stores.
"""

from __future__ import annotations

import struct

from b200.chip.launch import Shape
from harness.measure.kernels import BULK, TENSOR
from hopper.rewrite import TARGET
from hopper.timing import graph_us
from lab.h200 import rig

STAGE, STAGES = 16384, 8
PITCH, BOX = 4096, 128  # bytes from row to row of boxes; rows and bytes of a row of one
ACROSS = PITCH // BOX
ROW = 512  # bytes that a warp stores at once
WARPS = 4
PART = 256  # bytes of a row that a CTA stores
POOL = 240 << 20  # bytes that take turns, of what is read and of what is stored
STEPS = (4, 15, 31, 61)
STORED = ((0, 1), (512, 8), (512, 4), (512, 2), (512, 1), (1024, 1), (2048, 1), (4096, 1))
STORED += ((8192, 1), (16384, 1))
BURSTS = ((16384, 8), (32768, 8))
KINDS = {
    "along": STORED + BURSTS,
    "after": STORED[4::2],
    "rows": ((2048, 1), (4096, 1), (8192, 1), *BURSTS),
    "boxes": STORED[::2] + STORED[7:8],
    "hits": STORED[:5:4] + STORED[6:],
}


def of_cta(steps: int, stored: int, every: int) -> int:
    """Bytes that a CTA stores."""
    return stored * (-(-steps // every))


def blocks(steps: int) -> int:
    """Times 128 rows that a CTA loads by boxes."""
    return -(-steps // ACROSS)


def loading(kind: str) -> str:
    """PTX that loads stage %r12, of step %r18, to %r14; its barrier is at %r15."""
    expect = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r15], {STAGE};"
    if kind == "boxes":
        return f"""{expect} rem.u32 %r19, %r18, {ACROSS}; mul.lo.u32 %r19, %r19, {BOX};
    div.u32 %r22, %r18, {ACROSS}; add.u32 %r22, %r22, %r23; mul.lo.u32 %r22, %r22, {BOX};
    {TENSOR} [%r14], [%rd1, {{%r19, %r22}}], [%r15];"""
    again = f"mad.wide.u32 %rd2, %r12, {STAGE}, %rd10;" if kind == "hits" else ""
    return f"{expect} {again} {BULK} [%r14], [%rd2], {STAGE}, [%r15]; add.u64 %rd2, %rd2, {STAGE};"


def storing(kind: str, steps: int, stored: int, every: int, ctas: int) -> tuple[str, str]:
    """PTX that puts the first place of a lane's stores into %rd8; that stores at step %r10."""
    whole, apart = ROW * WARPS, of_cta(steps, stored, every)
    place = f"mul.lo.u32 %r5, %r4, {ROW}; mad.lo.u32 %r5, %r3, 16, %r5;"
    unit = whole
    if kind == "rows":
        row, apart = PART * ctas, PART
        unit = 8 * row
        place = f"""and.b32 %r5, %r3, 3; shl.b32 %r5, %r5, 4; shr.u32 %r6, %r3, 2;
    mad.lo.u32 %r5, %r4, {PART // WARPS}, %r5; mad.lo.u32 %r5, %r6, {row}, %r5;"""
    begin = f"""{place} mul.wide.u32 %rd4, %r2, {apart}; add.u64 %rd8, %rd7, %rd4;
    cvt.u64.u32 %rd5, %r5; add.u64 %rd8, %rd8, %rd5;"""
    return (
        begin,
        f"""and.b32 %r20, %r10, {every - 1}; setp.ne.u32 %p4, %r20, 0; @%p4 bra STORED;
    setp.ge.u32 %p4, %r4, {stored // ROW}; @%p4 bra NEXT;
    mov.u64 %rd9, %rd8; mov.b32 %r21, 0;
    STORE: st.global.L1::no_allocate.v4.b32 [%rd9], {{%r1, %r2, %r3, %r4}};
    add.u64 %rd9, %rd9, {unit}; add.u32 %r21, %r21, {WARPS};
    setp.lt.u32 %p5, %r21, {stored // ROW}; @%p5 bra STORE;
    NEXT: add.u64 %rd8, %rd8, {stored * unit // whole};
    STORED:""",
    )


def kernel(
    kind: str,
    steps: int,
    stored: int,
    every: int,
    ctas: int,
    target: str = TARGET,
    first: str = "",
    last: str = "",
) -> str:
    """PTX. Parameters: data (`steps` * STAGE bytes a CTA, or a tensormap of boxes), out (`of_cta`
    bytes a CTA, at %rd7). first, last: PTX at its start and end, where %r2 is the CTA and %p1 says
    not the first thread; %rd11 is theirs, and at the end %rd8 and %rd9.
    """
    load, (begin, store), behind = loading(kind), storing(kind, steps, stored, every, ctas), ""
    if kind == "after":
        behind = f"mov.b32 %r10, 0; AFTER: {store} add.u32 %r10, %r10, 1;"
        behind += f" setp.lt.u32 %p6, %r10, {steps}; @%p6 bra AFTER;"
        store = ""
    full = STAGES * STAGE
    init = "\n".join(
        f"mbarrier.init.shared::cta.b64 [%r9+{full + 8 * s}], 1;" for s in range(STAGES)
    )
    param, address = ".u64 data", "ld.param.u64 %rd1, [data];"
    if kind == "boxes":
        param, address = ".align 64 .b8 data[128]", "mov.b64 %rd6, data; cvta.param.u64 %rd1, %rd6;"
    body = f"""{address} ld.param.u64 %rd7, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; and.b32 %r3, %r1, 31; shr.u32 %r4, %r1, 5;
    mov.b32 %r9, dyn; setp.ne.u32 %p1, %r1, 0; mul.lo.u32 %r23, %r2, {blocks(steps)};
    mul.wide.u32 %rd3, %r2, {steps * STAGE}; add.u64 %rd2, %rd1, %rd3; mov.u64 %rd10, %rd2;
    {begin}
    {first}
    @%p1 bra READY;
    {init}
    fence.mbarrier_init.release.cluster;
    mov.b32 %r12, 0;
    FIRST: mad.lo.u32 %r15, %r12, 8, %r9; add.u32 %r15, %r15, {full};
    mad.lo.u32 %r14, %r12, {STAGE}, %r9; mov.u32 %r18, %r12;
    {load}
    add.u32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, {min(steps, STAGES)}; @%p2 bra FIRST;
    READY: bar.sync 0;
    mov.b32 %r10, 0; mov.b32 %r12, 0; mov.b32 %r16, 0;
    STEP: mad.lo.u32 %r15, %r12, 8, %r9; add.u32 %r15, %r15, {full};
    mad.lo.u32 %r14, %r12, {STAGE}, %r9;
    WAIT: {rig.TRY} %p3, [%r15], %r16; @!%p3 bra WAIT;
    bar.sync 0;
    add.u32 %r18, %r10, {STAGES}; setp.ge.or.u32 %p2, %r18, {steps}, %p1; @%p2 bra LOADED;
    {load}
    LOADED: {store}
    add.u32 %r12, %r12, 1; setp.ne.u32 %p4, %r12, {STAGES}; @%p4 bra SAME;
    mov.b32 %r12, 0; xor.b32 %r16, %r16, 1;
    SAME: add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, {steps}; @%p5 bra STEP;
    {behind}
    {last}"""
    return rig.ptx(body, 32 * WARPS, (param, ".u64 out"), target)


def sizes(kind: str, ctas: int, steps: int, stored: int, every: int) -> tuple[int, int]:
    """Bytes of what is loaded, boxes that are not loaded among them, and of what is stored."""
    read = blocks(steps) * BOX * PITCH if kind == "boxes" else steps * STAGE
    return ctas * read, ctas * of_cta(steps, stored, every)


def shape_of(ctas: int) -> Shape:
    return rig.row(ctas, 32 * WARPS, 1, STAGES * (STAGE + 8))


def parameters(kind: str, ctas: int, steps: int, data: int, out: int) -> bytes:
    """The parameters of a kernel that loads and stores from these addresses on."""
    if kind == "boxes":
        first = rig.matrix(data, PITCH, ctas * blocks(steps) * BOX, (BOX, BOX))
    else:
        first = struct.pack("<Q", data)
    return first + struct.pack("<Q", out)


def measure(kind: str, ctas: int, steps: int, stored: int, every: int) -> rig.Row:
    """read, stored: bytes of a call; burst: that a CTA stores at once; every: so many steps."""
    shape, room = shape_of(ctas), sizes(kind, ctas, steps, stored, every)
    image = rig.image_of(kernel(kind, steps, stored, every, ctas), shape)
    pools = [rig.room(max(POOL, 2 * n)) for n in room]
    turns = [pool.numel() // max(n, 1) for pool, n in zip(pools, room, strict=True)]
    if kind == "hits":
        turns[0] = 1

    def params(i: int) -> bytes:
        places = zip(pools, turns, room, strict=True)
        return parameters(kind, ctas, steps, *(p.data_ptr() + i % t * n for p, t, n in places))

    us = graph_us(lambda i: image.enqueue(shape, params(i)))
    of = {"kind": kind, "read": ctas * steps * STAGE, "stored": room[1]}
    return of | {"burst": stored, "every": every, "us": us}


def results() -> rig.Results:
    return (
        measure(kind, rig.sms(), n, *of)
        for kind, stores in KINDS.items()
        for n in (STEPS[1:] if kind == "boxes" else STEPS)  # a few boxes a turn stay in the L2
        for of in stores
    )
