"""Quantisation to NVFP4 against the rule in exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import (
    pack_gemm,
    quantize_nvfp4,
    ref_kernel,
)
from tests.oracles.formats import e2m1, e4m3

MAGNITUDES = [e2m1(code) for code in range(8)]
SCALES = [e4m3(code) for code in range(127)]


def nearest(x: Fraction, values: list[Fraction]) -> int:
    """Index of the value nearest to x >= 0: ties to the even index, saturating."""
    return min(range(len(values)), key=lambda i: (abs(values[i] - x), i % 2))


def expected_quantization(rows: list[list[float]], tensor_scale: float):
    """(scale codes, element codes) of a matrix by the rule, in exact arithmetic."""
    ts = Fraction(tensor_scale)
    scales, codes = [], []
    for row in rows:
        scales.append([])
        codes.append([])
        for start in range(0, len(row), 16):
            block = [Fraction(x) for x in row[start : start + 16]]
            wanted = float(max(map(abs, block)) / (6 * ts))
            scale = nearest(Fraction(torch.tensor(wanted).item()), SCALES)  # rounded to fp32 first
            scales[-1].append(scale)
            for x, value in zip(block, row[start:]):
                step = SCALES[scale] * ts
                magnitude = nearest(abs(x) / step, MAGNITUDES) if step else 0
                codes[-1].append(magnitude | (8 if math.copysign(1, value) < 0 and step else 0))
    return scales, codes


def unpack(q) -> list[list[int]]:
    bytes_ = q.codes.view(torch.uint8)
    return torch.stack([bytes_ & 15, bytes_ >> 4], dim=2).flatten(1).tolist()


finite = st.floats(-1e4, 1e4, width=32)
blocks = st.lists(finite, min_size=16, max_size=16) | st.lists(
    st.floats(-(2.0**-10), 2.0**-10, width=32), min_size=16, max_size=16
)


@settings(max_examples=60, deadline=None)
@given(st.lists(blocks, min_size=1, max_size=4), st.sampled_from([448.0, 6.0, 0.4375]))
def test_quantization_follows_the_rule_exactly(rows, top):
    q = quantize_nvfp4(torch.tensor(rows, dtype=torch.float64), top)
    amax = max(abs(x) for row in rows for x in row)
    if amax > 1e-30:
        assert math.isclose(q.tensor_scale, amax / (6 * top), rel_tol=2**-23)
    scales, codes = expected_quantization(rows, q.tensor_scale)
    assert q.scales.view(torch.uint8).tolist() == scales
    values = [[float(e2m1(c)) for c in row] for row in unpack(q)]
    assert values == [[float(e2m1(c)) for c in row] for row in codes]


def test_e2m1_rounds_ties_to_even():
    """With a block maximum of 6 and a tensor maximum of 6 * 448 every scale is 1."""
    ties = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5.0: 4}
    row = [*ties, 6, *(-x for x in ties), 0.0, *([2688.0] + [0.0] * 15)]
    q = quantize_nvfp4(torch.tensor([row]))
    assert q.tensor_scale == 1
    assert q.dequantize()[0, :16].tolist() == [*ties.values(), 6, *(-x for x in ties.values()), 0]


def test_zero_and_near_zero_blocks():
    x = torch.zeros(2, 48)
    assert quantize_nvfp4(x).dequantize().abs().max() == 0
    x[0, 0] = 2688.0  # scale 448, tensor scale 1
    x[0, 16] = 6 * 2**-11  # its scale is below half the least ue4m3, 2^-9: zero
    x[0, 32] = 6 * 2**-9  # the least scale
    q = quantize_nvfp4(x)
    assert q.scales.float().tolist() == [[448.0, 0.0, 2.0**-9], [0.0, 0.0, 0.0]]
    assert q.dequantize()[0, [0, 16, 32]].tolist() == [2688.0, 0.0, 6 * 2**-9]
    assert torch.isfinite(quantize_nvfp4(torch.full((1, 16), 1e-42)).dequantize()).all()


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.zeros(2, 24), r"K a multiple of 16, not \(2, 24\)"),
        (torch.zeros(16), r"not \(16,\)"),
        (torch.full((1, 16), math.inf), "finite values"),
    ],
)
def test_what_cannot_be_quantized(x, message):
    with pytest.raises(ValueError, match=message):
        quantize_nvfp4(x)


def test_quantized_weights_give_the_bf16_product():
    """c times the tensor scales against x @ w^T: NVFP4 is off by about a tenth an element."""
    generator = torch.Generator().manual_seed(7)
    x, w = (torch.randn(rows, 512, generator=generator).bfloat16() for rows in (64, 96))
    qx, qw = quantize_nvfp4(x.float(), top=4.0), quantize_nvfp4(w.float(), top=4.0)
    c = ref_kernel(pack_gemm(qx, qw))[:, :, 0].double() * (qx.tensor_scale * qw.tensor_scale)
    exact = x.double() @ w.double().T
    assert (c - exact).norm() / exact.norm() < 0.15
    rounded = qx.dequantize().double() @ qw.dequantize().double().T
    assert (
        c - rounded
    ).abs().max() <= 2**-11 * rounded.abs().max() * 1.001  # fp16's rounding is all that is added
