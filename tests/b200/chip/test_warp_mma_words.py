"""mma.sync against words that a B200 computed (tests/data/b200_mma_words.txt has their source), and
FP8 products that nobody has published against the steps of ptxas' code, on Fractions.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests import DATA
from tests.b200.chip.test_warp_mma import TORCH, multiply
from tests.oracles.exact_mma import f32_towards_zero, product_sum

WORDS = dict(np.load(DATA / "b200_mma_words.npz"))
VECTORS = 8  # of one instruction: row i of A, column i of B, element (i, i) of C
CASES = {
    "fp16_d_fp32": ("m16n8k16", "f32.f16.f16.f32"),
    "fp16_d_fp16": ("m16n8k16", "f16.f16.f16.f16"),
    "bf16_d_fp32": ("m16n8k16", "f32.bf16.bf16.f32"),
    "tf32_d_fp32": ("m16n8k8", "f32.tf32.tf32.f32"),
    "E4M3_d_fp32": ("m16n8k32", "f32.e4m3.e4m3.f32"),
    "E4M3_d_fp16": ("m16n8k32", "f16.e4m3.e4m3.f16"),
    "E5M2_d_fp32": ("m16n8k32", "f32.e5m2.e5m2.f32"),
    "E5M2_d_fp16": ("m16n8k32", "f16.e5m2.e5m2.f16"),
}


def test_each_measured_array_is_looked_at():
    assert {name for name in WORDS if "_d_" in name} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_words_are_those_of_a_b200(name):
    shape, types = CASES[name]
    wanted = WORDS[name]
    got = np.concatenate(
        [_diagonal(name, shape, types, i) for i in range(0, len(wanted), VECTORS)]
    )[: len(wanted)]
    assert (got.view(np.uint32) == wanted).all()


def _diagonal(name: str, shape: str, types: str, first: int) -> np.ndarray:
    """D of the vectors from `first` on, as float32."""
    fmt, d_type, a_type = name.split("_")[0], *types.split(".")[:2]
    a, b, c = (WORDS[f"{fmt}_{x}"][first : first + VECTORS].view(np.float32) for x in "abc")
    rows, columns = np.zeros((2, 16, int(shape[6:])), np.float32)
    accumulator = np.zeros((16, 8), np.float32)
    rows[: len(a), : a.shape[1]], columns[: len(b), : b.shape[1]] = a, b
    np.fill_diagonal(accumulator, np.pad(c, (0, VECTORS - len(c))))
    kind = torch.float16 if d_type == "f16" else torch.float32
    left, right = torch.from_numpy(rows), torch.from_numpy(columns[:VECTORS].T.copy())
    c_matrix = torch.from_numpy(accumulator).to(kind)
    d = multiply(shape, types, left.to(TORCH[a_type]), right.to(TORCH[a_type]), c_matrix)
    return np.diagonal(d).astype(np.float32)


@pytest.mark.parametrize(
    "shape, types",
    [("m16n8k16", "f32.e4m3.e4m3.f32"), ("m16n8k32", "f32.e5m2.e4m3.f32")],
)
def test_other_fp8_products_are_two_sums_and_an_addition(shape, types):
    """Bytes 0 and 1 of each four of K first, 2 and 3 on top of them, then C, rounded to nearest."""
    k, rng = int(shape[6:]), np.random.default_rng(3)
    a_type, b_type = types.split(".")[1:3]
    a = torch.from_numpy(rng.normal(size=(16, k))).to(TORCH[a_type])
    b = torch.from_numpy(rng.normal(size=(k, 8))).to(TORCH[b_type])
    c = rng.normal(size=(16, 8)).astype(np.float32)
    got = multiply(shape, types, a, b, torch.from_numpy(c)).view(np.uint32)
    wanted = np.empty((16, 8), np.float32)
    for m, n in np.ndindex(16, 8):
        row, column = ([Fraction(float(x)) for x in v] for v in (a[m].float(), b[:, n].float()))
        total = Fraction(0)
        for half in ((0, 1), (2, 3)):
            taken = [i for i in range(k) if i % 4 in half]
            exact = product_sum(
                [row[i] for i in taken], [column[i] for i in taken], total, -126, -14, -14
            )
            word = np.array(f32_towards_zero(exact), np.uint32)
            total = Fraction(float(word.view(np.float32)))
        wanted[m, n] = np.float32(float(total)) + c[m, n]
    assert (got == wanted.view(np.uint32)).all()


def test_nan_of_fp8_reaches_its_row_and_column_only():
    a = torch.ones(16, 32).to(torch.float8_e4m3fn)
    b = torch.ones(32, 8).to(torch.float8_e4m3fn)
    a[3, 5] = float("nan")
    got = multiply("m16n8k32", "f32.e4m3.e4m3.f32", a, b, torch.ones(16, 8))
    assert (got[3].view(np.uint32) == 0x7FFFFFFF).all()
    assert (np.delete(got, 3, axis=0) == 33).all()
