"""Constant operands: expressions, WARP_SZ, and negative ones wherever they stand."""

from __future__ import annotations

import pytest
import torch

from b200.errors import Unsupported
from b200.program.tokens import constant
from tests.b200.ptx_support import kernel, own_element, run


@pytest.mark.parametrize(
    "text, value",
    [
        ("WARP_SZ", 32),
        ("WARP_SZ-1", 31),
        ("(1 << 5) | 010", 40),
        ("-7/2", -3),
        ("-7 % 4", -3),
        ("~0x0FU", -16),
        ("2*(3+4)", 14),
    ],
)
def test_expressions(text, value):
    """Division is that of C (PTX ISA 4.5.5)."""
    assert constant(text) == value


@pytest.mark.parametrize("text", ["2**9", "1 /", "1/0"])
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(Unsupported, match="the constant expression"):
        constant(text)


# What cuda_fp16.hpp writes: WARP_SZ, and declarations without a blank behind `.reg`.
BODY = """
{.reg.b32 w;
.reg.b16 h, r;
 mov.u32 w, WARP_SZ; mov.b16 h, 3; mov.b16 r, h; cvt.u32.u16 %r5, r; add.u32 %r5, %r5, w;}
shfl.sync.down.b32 %r6, %r5, 1, WARP_SZ-1, -1;
st.global.u32 [%rd3], %r6;"""


def test_declarations_without_a_blank_and_a_predefined_constant():
    out = torch.zeros(32, dtype=torch.int32)
    run(kernel(own_element(4) + BODY, [".u64 out"]), out)
    assert out.tolist() == [35] * 32
