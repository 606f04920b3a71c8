"""A number that several warps load, change and store: an atomic is what is missing, and nothing
else. The PTX says what is planted; its twins differ by the mistake alone.
"""

from __future__ import annotations

import numpy as np
import pytest

import b200
from tests.b200.ptx_support import HEADER

KERNEL = (
    HEADER
    + """
.visible .entry k(.param .u64 p) {{
.reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<2>;
ld.param.u64 %rd1, [p];
{body}
ret;
}}
"""
)
UPDATE = "ld.global.u32 %r1, [%rd1];\nadd.u32 %r2, %r1, 1;\nst.global.u32 [%rd1], %r2;"
BODIES = {
    "of two CTAs": (UPDATE, (2, 32), True),
    "of two warps": (UPDATE, (1, 64), True),
    "by an atomic": ("red.global.add.u32 [%rd1], 1;", (2, 32), None),
    "of another number": (
        "ld.global.u32 %r1, [%rd1];\nmov.u32 %r1, 7;\nst.global.u32 [%rd1], %r1;",
        (2, 32),
        False,
    ),
    "unchanged": ("ld.global.u32 %r1, [%rd1];\nst.global.u32 [%rd1], %r1;", (2, 32), False),
    "behind a label": (
        "ld.global.u32 %r1, [%rd1];\nadd.u32 %r2, %r1, 1;\nL:\nst.global.u32 [%rd1], %r2;",
        (2, 32),
        False,
    ),
    "at another place": (
        "ld.global.u32 %r1, [%rd1+4];\nadd.u32 %r2, %r1, 1;\nst.global.u32 [%rd1], %r2;",
        (2, 32),
        False,
    ),
}


@pytest.mark.parametrize("body, size, atomic", BODIES.values(), ids=BODIES)
def test_a_lost_update_is_told_to_be_atomic(body, size, atomic):
    numbers = np.zeros(32, np.int32)
    elected = "mov.u32 %r7, %laneid;\nsetp.ne.u32 %p1, %r7, 0;\n@%p1 ret;\n"
    text = KERNEL.format(body=elected + body)
    grid, block = size
    launch = b200.run_ptx(text, "k", grid, block, args=(numbers,))
    told = "\n".join(f"{f.diagnosis}\n{f.details}" for f in launch.findings or ())
    assert ("missing: an atomic (atomicAdd, red) for the load at" in told) == bool(atomic), told
    assert bool(told) == (atomic is not None), told
