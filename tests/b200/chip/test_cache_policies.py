"""createpolicy (PTX ISA 9.7.9.18): opaque numbers, the ranges of its operands."""

from __future__ import annotations

import numpy as np
import pytest

from b200.chip.gpu import Gpu
from b200.errors import EmulatorError

PTX = """
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 at) {{
  .reg .b64 %policy, %at; .reg .b32 %value; .reg .f32 %fraction;
  ld.param.u64 %at, [at];
  mov.f32 %fraction, 0f{fraction};
  {create};
  ld.global.L2::cache_hint.b32 %value, [%at + 8], %policy;
  st.global.L2::cache_hint.b32 [%at + 12], %value, %policy;
  st.global.b64 [%at], %policy;
  ret;
}}
"""


def policy(create: str, fraction: float = 1.0) -> int:
    """The number a createpolicy makes; what is loaded and stored with it must arrive."""
    gpu, data = Gpu(), np.zeros(4, np.uint32)
    data[2] = 77
    gpu.memory.register(data.ctypes.data, data.nbytes, "data")
    gpu.tensors.refresh = lambda memory: None  # no tensors here
    text = PTX.format(create=create, fraction=np.float32(fraction).tobytes()[::-1].hex())
    gpu.launch(text, "k", (1, 1, 1), (1, 1, 1), args=[data.ctypes.data])
    assert data[3] == 77
    return int(data[:2].view(np.uint64)[0])


@pytest.mark.parametrize(
    "priority, number",
    [
        ("evict_normal", 0x1000000000000000),
        ("evict_first", 0x12F0000000000000),
        ("evict_last", 0x14F0000000000000),
    ],
)
def test_whole_policies_are_the_constants_that_programs_write(priority, number):
    assert policy(f"createpolicy.fractional.L2::{priority}.b64 %policy") == number
    assert policy(f"createpolicy.fractional.L2::{priority}.b64 %policy, 1.0") == number


@pytest.mark.parametrize(
    "create",
    [
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %policy, 0.5",
        "createpolicy.fractional.L2::evict_last.b64 %policy, %fraction",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %policy, [%at], 8, 16",
        "createpolicy.cvt.L2.b64 %policy, 0x1000000000000000",
    ],
)
def test_the_other_forms(create):
    policy(create, 0.25)


@pytest.mark.parametrize(
    "create, said",
    [
        ("createpolicy.fractional.L2::evict_last.b64 %policy, %fraction", r"must be in \(0, 1\]"),
        ("createpolicy.range.L2::evict_last.b64 %policy, [%at], 32, 16", "exceeds the total 16"),
        (
            "createpolicy.fractional.L2::evict_last.L2::evict_last.b64 %policy",
            ".L2::evict_last does not go with",
        ),
        ("createpolicy.fractional.L2::evict_never.b64 %policy", "no modifier .L2::evict_never"),
    ],
)
def test_what_the_isa_forbids(create, said):
    with pytest.raises(EmulatorError, match=said):
        policy(create, 0.0)
