"""A wrong output is explained: each wrong kernel is imitated (diff_support.py), then named by the
diff.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.diagnosis.diff import explain
from harness.diagnosis.drawing import _most
from reference import generate_input, ref_kernel
from tests.harness.diff_support import (
    GEMM,
    GEMV,
    dual,
    explained,
    gemm,
    half,
    matrices,
    products,
    swap_nibbles,
    with_bytes,
)
from utils import clone_data, dequantize, permute_scales


def test_a_right_output_needs_no_explanation():
    data = gemm()
    assert explain(data, ref_kernel(data)) == (True, "the output is right: nothing to explain")


@pytest.mark.parametrize("index, name", [(0, "a"), (1, "b")])
def test_swapped_nibbles(index, name):
    data = gemm()
    output = with_bytes(data, index, swap_nibbles)
    assert f"nibbles of each byte of {name} are swapped" in explained(data, output)


def permuted_scales(data, index, change):
    """Scales of operand a (2) or b (3) of a gemm, changed as the atoms lie in memory."""
    other = list(clone_data(data))
    scales = other[index].view(torch.uint8)
    rows, columns, batches = scales.shape
    atoms = scales.reshape(rows // 128, 4, 32, columns // 4, 4, batches).permute(5, 0, 3, 2, 1, 4)
    memory = change(atoms.contiguous())  # [l, row atom, k atom, 32 rows, row group, k block]
    back = memory.permute(1, 4, 3, 2, 5, 0).reshape(rows, columns, batches)
    scales.copy_(back)
    return ref_kernel(tuple(other))


@pytest.mark.parametrize("index, name", [(2, "a"), (3, "b")])
def test_scales_transposed_in_the_atom(index, name):
    data = gemm()
    output = permuted_scales(data, index, lambda x: x.transpose(4, 5))
    order = "[row % 32][K block][row / 32]"
    text = f"scale factors of {name} are read as if an atom's bytes lay as {order}"
    assert text in explained(data, output)


def test_scales_of_another_row_group():
    data = gemm()
    output = permuted_scales(data, 3, lambda x: x.roll(-1, dims=4))
    assert "scale factors of b are taken from the row group 1 further" in explained(data, output)


def test_scales_an_atom_too_far():
    """After the last atom of a batch lies the first one of the next."""
    data = gemm()

    def shift(x):
        flat = x.reshape(-1, 512)
        return torch.cat([flat[1:], flat[-1:]]).reshape(x.shape)

    output = permuted_scales(data, 2, shift)
    right = ref_kernel(data)
    output[:, :, 1] = right[:, :, 1]
    text = explain(data, output)[1]
    assert "scale factors of a are read one atom (512 bytes) further on" in text


@pytest.mark.parametrize(
    "low, high, words",
    [(448, 512, "the last 64 of K are dropped"), (0, 256, "the K tile 0 of 2 (of 256) is dropped")],
)
def test_a_part_of_k_dropped(low, high, words):
    data = gemm()

    def clear(raw):
        raw[:, low // 2 : high // 2] = 0
        return raw

    assert words in explained(data, with_bytes(data, 0, clear))


def test_a_stage_counted_twice():
    data = gemm()
    weight = torch.ones(512, dtype=torch.float64)
    weight[:256] = 2
    output = torch.stack([(a * weight) @ b.T for a, b in matrices(data)], 2).half()
    assert "the K tile 0 of 2 (of 256) is counted twice" in explained(data, output)


def test_rows_from_another_lane_quarter():
    data = gemm()
    right = ref_kernel(data)
    quarters = right.reshape(128, 2, 4, 32, 2)
    output = right.clone()
    output.copy_(quarters.roll(-1, dims=2).reshape(right.shape))
    assert "columns are read from the lane quarter 1 further" in explained(data, output)
    output.copy_(quarters[:, :, :1].expand(-1, -1, 4, -1, -1).reshape(right.shape))
    assert "all warps read lane quarter 0 of the columns" in explained(data, output)


def test_weights_of_gemv_are_rows():
    data = generate_input("nvfp4_gemv", **GEMV)
    right = ref_kernel(data)
    output = right.clone()
    output.copy_(
        right.reshape(2, 4, 32, 1, 1)[:, :1].expand(-1, 4, -1, -1, -1).reshape(right.shape)
    )
    assert "all warps read lane quarter 0 of the rows" in explained(data, output)


@pytest.mark.parametrize(
    "combine, words",
    [
        (lambda p, q: p, "only the first product, without silu"),
        (lambda p, q: q, "only the second product"),
        (lambda p, q: p * q, "no silu"),
        (lambda p, q: p * torch.nn.functional.silu(q), "silu is applied to the second product"),
    ],
)
def test_dual_combined_wrongly(combine, words):
    data = dual()
    scale = 1 / 64  # keeps the plain products finite in fp16
    data[3].copy_((data[3].float() * scale).to(data[3].dtype))
    data[6].copy_(permute_scales(data[3]))
    assert words in explained(data, half(combine(*products(data))))


def test_neighbouring_batch():
    data = gemm()
    right = ref_kernel(data)
    output = right.clone()
    output[:, :, 0] = right[:, :, 1]
    assert "the batch +1 is computed" in explained(data, output)


@pytest.mark.parametrize(
    "index, words",
    [
        ((1, 1), "the group +1 is computed"),
        ((0, 1), "b is taken from the group +1"),
        ((1, 0), "a is taken from the group +1"),
    ],
)
def test_neighbouring_group(index, words):
    """The first of two groups of one size; index: the group that a and b are taken from."""
    sizes = {"m": (64, 64), "n": (128, 128), "k": (256, 256), "g": 2}
    data = generate_input("nvfp4_group_gemm", **sizes, seed=5)
    abc, scales = data[:2]
    (a, _, _), (_, b, _) = (abc[i] for i in index)
    (sfa, _), (_, sfb) = (scales[i] for i in index)
    x, w = dequantize(a[:, :, 0], sfa[:, :, 0]), dequantize(b[:, :, 0], sfb[:, :, 0])
    output = ref_kernel(data)
    output[0] = half(x.double() @ w.double().T)
    text = explained(data, output)
    assert words in text and "group 1 (c" not in explain(data, output)[1]


def test_accumulator_not_reset():
    data = gemm()
    output = torch.stack([a @ b.T for a, b in matrices(data)], 2)
    output[:, 128:] += output[:, :128].clone()
    text = explained(data, output.half())
    assert "the accumulator is not reset: it still holds the tile 128 columns before" in text


def test_transposed_output():
    data = generate_input("nvfp4_gemm", **{**GEMM, "n": 128, "l": 1})
    right = ref_kernel(data)
    output = right.clone()
    output[:, :, 0] = right[:, :, 0].T
    assert "the output is transposed" in explained(data, output)


def test_missing_columns_and_the_map(tmp_path):
    data = gemm()
    output = ref_kernel(data)
    output[16:64, :, 0] = 0
    picture = tmp_path / "wrong.png"
    right, report = explain(data, output, picture, "a gemm")
    assert not right and f"picture: {picture}" in report
    assert "never written" in report
    assert "rows with errors: 16-63" in report
    assert "columns with errors: all 256" in report
    assert "by batch: 0: " in report
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_of_a_difference_says_shape_and_range(tmp_path):
    data = gemm()
    output = ref_kernel(data)
    output[3, 5, 0] += 100
    output[7, 9, 0] = float("nan")
    explain(data, output, tmp_path / "wrong.html", "a gemm")
    page = (tmp_path / "wrong.html").read_text()
    assert "<h1>a gemm</h1>" in page and "group 0, batch 0: c is 128 x 256, K = 512" in page
    assert "2 of 32,768 elements differ, errors 100 to 100" in page
    assert "rows with errors: 3, 7" in page and "of the MMA" not in page


def test_a_lone_error_is_in_the_picture():
    cells = np.zeros((1500, 3), np.float32)
    cells[1499, 2] = 1
    shrunk = _most(cells, 2)
    assert shrunk.shape == (750, 2) and shrunk.sum() == 1 and shrunk[749, 1] == 1


def test_what_no_hypothesis_explains():
    data = gemm()
    output = ref_kernel(data) * 1.5 + 7
    _, report = explain(data, output)
    assert "known mistakes gives this output" in report


@pytest.mark.parametrize("index, name", [(2, "a"), (3, "b")])
def test_scales_not_advanced(index, name):
    """Every instruction takes the four scale factors of its K tile's first."""
    data = gemm()
    k = torch.arange(GEMM["k"] // 16)
    first = k // 16 * 16 + k % 4
    output = with_bytes(data, index, lambda raw: raw[:, first])
    text = explained(data, output)
    assert f"scale factors of {name} are not advanced" in text
    assert "the first of its K tile (of 256)" in text


@pytest.mark.parametrize(
    "keep, words",
    [
        (lambda k: k // 64 % 4 != 3, "the K-step 3 of 4 (of 64) of every K tile is dropped"),
        (lambda k: k >= 256, "is reset for each K tile: only the last (of 256) counts"),
        (lambda k: k >= 448, "nothing is accumulated: only the last K-step (of 64) counts"),
    ],
)
def test_steps_of_k(keep, words):
    data = gemm()
    some = keep(torch.arange(GEMM["k"]))
    parts = [x[:, some] @ y[:, some].T for x, y in matrices(data)]
    assert words in explained(data, torch.stack(parts, 2).half())


# --- what a hypothesis may claim --------------------------------------------------------------------


def test_infinity_explains_nothing():
    """The plain product of the two overflows fp16 everywhere, and c is 5 everywhere."""
    data = dual()
    for i in (3, 4, 5):
        data[i].fill_(448.0)
        data[i + 3].copy_(permute_scales(data[i]))
    output = torch.full_like(ref_kernel(data), 5)
    report = explain(data, output)[1]
    assert "explained" not in report and "known mistakes gives this output" in report


def test_inputs_that_cannot_tell_are_said_to_be_such():
    """With all scales equal, any order of them gives the same."""
    data = gemm()
    for i in (2, 3):
        data[i].fill_(1.0)
        data[i + 2].fill_(1.0)
    data[2][:, ::2] = 2.0
    data[4].copy_(permute_scales(data[2]))
    other = list(clone_data(data))
    other[2].fill_(1.0)
    report = explain(data, ref_kernel(tuple(other)))[1]
    # Every row has the same scales: not to apply them, or ...
    assert "scale factors of a are not applied" in report
    assert "these inputs cannot tell" in report and "`--inputs quantized`" in report


def test_what_is_the_same_on_a_shape_is_one_explanation():
    """Of two K tiles the second alone: the first is dropped, or the sum is reset."""
    data = gemm()
    parts = [x[:, 256:] @ y[:, 256:].T for x, y in matrices(data)]
    report = explain(data, torch.stack(parts, 2).half())[1]
    assert "which here is the same as" in report and "cannot tell" not in report
