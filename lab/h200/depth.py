"""How SMs of a Hopper GPU share DRAM, by how many load and what each has under way.

Every CTA, one an SM, loads 128 rows of 8 KB that are no other CTA's, 128 bytes of each at a time as
a GEMM does: 16 KB into a ring of `stages`. us: from the start of the first CTA to the end of the
last one, the median of many launches. ends: for each SM, by %smid, when its CTA has all its rows,
the mean.
"""

from __future__ import annotations

import struct

from harness.measure.kernels import TENSOR
from hopper.rewrite import TARGET
from lab.h200 import rig

ROWS, BOX, PITCH = 128, 128, 8192  # rows; bytes of each in a stage, and from row to row
STAGE, LOADS = ROWS * BOX, PITCH // BOX
WORDS = 3  # that a CTA writes: start and end in ns, %smid
CTAS = (24, 40, 56, 72, 96, 128)
STAGES = (4, 5, 6, 8, 10, 13)
LAUNCHES, WARM = 21, 1
TURNS = 8  # launches until the same rows are read again


def kernel(stages: int, target: str = TARGET) -> str:
    """PTX. Parameters: out (WORDS u64 a CTA), map."""
    issue = f"mul.lo.u32 %r4, %r10, {BOX}; {TENSOR} [%r20], [%rd2, {{%r4, %r3}}], [%r22];"
    body = f"""ld.param.u64 %rd1, [out]; mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;
    mov.u64 %rd3, %globaltimer; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r9, dyn;
    {rig.ring(stages, STAGE, STAGE, LOADS, f"mul.lo.u32 %r3, %r2, {ROWS};", issue)}
    mov.u64 %rd4, %globaltimer; mov.u32 %r5, %smid; cvt.u64.u32 %rd5, %r5;
    mad.wide.u32 %rd6, %r2, {8 * WORDS}, %rd1;
    st.global.u64 [%rd6], %rd3; st.global.u64 [%rd6+8], %rd4; st.global.u64 [%rd6+16], %rd5;
    END:"""
    return rig.ptx(body, 64, rig.OUT_AND_MAP, target)


def shape_of(ctas: int, stages: int) -> rig.Shape:
    return rig.row(ctas, 64, 1, stages * (STAGE + 16))


def parameters(ctas: int, data: int, out: int) -> bytes:
    boxes = rig.matrix(data, PITCH, ctas * ROWS, (BOX, ROWS))
    return struct.pack("<Q", out).ljust(64, b"\0") + boxes


def times(out) -> tuple[float, dict[int, float]]:
    """(us until the last end, us until the end of each SM) of what a launch wrote."""
    started, ended, sms = out.unbind(1)
    ends = ((ended - started.min()).double() / 1e3).tolist()
    return max(ends), dict(zip(sms.tolist(), ends, strict=True))


def measure(ctas: int, stages: int) -> rig.Row:
    image, room = rig.image_of(kernel(stages), shape := shape_of(ctas, stages)), ctas * ROWS * PITCH
    data, out = rig.room(TURNS * room), rig.zeros(ctas, WORDS)
    found = []
    for i in range(LAUNCHES):
        rig.forget()
        image.enqueue(shape, parameters(ctas, data.data_ptr() + i % TURNS * room, out.data_ptr()))
        found.append(times(out.cpu()))
    us = sorted(us for us, _ in found[WARM:])
    sms = {sm: [ends[sm] for _, ends in found[WARM:] if sm in ends] for sm in found[-1][1]}
    ends = {sm: round(sum(each) / len(each), 2) for sm, each in sorted(sms.items())}
    return {"ctas": ctas, "stages": stages, "us": us[len(us) // 2], "ends": ends}


def results() -> rig.Results:
    return (measure(ctas, stages) for ctas in CTAS for stages in STAGES)
