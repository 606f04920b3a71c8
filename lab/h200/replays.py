"""What a Hopper GPU's L2 still holds of what the call before read: replays of a graph that read
the same bytes, each once a call and in the same order.

`ctas` CTAs of 256 threads an SM share `nbytes` by turns of 16 KB. share: of the L2. Each warp loads
512 contiguous bytes an instruction, four instructions under way. again: each call reads the same
memory. cold: calls take turns in memory of several times the L2. us: a call, in a CUDA graph.
"""

from __future__ import annotations

import struct
from itertools import product

from hopper.timing import graph_us
from lab.h200 import rig

TURN = 256 * 64  # bytes of a CTA: four loads of 16 bytes a thread
L2 = 50 << 20  # bytes of an H200
SHARES = (0.05, 0.1, 0.2, 0.3, 0.35, 0.41, 0.5, 0.6, 0.71, 0.8, 0.9, 0.96, 1.0, 1.17, 1.4, 2.0)
POOL = 8 * L2


def kernel(ctas: int, turns: int, load: str) -> str:
    """PTX. Parameters: out (never written), data (`turns` * TURN bytes)."""
    loads = "\n    ".join(
        f"{load}.v4.u32 {{%r{10 + 4 * n}, %r{11 + 4 * n}, %r{12 + 4 * n}, %r{13 + 4 * n}}},"
        f" [%rd3+{4096 * n}];"
        for n in range(4)
    )
    sums = " ".join(f"xor.b32 %r5, %r5, %r{10 + n};" for n in range(16))
    body = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r5, 0;
    mul.wide.u32 %rd4, %r1, 16; add.u64 %rd2, %rd2, %rd4;
    TURN: setp.ge.u32 %p1, %r2, {turns}; @%p1 bra LAST;
    mul.wide.u32 %rd3, %r2, {TURN}; add.u64 %rd3, %rd3, %rd2;
    {loads}
    {sums}
    add.u32 %r2, %r2, {ctas}; bra TURN;
    LAST: setp.eq.u32 %p2, %r5, 0x12345678; @%p2 st.global.u32 [%rd1], %r5;"""
    return rig.ptx(body, 256)


def results() -> rig.Results:
    pool, out = rig.room(POOL), rig.zeros(1)
    for load, each in product(("ld.global", "ld.global.cs"), (1, 4)):
        ctas = each * rig.sms()
        for share in SHARES:
            turns = int(share * L2) // TURN
            nbytes, shape = turns * TURN, rig.row(ctas, 256)
            image = rig.image_of(kernel(ctas, turns, load), shape)
            first = range(pool.data_ptr(), pool.data_ptr() + POOL - nbytes + 1, nbytes)
            params = [struct.pack("<QQ", out.data_ptr(), at) for at in first]
            us = {}
            for name, turn in (("again_us", 1), ("cold_us", len(params))):
                us[name] = graph_us(lambda i: image.enqueue(shape, params[i % turn]))  # noqa: B023
            yield {"load": load, "ctas": each, "share": share, "nbytes": nbytes} | us
