"""What is computed from a load is computed where it is used, as ptxas has it.

What stands behind the barrier is from SASS of ptxas 13.0 for sm_100a, of the same sources.
"""

from __future__ import annotations

import pytest
import torch

from b200.clock import code_motion
from b200.clock.writer import TimedWriter
from b200.program.parse import parse
from b200.program.translate import translate
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run

COMPUTED = "ld.global.f32 %r10, [%rd5]; rcp.approx.ftz.f32 %r11, %r10;"
SECOND = "ld.global.f32 %r13, [%rd5+65536];"
BARRIER = "bar.sync 0;"
LONG = "".join(f"mad.lo.s32 %r20, %r20, %r20, {i};" for i in range(20))
MEETS = f"@%p1 bra ON; {LONG} ON: {BARRIER}"
USE = "fma.rn.f32 %r14, %r13, %r11, %r13;"
ARM = f"@%p1 bra ON; {USE} ON: {BARRIER} {SECOND} add.f32 %r14, %r14, %r13;"


@pytest.mark.parametrize(
    "first, behind, rounds",
    [
        (COMPUTED, f"{BARRIER} {SECOND} {USE}", 1),
        (COMPUTED + "mul.f32 %r11, %r11, %r11;", f"{BARRIER} {SECOND} {USE}", 1),
        (COMPUTED, f"{MEETS} {SECOND} {USE}", 1),
        (COMPUTED + "st.shared.f32 [%r7], %r11;", f"{BARRIER} {SECOND} {USE}", 2),
        (COMPUTED + "mov.b32 %r13, %r11;", ARM, 2),
    ],
    ids=["barrier", "a chain", "arms meet", "used before", "used in one arm"],
)
def test_the_second_load_does_not_wait_for_the_first(first, behind, rounds):
    body = f"""
ld.param.u64 %rd1, [out]; ld.param.u64 %rd5, [data]; mov.u32 %r1, %tid.x; mov.u32 %r20, %r1;
mov.u32 %r7, dyn; mov.b32 %r14, 0; setp.lt.u32 %p1, %r1, 7;
mul.wide.u32 %rd2, %r1, 8; add.u64 %rd3, %rd1, %rd2; mov.u64 %rd40, %clock64;
{first} {behind}
add.f32 %r15, %r14, %r14; st.global.f32 [%rd5+128], %r15; st.global.u32 [%rd5+132], %r20;
mov.u64 %rd41, %clock64; sub.u64 %rd42, %rd41, %rd40; st.global.u64 [%rd3], %rd42;
"""
    out, data = torch.zeros(32, dtype=torch.int64), torch.ones(32768)
    run(kernel(body, [".u64 data", ".u64 out"]), data, out, smem=1024, gpu=timed())
    one = 870  # clk: about a latency of DRAM
    assert one * rounds < out[0].item() < one * (rounds + 0.5)


RECIPROCAL = "rcp.approx.ftz.f32 %r11, %r10;"
SQUARE = "mul.f32 %r12, %r11, %r11;"
STORED = "st.shared.f32 [%r7], %r11;"
GOES_ON = "add.f32 %r10, %r10, %r11; setp.lt.f32 %p2, %r10, 0f3F800000; @%p2 bra L;"


PRODUCT = "mul.f32 %r11, %r10, %r10;"
PARTED = "shfl.sync.bfly.b32 %r20, %r20, 1, 31, -1;"  # no arm of it becomes guards
BRANCH = f"@%p1 bra ON; {PARTED} ON:"
IN_TWO_ARMS = f"""@%p1 bra ELSE; {PARTED} add.f32 %r11, %r11, %r11; bra END;
ELSE: {PARTED} sub.f32 %r11, %r11, %r10; END:"""
IN_AN_ARM_AND_BEHIND = f"@%p1 bra END; {PARTED} st.shared.f32 [%r7], %r11; END:"


@pytest.mark.parametrize(
    "body, names",
    [
        (PRODUCT + IN_TWO_ARMS, []),
        (PRODUCT + IN_AN_ARM_AND_BEHIND, []),
        (PRODUCT + BRANCH + BARRIER + IN_TWO_ARMS, []),
        (PRODUCT + BRANCH + BARRIER + IN_AN_ARM_AND_BEHIND, []),
        (PRODUCT + BRANCH + BARRIER, ["mul"]),
        (PRODUCT + BARRIER + IN_TWO_ARMS, ["mul"]),
        (RECIPROCAL + BARRIER, ["rcp"]),
        (RECIPROCAL, []),
        (RECIPROCAL + STORED + BARRIER, []),
        (RECIPROCAL + SQUARE + BARRIER + "add.f32 %r11, %r11, %r12;", ["rcp", "mul"]),
        (RECIPROCAL + SQUARE + STORED + BARRIER + "add.f32 %r11, %r11, %r12;", ["mul"]),
        (f"mov.b32 %r11, 0; @%p1 {RECIPROCAL} {BARRIER}", []),
        (f"L: {RECIPROCAL} {BARRIER} {GOES_ON}", []),
    ],
    ids=[
        "two arms",
        "an arm and behind",
        "a branch, two arms",
        "a branch, an arm and behind",
        "a branch",
        "a barrier, two arms",
        "behind",
        "no barrier",
        "stored before",
        "a chain",
        "half a chain",
        "guarded",
        "a loop",
    ],
)
def test_what_is_computed_later(body, names):
    head = """ld.param.u64 %rd5, [data]; mov.u32 %r1, %tid.x; mov.u32 %r7, dyn; mov.u32 %r20, %r1;
setp.lt.u32 %p1, %r1, 7; ld.global.f32 %r10, [%rd5];"""
    program = parse(kernel(head + body + "st.global.f32 [%rd5], %r11;", [".u64 data"]))
    (found,) = program.kernels.values()
    code = translate(program, found, TimedWriter)
    assert code.info is not None
    later = code_motion.sunk(code.structure, code.info)
    ops = [op for block in code.structure for op in block.ops if id(op) in later]
    assert [op.ins.mods[0] for op in ops if op.ins.mods[0] in ("rcp", "mul")] == names
