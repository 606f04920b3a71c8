"""The slips of a first NVFP4 kernel, imitated on the inputs and named by the diff."""

from __future__ import annotations

import pytest
import torch

from reference import generate_input, ref_kernel
from tests.harness.diff_support import dual, explained, gemm, half, matrices, products
from utils import clone_data, dequantize

SQUARE = {"m": 256, "n": 256, "k": 512, "l": 1, "seed": 5}


def square():
    return generate_input("nvfp4_gemm", **SQUARE)


def with_scales(data, sfa, sfb):
    other = list(clone_data(data))
    other[2], other[3] = sfa, sfb
    return ref_kernel(tuple(other))


def test_sfa_and_sfb_exchanged():
    data = square()
    assert "SFA and SFB are exchanged" in explained(data, with_scales(data, data[3], data[2]))


@pytest.mark.parametrize(
    "exchanged, words",
    [
        ("ab", "SFA and SFB are exchanged in each tile of 128 x 128"),
        ("a", "a takes the scale factors of b's tile in each tile of 128 x 128"),
        ("b", "b takes the scale factors of a's tile in each tile of 128 x 128"),
    ],
)
def test_scales_of_a_tile_exchanged(exchanged, words):
    """As by a kernel with its fields SFA and SFB exchanged, where a has fewer tiles than b."""
    data = generate_input("nvfp4_gemm", m=128, n=384, k=256, l=1, seed=5)
    a, b, sfa, sfb = (x[:, :, 0] for x in data[:4])
    tiles = []
    for tile in range(3):
        rows = slice(128 * tile, 128 * tile + 128)
        of_a, of_b = sfb[rows] if "a" in exchanged else sfa, sfa if "b" in exchanged else sfb[rows]
        tiles.append(dequantize(a, of_a).double() @ dequantize(b[rows], of_b).double().T)
    assert words in explained(data, half(torch.cat(tiles, 1)))


def test_sfa_for_both():
    data = generate_input("nvfp4_gemm", m=256, n=128, k=256, l=1, seed=5)
    said = explained(data, with_scales(data, data[2], data[2][:128]))
    assert "b takes the scale factors of a, as a does" in said


def test_scales_of_b_by_the_tile_of_a():
    data = square()
    b, sfb = data[1][:, :, 0], data[3][:, :, 0]
    x = dequantize(data[0][:, :, 0], data[2][:, :, 0]).double()
    tiles = []
    for tile in range(2):
        scales = torch.cat([sfb[128 * tile :][:128]] * 2)
        rows = x[128 * tile :][:128]
        tiles.append(rows @ dequantize(b, scales).double().T)
    said = explained(data, half(torch.cat(tiles)))
    assert "scale factors of b are taken by the tile's index along m, not its own" in said


def test_scales_of_the_first_tile_in_all():
    data = square()
    output = with_scales(data, torch.cat([data[2][:128]] * 2), data[3])
    assert "scale factors of a are those of its first 128 rows" in explained(data, output)


def test_k_is_not_doubled():
    data = generate_input("nvfp4_gemm", m=128, n=128, k=768, l=1, seed=5)
    parts = [(x[:, :384] @ y[:, :384].T) for x, y in matrices(data)]
    said = explained(data, torch.stack(parts, 2).half())
    assert "the first half of K alone counts: K is twice a.shape[1]" in said


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda c: -c, "the sign is wrong"),
        (lambda c: c * 0.25, "the result is 4 times too small"),
        (lambda c: c.clamp(min=0), "clamped to be positive"),
    ],
)
def test_the_epilogue_of_a_gemm(change, said):
    data = gemm()
    assert said in explained(data, change(ref_kernel(data)))


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda x, y: x * torch.sigmoid(-x) * y, "the exponent of silu has the wrong sign"),
        (lambda x, y: torch.sigmoid(x) * y, "a sigmoid in the place of silu"),
        (lambda x, y: x / (1 + 2.0**-x) * y, "log2(e) is missing"),
        (lambda x, y: torch.nn.functional.silu(x) + y, "the sum of silu"),
    ],
)
def test_the_epilogue_of_a_dual(change, said):
    data = dual()
    assert said in explained(data, half(change(*products(data))))


def test_scales_of_b1_and_b2_exchanged():
    data = dual()
    other = list(clone_data(data))
    other[4], other[5] = data[5], data[4]
    said = explained(data, ref_kernel(tuple(other)))
    assert "the scale factors of b1 and b2 are exchanged" in said


def test_sums_of_a_k_split_go_to_the_wrong_owner():
    """Two parts; the part that owns 32 columns gets the other's sums of the 32 columns after."""
    data = gemm()
    batches = []
    for x, y in matrices(data):
        parts = [x[:, 256 * i : 256 * (i + 1)] @ y[:, 256 * i : 256 * (i + 1)].T for i in (0, 1)]
        c = torch.empty_like(parts[0])
        for n in range(c.shape[1]):
            owner = n // 32 % 2
            sent = min(n + 32, c.shape[1] - 1)
            c[:, n] = parts[owner][:, n] + parts[1 - owner][:, sent]
        batches.append(c)
    said = explained(data, torch.stack(batches, 2).half())
    assert "of a K split in 2 the other parts' sums are of columns +32" in said
