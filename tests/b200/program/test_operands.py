"""Results of instructions as the registers of translated code hold them."""

import re
from contextlib import nullcontext

import numpy as np
import pytest

import b200.chip.instruction_set  # noqa: F401
from b200.errors import Unsupported
from b200.program import calls
from b200.program.operands import to_uniform, to_varying
from b200.program.parse import parse
from b200.program.translate import translate
from tests.planted_bugs.case import HEADER


@pytest.mark.parametrize("lowest", range(32))
def test_a_value_for_all_lanes_is_that_of_the_lowest_active_one(lowest):
    """The others have not executed the instruction, or have the same value."""
    values = np.arange(100, 132, dtype=np.uint32)
    for mask in (1 << lowest, (1 << 32) - (1 << lowest)):
        assert to_uniform(values, mask) == 100 + lowest
    assert to_uniform(7, 1 << lowest) == 7


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_a_value_a_lane_has_the_type_of_its_register(dtype):
    for value in (5, np.full(32, 5, np.uint8), np.full(32, 5, dtype)):
        found = to_varying(value, dtype)
        assert found.dtype == dtype and found.tolist() == [5] * 32


def test_chains_of_calls_without_a_number_left_have_none(monkeypatch):
    monkeypatch.setattr(calls, "_chains", [()])
    monkeypatch.setattr(calls, "_numbers", {})
    monkeypatch.setattr(calls, "LAST", 2)
    chains = [(calls.CallSite("k.py", line, "f"),) for line in range(4)]
    numbers = [calls.number(chain) for chain in chains]
    assert numbers == [1, 2, 0, 0]
    assert [calls.number(chain) for chain in chains] == numbers


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mov.u32 %r1, %tid.x;", ""),
        ("cvt.u64.u32 %rd1, %tid.x;", ""),
        ("add.u32 %r1, %tid.x, 1;", "add.u32: %tid.x is read by mov and cvt only"),
        ("st.global.u32 [%rd1], %ctaid.y;", "%ctaid.y is read by mov and cvt only"),
    ],
)
def test_a_special_register_is_an_operand_of_few_instructions(line, why):
    """ptxas 13.0: "Special register argument not allowed for instruction 'add'"."""
    text = f"{HEADER}.visible .entry k() {{\n.reg .b32 %r<4>; .reg .b64 %rd<4>;\n{line}\nret;\n}}"
    program = parse(text)
    with pytest.raises(Unsupported, match=re.escape(why)) if why else nullcontext():
        translate(program, program.kernels["k"])
