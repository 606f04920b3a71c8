"""What instructions cost an SM of a Hopper GPU the first time it executes them.

Straight-line code of so many instructions, executed twice: first and second are cycles an
instruction of each pass. One warp, or four of a CTA; one CTA or one on each SM; after other data
have gone through the L2 (cold) or right after another launch.
"""

from __future__ import annotations

from lab.h200 import rig

SIZES = (64, 256, 1024, 4096)


def kernel(instructions: int) -> str:
    """PTX. Parameters: out (two u64 a CTA), data (8 bytes)."""
    body = "\n".join(f"fma.rn.f32 %f{i % 8}, %f{i % 8}, %f60, %f61;" for i in range(instructions))
    total = "".join(f"add.f32 %f62, %f62, %f{i};" for i in range(8))
    return rig.ptx(f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r1, 0;
    mul.wide.u32 %rd3, %r2, 16; add.u64 %rd1, %rd1, %rd3;
    ld.global.f32 %f60, [%rd2]; ld.global.f32 %f61, [%rd2+4];
    {"".join(f"add.f32 %f{i}, %f60, %f61;" for i in range(8))} mov.f32 %f62, %f60;
    mov.b32 %r3, 0;
    PASS: bar.sync 0; mov.u64 %rd5, %clock64;
    {body}
    {total}
    setp.eq.f32 %p3, %f62, 0f12345678; @%p3 st.global.f32 [%rd2], %f62;
    mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5;
    @%p1 st.global.u64 [%rd1], %rd6; add.u64 %rd1, %rd1, 8;
    add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 2; @%p2 bra PASS;""")


def results() -> rig.Results:
    for cold in (False, True):
        for ctas in (1, rig.sms()):
            for warps in (1, 4):
                for n in SIZES:
                    out = rig.zeros(ctas, 2)
                    shape = rig.row(ctas, 32 * warps, 1, rig.SMEM)
                    rig.launch(kernel(n), shape, out, rig.room(64), cold)
                    first, second = (out.double().mean(0) / n).tolist()
                    asked = {"instructions": n, "warps": warps, "ctas": ctas, "cold": cold}
                    yield asked | {"first": first, "second": second}
