"""Initial values of variables: numbers, and addresses of variables and functions (PTX ISA 5.4.4)."""

from __future__ import annotations

import pytest
import torch

from b200.errors import Unsupported
from b200.program.module import Pointer
from b200.program.tokens import declaration
from tests.b200.ptx_support import kernel, run

MODULE = """
.global .align 4 .u32 words[4] = {10, 20, 30, 40};
.global .align 8 .u64 first = words;
.global .align 8 .u64 rows[3] = {generic(words)+4, 0, generic(words) + 12};
.global .align 8 .u64 table[3] = {0, 0, _ZN1B1fEv};
"""


@pytest.mark.parametrize(
    "where, offset, value", [("first", 0, 10), ("rows", 0, 20), ("rows", 16, 40)]
)
def test_a_pointer_leads_to_its_variable(where, offset, value):
    body = f"""ld.param.u64 %rd1, [out]; ld.global.u64 %rd2, [{where}+{offset}];
    ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd1], %r1;"""
    out = torch.zeros(1, dtype=torch.int32)
    run(kernel(body, [".u64 out"], smem=MODULE), out)
    assert out.item() == value


def test_a_function_is_no_null_pointer():
    body = """ld.param.u64 %rd1, [out]; ld.global.u64 %rd2, [table+16]; ld.global.u64 %rd3, [rows+8];
    st.global.u64 [%rd1], %rd2; st.global.u64 [%rd1+8], %rd3;"""
    out = torch.ones(2, dtype=torch.int64)
    run(kernel(body, [".u64 out"], smem=MODULE), out)
    assert out[0] != 0 and out[1] == 0


def test_bytes_of_an_address():
    """As PTX ISA 5.4.4 writes an address byte by byte."""
    found = declaration(".global .u8 addr[3] = {0xff(foo), 0xff00(foo), 0xff0000(generic(foo))}")
    assert found is not None
    assert found.pointers[1] == Pointer(1, 1, "foo", mask=0xFF00)
    assert [p.value(0x123456) for p in found.pointers] == [b"\x56", b"\x34", b"\x12"]


def test_other_expressions_are_refused():
    with pytest.raises(Unsupported, match=r"the initial value foo\*2 of a variable"):
        declaration(".global .u64 p = foo*2")
