"""What stores cost a Hopper GPU, by how much of a 32-byte sector an instruction writes.

Every CTA, of 128 threads and one an SM, stores 4 KB a step: each warp 16 bytes a lane, twice.
halves: one half of 32 sectors, then the other half, as the two halves of a 256-bit store on
Hopper; lone halves: the same of one sector in each of 32 rows. sectors: a whole sector in each of
16 rows, then the sectors after them. rows: 64 contiguous bytes of each of 8 rows. lines: 512
contiguous bytes. red rows, red lines: the same, added as four floats a lane.

us: a call, in a CUDA graph, on memory that was not
stored to lately; clk: of a CTA until its last store is issued.
"""

from __future__ import annotations

import struct

from hopper.rewrite import TARGET
from hopper.timing import graph_us
from lab.h200 import rig

STEP = 4096  # bytes of a CTA
PATTERNS = ("halves", "lone halves", "sectors", "rows", "lines", "red rows", "red lines")
STEPS = (2, 8, 32, 128)
FEW, FEW_STEPS = 64, 8  # CTAs that leave the L2 time
POOL = 480 << 20  # bytes that take turns: more than the L2 holds
WIDTH = 256  # bytes of a row that a CTA stores, of rows that all CTAs make up


def _place(pattern: str, ctas: int, steps: int) -> tuple[str, int, int, int]:
    """PTX that puts a lane's offset into %r7; bytes to its second store, of a step, of a CTA."""
    row = ctas * WIDTH
    if pattern.endswith("lines"):
        return "shl.b32 %r7, %r1, 4; mad.lo.u32 %r7, %r4, 512, %r7;", 512, STEP, STEP * steps
    places = {"halves": (1, 32, 16), "lone halves": (0, 0, 16), "sectors": (1, 16, 32)}
    lanes, wide, second = places.get(pattern, (2, 16, 8 * row))
    text = f"""shr.u32 %r5, %r3, {lanes}; and.b32 %r6, %r3, {(1 << lanes) - 1};
    mul.lo.u32 %r7, %r6, {wide}; mad.lo.u32 %r7, %r5, {row}, %r7; mad.lo.u32 %r7, %r4, 64, %r7;"""
    return text, second, (32 if lanes == 0 else 16) * row, WIDTH


def kernel(pattern: str, ctas: int, steps: int, target: str = TARGET) -> str:
    """PTX. Parameters: out (a u64 a CTA: clk), data (`ctas` * STEP * `steps` bytes)."""
    place, second, step, apart = _place(pattern, ctas, steps)
    store, data = "st.global.L1::no_allocate.v4.b32", "{%r1, %r2, %r3, %r4}"
    if pattern.startswith("red"):
        store, data = "red.global.add.v4.f32", "{%f1, %f1, %f1, %f1}"
    body = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; and.b32 %r3, %r1, 31; shr.u32 %r4, %r1, 5;
    {place}
    mul.wide.u32 %rd3, %r2, {apart}; add.u64 %rd2, %rd2, %rd3;
    cvt.u64.u32 %rd4, %r7; add.u64 %rd2, %rd2, %rd4;
    mov.f32 %f1, 0f3F800000;
    mov.b32 %r8, 0; mov.u64 %rd10, %clock64;
    STEP: {store} [%rd2], {data};
    {store} [%rd2+{second}], {data};
    add.u64 %rd2, %rd2, {step};
    add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, {steps}; @%p1 bra STEP;
    mov.u64 %rd11, %clock64; sub.u64 %rd11, %rd11, %rd10;
    mul.wide.u32 %rd5, %r2, 8; add.u64 %rd1, %rd1, %rd5;
    setp.eq.u32 %p2, %r1, 0; @%p2 st.global.u64 [%rd1], %rd11;"""
    return rig.ptx(body, 128, target=target)


def results() -> rig.Results:
    for pattern in PATTERNS:
        for ctas, steps in (*((rig.sms(), n) for n in STEPS), (FEW, FEW_STEPS)):
            size, shape = ctas * STEP * steps, rig.row(ctas, 128)
            image = rig.image_of(kernel(pattern, ctas, steps), shape)
            turns, each = max(2, POOL // size), 2 * size if pattern == "lone halves" else size
            data, out = rig.room(turns * each), rig.zeros(ctas)
            at = [data.data_ptr() + i * each for i in range(turns)]
            params = [struct.pack("<QQ", out.data_ptr(), place) for place in at]
            us = graph_us(lambda i: image.enqueue(shape, params[i % turns]))  # noqa: B023
            of = {"pattern": pattern, "ctas": ctas, "nbytes": size}
            yield of | {"us": us, "clk": out.double().mean().item()}
