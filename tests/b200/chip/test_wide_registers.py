"""128-bit registers that differ between lanes: moves, loads, stores, atomics (PTX ISA 9.7.9.8,
9.7.9.11, 9.7.13.5). Expected values are of Python's integers.
"""

from __future__ import annotations

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.ptx_support import kernel, own_element, run

MASK = (1 << 64) - 1
OWN = """mul.wide.u32 %rd10, %r1, 3; add.u64 %rd11, %rd10, 7;  // high and low half, of the lane
mov.b128 %rq1, {%rd11, %rd10};"""


def launched(body: str, tensor: torch.Tensor, checked: bool) -> None:
    text = kernel(own_element(16) + body, [".u64 out"], ".shared .align 16 .b8 own[1024];")
    gpu = Gpu()
    if checked:
        gpu.machine = b200.machine(gpu.memory)
    launch = run(text, tensor, gpu=gpu)
    assert not checked or launch.findings == []


def pairs(tensor: torch.Tensor) -> list[tuple[int, int]]:
    return [(int(low) & MASK, int(high) & MASK) for low, high in tensor.tolist()]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_a_store_and_a_load_of_values_of_the_lanes(space, checked):
    out = torch.zeros(32, 2, dtype=torch.int64)
    at = "%rd3" if space == "global" else "%rd20"
    body = f"""{OWN} mov.u64 %rd20, own; mul.wide.u32 %rd21, %r1, 16; add.u64 %rd20, %rd20, %rd21;
    setp.lt.u32 %p1, %r1, 8;
    st.{space}.b128 [{at}], %rq1; ld.{space}.b128 %rq2, [{at}];
    mov.b128 {{%rd12, %rd13}}, %rq2; add.u64 %rd12, %rd12, 1;
    mov.b128 %rq3, %rq1; @%p1 mov.b128 %rq3, {{%rd12, %rd13}};
    st.global.b128 [%rd3], %rq3;"""
    launched(body, out, checked)
    assert pairs(out) == [(3 * i + 7 + (i < 8), 3 * i) for i in range(32)]


def test_a_store_of_one_value_for_all_lanes():
    out = torch.zeros(32, 2, dtype=torch.int64)
    launched("mov.b128 %rq1, {5, 9}; st.global.b128 [%rd3], %rq1;", out, False)
    assert pairs(out) == [(5, 9)] * 32


@pytest.mark.parametrize("checked", [False, True])
def test_an_exchange_gives_the_old_value(checked):
    out = torch.arange(64, dtype=torch.int64).reshape(32, 2)
    old = pairs(out)
    body = f"{OWN} atom.global.exch.b128 %rq2, [%rd3], %rq1; mov.b128 {{%rd12, %rd13}}, %rq2;"
    body += "add.u64 %rd12, %rd12, %rd11; mov.b128 %rq3, {%rd12, %rd13};"
    launched(body + "st.global.b128 [%rd3], %rq3;", out, checked)
    assert pairs(out) == [(low + 3 * i + 7, high) for i, (low, high) in enumerate(old)]


@pytest.mark.parametrize("checked", [False, True])
def test_a_compare_and_swap_compares_all_bits(checked):
    """Lanes 0 to 15 find what they compare with; the others find another high half."""
    out = torch.tensor([[i, 100 if i < 16 else 101] for i in range(32)])
    body = f"""{OWN} cvt.u64.u32 %rd12, %r1; mov.b128 %rq2, {{%rd12, 100}};
    atom.global.cas.b128 %rq3, [%rd3], %rq2, %rq1;"""
    launched(body, out, checked)
    assert pairs(out) == [(3 * i + 7, 3 * i) if i < 16 else (i, 101) for i in range(32)]
