"""Inputs, ground truth and quantisation against exact rationals from the formats' tables."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import task
from reference import check_implementation, dequantize, generate_input, ref_kernel
from task import PROBLEMS
from tests.oracles.formats import e2m1, e4m3
from utils import ROWS_AT_ONCE, permute_scales

SMALL = {
    "nvfp4_gemv": {"m": 5, "k": 128, "l": 2, "seed": 3},
    "nvfp4_gemm": {"m": 3, "n": 5, "k": 64, "l": 2, "seed": 3},
    "nvfp4_dual_gemm": {"m": 3, "n": 4, "k": 128, "l": 2, "seed": 3},
    "nvfp4_group_gemm": {"m": (3, 1), "n": (2, 5), "k": (64, 128), "g": 2, "seed": 3},
}
KINDS = task.INPUT_KINDS


def element(
    codes: torch.Tensor, scales: torch.Tensor, row: int, k: int, batch: int = 0
) -> Fraction:
    """Element (row, k, batch) of an NVFP4 matrix (rows, K/2, L) with scales (rows, K/16, L)."""
    byte = int(codes.view(torch.uint8)[row, k // 2, batch])
    scale = int(scales.view(torch.uint8)[row, k // 16, batch])
    return e2m1(byte >> 4 if k % 2 else byte & 15) * e4m3(scale)


def dot(a, sfa, i, b, sfb, j, batch) -> Fraction:
    size = 2 * a.shape[1]
    return sum(element(a, sfa, i, k, batch) * element(b, sfb, j, k, batch) for k in range(size))


def fp16(x: Fraction | float) -> float:
    return torch.tensor(float(x), dtype=torch.float64).half().item()


# --- formats and layouts -------------------------------------------------------------------------


def test_every_byte_under_every_scale():
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256).repeat(126, 1)
    scales = torch.arange(126, dtype=torch.uint8).view(126, 1).repeat(1, 32)
    values = dequantize(codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e4m3fn))
    for scale in range(126):
        for byte in range(256):
            low, high = values[scale, 2 * byte : 2 * byte + 2].tolist()
            assert Fraction(low) == e2m1(byte & 15) * e4m3(scale)
            assert Fraction(high) == e2m1(byte >> 4) * e4m3(scale)


def atom_offset(row: int, scale: int, scales: int) -> int:
    """cuBLAS documentation, 1D block scaling factors layout: offset in bytes of a scale."""
    atom = row // 128 * math.ceil(scales / 4) + scale // 4
    return 512 * atom + row % 32 * 16 + row % 128 // 32 * 4 + scale % 4


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 3))
def test_permuted_scales_lie_where_cublas_says(rows, blocks, batches):
    generator = torch.Generator().manual_seed(rows)
    stored = torch.randint(1, 120, (batches, rows, blocks), generator=generator, dtype=torch.uint8)
    permuted = permute_scales(stored.view(torch.float8_e4m3fn).permute(1, 2, 0))
    row_atoms, block_atoms = -(-rows // 128), -(-blocks // 4)
    assert permuted.shape == (32, 4, row_atoms, 4, block_atoms, batches)
    memory = permuted.permute(5, 2, 4, 0, 1, 3)
    assert memory.is_contiguous()
    batch_bytes = 512 * row_atoms * block_atoms
    flat = memory.view(torch.uint8).reshape(-1).tolist()
    for batch in range(batches):
        for row in range(rows):
            for block in range(blocks):
                at = batch * batch_bytes + atom_offset(row, block, blocks)
                assert flat[at] == stored[batch, row, block]
    assert sum(value != 0 for value in flat) == stored.numel()


def test_the_offset_of_the_documentation():
    scales = torch.zeros(64, 16, 1, dtype=torch.uint8)
    scales[33, 5] = 0x38
    permuted = permute_scales(scales.view(torch.float8_e4m3fn))
    memory = permuted.permute(5, 2, 4, 0, 1, 3).view(torch.uint8).reshape(-1)
    assert memory.nonzero().tolist() == [[533]]


# --- inputs --------------------------------------------------------------------------------------


def matrices(problem: str, data):
    """Every (codes, scales, permuted) of the data."""
    if problem == "nvfp4_group_gemm":
        abc, scales, permuted, _ = data
        return [(ab[i], sf[i], p[i]) for ab, sf, p in zip(abc, scales, permuted) for i in (0, 1)]
    count = len(data) // 3
    return list(zip(data[:count], data[count : 2 * count], data[2 * count : 3 * count]))


@pytest.mark.parametrize("inputs", KINDS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_layout_of_the_inputs(problem, inputs):
    args = SMALL[problem]
    data = generate_input(problem, inputs=inputs, **args)
    outputs = [c for _, _, c in data[0]] if problem == "nvfp4_group_gemm" else [data[-1]]
    assert len(data) == {"nvfp4_group_gemm": 4, "nvfp4_dual_gemm": 10}.get(problem, 7)
    for c in outputs:
        assert c.dtype == torch.float16
        assert c.permute(2, 0, 1).is_contiguous()
    for codes, scales, permuted in matrices(problem, data):
        rows, pairs, batches = codes.shape
        assert (codes.dtype, scales.dtype) == (torch.float4_e2m1fn_x2, torch.float8_e4m3fn)
        assert scales.shape == (rows, pairs // 8, batches)
        assert codes.view(torch.uint8).permute(2, 0, 1).is_contiguous()
        assert scales.permute(2, 0, 1).is_contiguous()
        memory = permuted.permute(5, 2, 4, 0, 1, 3)
        assert memory.is_contiguous()
        flat = memory.view(torch.uint8).reshape(batches, -1)
        for row in range(rows):
            for block in range(pairs // 8):
                at = atom_offset(row, block, pairs // 8)
                assert torch.equal(flat[:, at], scales.view(torch.uint8)[row, block])


def test_shapes_of_each_problem():
    gemv = generate_input("nvfp4_gemv", **SMALL["nvfp4_gemv"])
    assert [tuple(t.shape) for t in gemv[:2]] == [(5, 64, 2), (128, 64, 2)]
    assert gemv[6].shape == (5, 1, 2)
    dual = generate_input("nvfp4_dual_gemm", **SMALL["nvfp4_dual_gemm"])
    assert [tuple(t.shape) for t in dual[:3]] == [(3, 64, 2), (4, 64, 2), (4, 64, 2)]
    abc, _, _, sizes = generate_input("nvfp4_group_gemm", **SMALL["nvfp4_group_gemm"])
    assert sizes == [(3, 2, 64, 1), (1, 5, 128, 1)]
    assert [tuple(c.shape) for _, _, c in abc] == [(3, 2, 1), (1, 5, 1)]


OFFICIAL_VALUES = {  # values of the codes, and of the scales, of the official generators
    "nvfp4_gemv": ({0, 0.5, 1, 1.5}, {0, 1, 2}),
    "nvfp4_gemm": ({s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)}, {0, 1, 2, 3}),
    "nvfp4_dual_gemm": ({s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5)}, None),
    "nvfp4_group_gemm": ({s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5)}, {1, 2}),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_official_values(problem):
    args = {key: value for key, value in PROBLEMS[problem].tests[0].items()}
    values, scale_values = OFFICIAL_VALUES[problem]
    for codes, scales, _ in matrices(problem, generate_input(problem, **args)):
        bytes_ = codes.view(torch.uint8)
        nibbles = set(torch.cat([bytes_ & 15, bytes_ >> 4]).flatten().tolist())
        assert {float(e2m1(code)) for code in nibbles} == values
        seen = set(scales.float().flatten().tolist())
        assert (
            seen == scale_values if scale_values else 0 <= min(seen) < 0.05 < 0.95 < max(seen) <= 1
        )


@pytest.mark.parametrize("inputs", KINDS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_seed_decides(problem, inputs):
    args = SMALL[problem]

    def drawn(**change):
        data = generate_input(problem, inputs=inputs, **{**args, **change})
        tensors = [t for triple in matrices(problem, data) for t in triple]
        return torch.cat([t.view(torch.uint8).flatten() for t in tensors])

    assert torch.equal(drawn(), drawn())
    assert not torch.equal(drawn(), drawn(seed=4))


def test_full_inputs_hold_every_code_and_scale():
    data = generate_input("nvfp4_gemm", inputs="full", m=256, n=256, k=4096, l=1, seed=1)
    a, b, sfa, sfb = data[:4]
    bytes_ = torch.cat([a.view(torch.uint8).flatten(), b.view(torch.uint8).flatten()])
    assert set((bytes_ & 15).tolist()) == set((bytes_ >> 4).tolist()) == set(range(16))
    for scales in (sfa, sfb):
        assert set(scales.view(torch.uint8).flatten().tolist()) == set(range(127))
        assert scales.float().max() == 448


@pytest.mark.parametrize("inputs", ["quantized", "full"])
@pytest.mark.parametrize("k", [64, 7168])
@pytest.mark.parametrize("problem", ["nvfp4_gemm", "nvfp4_dual_gemm"])
def test_made_up_inputs_give_finite_results_of_some_size(problem, k, inputs):
    c = ref_kernel(generate_input(problem, inputs=inputs, m=128, n=32, k=k, l=1, seed=k))
    assert torch.isfinite(c).all()
    assert 10 < c.abs().max() < 60000


def test_unknown_kind_of_inputs():
    with pytest.raises(ValueError, match="unknown kind of inputs 'odd': expected one of official"):
        generate_input("nvfp4_gemm", inputs="odd", **SMALL["nvfp4_gemm"])


# --- ground truth --------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", KINDS)
def test_gemv_and_gemm_are_exact(inputs):
    for problem in ("nvfp4_gemv", "nvfp4_gemm"):
        data = generate_input(problem, inputs=inputs, **SMALL[problem])
        a, b, sfa, sfb = data[:4]
        c = ref_kernel(data)
        assert c.shape == data[-1].shape and c.stride() == data[-1].stride()
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                for batch in range(c.shape[2]):
                    assert c[i, j, batch].item() == fp16(dot(a, sfa, i, b, sfb, j, batch))


def test_dual_is_silu_of_the_first_product_times_the_second():
    data = generate_input("nvfp4_dual_gemm", **SMALL["nvfp4_dual_gemm"])
    a, b1, b2, sfa, sfb1, sfb2 = data[:6]
    c = ref_kernel(data)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for batch in range(c.shape[2]):
                gate = float(dot(a, sfa, i, b1, sfb1, j, batch))
                up = float(dot(a, sfa, i, b2, sfb2, j, batch))
                assert c[i, j, batch].item() == fp16(gate / (1 + math.exp(-gate)) * up)


def test_each_group_is_its_own_gemm():
    data = generate_input("nvfp4_group_gemm", **SMALL["nvfp4_group_gemm"])
    for (a, b, _), (sfa, sfb), c in zip(data[0], data[1], ref_kernel(data)):
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                assert c[i, j, 0].item() == fp16(dot(a, sfa, i, b, sfb, j, 0))


def test_rows_beyond_one_block_of_the_reference():
    """Spot checks on both sides of the seams."""
    block = ROWS_AT_ONCE
    data = generate_input("nvfp4_gemm", m=2 * block + 2, n=block + 6, k=64, l=1, seed=9)
    a, b, sfa, sfb = data[:4]
    c = ref_kernel(data)
    for i in (0, block - 1, block, 2 * block - 1, 2 * block, 2 * block + 1):
        for j in (0, block - 1, block, block + 5):
            assert c[i, j, 0].item() == fp16(dot(a, sfa, i, b, sfb, j, 0))


# --- check_implementation ------------------------------------------------------------------------


@pytest.fixture
def gemm():
    data = generate_input("nvfp4_gemm", m=300, n=260, k=64, l=2, seed=1)
    return data, ref_kernel(data)


def test_right_output_passes_within_tolerance(gemm):
    data, right = gemm
    assert check_implementation(data, right.clone()) == (True, "")
    nearly = (right.float() * 1.0004).half()  # at most an ulp of fp16, 2^-10, away
    assert check_implementation(data, nearly) == (True, "")


def test_wrong_tile_is_located(gemm):
    data, output = gemm
    output[128:256, 128:260, 1] += 100
    right, message = check_implementation(data, output)
    assert not right
    assert f"{128 * 132:,} of {300 * 260 * 2:,} elements differ" in message
    assert "within rows 128..255, columns 128..259, batches 1..1" in message
    assert "2 of 9 tiles of 128 x 128 differ in batch 1:" in message
    assert message.split("batch 1:\n")[1].startswith("  ...\n  .##\n  ...\n")
    assert "c[128, 128, 1]: got" in message


@pytest.mark.parametrize(
    "value, words", [(math.nan, "1 of them is NaN"), (math.inf, "1 of them is infinite")]
)
def test_one_special_value_is_enough(gemm, value, words):
    data, output = gemm
    output[299, 259, 0] = value
    right, message = check_implementation(data, output)
    assert not right and words in message
    assert f"1 of {300 * 260 * 2:,} elements differ" in message
    assert "worst finite error" not in message
    output[7, 8, 1] += 1000
    assert "worst finite error 1000 at c[7, 8, 1]" in check_implementation(data, output)[1]


@pytest.mark.parametrize("factor, right", [(1.0009, True), (1.0012, False)])
def test_tolerance_is_a_thousandth_of_the_expected(factor, right):
    from utils import compare

    expected = torch.full((4, 4, 1), 2000.0)
    assert (compare(expected * factor, expected, 1e-3, 1e-3) == "") is right


def test_form_of_the_output(gemm):
    data, output = gemm
    checks = {
        "c must have shape (300, 260, 2); got (300, 260, 1)": output[:, :, :1],
        "c must have dtype torch.float16; got torch.int32": output.int(),
        "c must have dtype torch.float16; got torch.float8_e4m3fn": output.to(torch.float8_e4m3fn),
        "custom_kernel must return a tensor; got NoneType": None,
    }
    for message, wrong in checks.items():
        assert check_implementation(data, wrong) == (False, message)
    note = "right; the board's harness takes it, task.py's type is float16: c is float32"
    assert check_implementation(data, output.float()) == (True, note)
    right, message = check_implementation(data, output.float() * 1.01)
    assert not right and "elements differ" in message
    grouped = generate_input("nvfp4_group_gemm", **SMALL["nvfp4_group_gemm"])
    outputs = ref_kernel(grouped)
    assert check_implementation(grouped, [outputs[0], outputs[1].double()]) == (
        True,
        note.replace("float32", "float64"),
    )
    assert check_implementation(grouped, outputs) == (True, "")
    right, message = check_implementation(grouped, outputs[:1])
    assert not right and "must return a list of 2 tensors, one a group; got 1 items" in message
    outputs[1] += 1
    right, message = check_implementation(grouped, outputs)
    assert not right and message.startswith("group 1 of 2: 5 of 5 elements differ")
