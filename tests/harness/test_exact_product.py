"""The exact product of NVFP4 matrices, held against sums of integers of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import utils
from reference import generate_input
from task import PROBLEMS
from utils import Limbs, exact_product, limbs_of, multiplies_int8

UNITS = 1 << 20  # of a product: an element is a multiple of 2^-10
HALVES = (0, 1, 2, 3, 4, 6, 8, 12)  # magnitudes of e2m1, in halves


def as_scales(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32).to(torch.float8_e4m3fn)


def integers(codes: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    """Elements in units of 2^-10, as integers of any size. e2m1: a sign, and a code of 3 bits."""
    nibbles = np.stack([codes.numpy() & 15, codes.numpy() >> 4], axis=2).reshape(len(codes), -1)
    halves = np.array([*HALVES, *(-h for h in HALVES)])[nibbles]
    in_512ths = (scales.double() * 512).numpy().astype(np.int64)
    return (halves * in_512ths.repeat(16, axis=1)).astype(object)


def check(a, b, sfa, sfb):
    expected = integers(a, sfa) @ integers(b, sfb).T
    found = exact_product(a, b, sfa, sfb) * UNITS
    assert found.dtype == torch.float64
    assert np.array_equal(found.numpy().astype(object), expected)


# Scales that make an element one limb of 7 bits, two, and more than two.
SETS = {
    1: [0, 1, 2, 3],
    2: [2.0**-9, 3 * 2.0**-9, 0.40625, 0.9375, -1.125],
    None: [2.0**-9, 2, 448],
}


@pytest.mark.parametrize("count_a", SETS)
@pytest.mark.parametrize("count_b", SETS)
def test_products_of_random_codes_are_exact(count_a, count_b, monkeypatch):
    rng = np.random.default_rng(1)
    monkeypatch.setattr(utils, "ROWS_AT_ONCE", 16)

    def operand(rows, values):
        scales = as_scales(rng.choice(values, (rows, 12)))
        return torch.from_numpy(rng.integers(0, 256, (rows, 96), dtype=np.uint8)), scales

    for m, n in [(37, 5), (5, 37), (1, 1)]:
        (a, sfa), (b, sfb) = operand(m, SETS[count_a]), operand(n, SETS[count_b])
        for scales, values in [(sfa, SETS[count_a]), (sfb, SETS[count_b])]:
            scales[0, : len(values)] = as_scales(values)
        for scales, count in [(sfa, count_a), (sfb, count_b)]:
            assert getattr(limbs_of(scales), "count", None) == count
        check(a, b, sfa, sfb)


def test_limbs_of_the_largest_elements():
    """6 times 5 is 60 halves, one limb; 6 times 1.25 and one of 2^-9 are 7680 of 2^-10, two. All
    products have one sign, so that sums in 16 or 32 bits would overflow first here.
    """
    for largest, count, others in [(5, 1, 5), (1.25, 2, 2.0**-9)]:
        codes = torch.full((3, 4096), 0x77, dtype=torch.uint8)
        scales = as_scales(np.full((3, 512), largest))
        scales[:, -1] = others
        assert limbs_of(scales).count == count
        check(codes, codes, scales, scales)
        check(codes, codes | 0x88, scales, scales)


@pytest.mark.parametrize("large, small", [(40.0, 1.0), (448.0, 1.0), (40.0, 2.0**-9)])
def test_a_small_product_is_not_lost_beside_large_ones(large, small):
    """One product of 1/2 and 1/2, 48 of 6 and 6: float32 holds the sum of the first pair only."""
    codes = torch.full((1, 32), 0x77, dtype=torch.uint8)
    codes[0, :8] = 0
    codes[0, 0] = 1
    scales = as_scales([[small, large, large, large]])
    expected = (0.5 * small) ** 2 + 48 * (6 * large) ** 2
    assert exact_product(codes, codes, scales, scales).item() == expected


def test_scales_that_are_no_numbers_are_not_cut_into_limbs():
    codes = torch.full((1, 32), 0x77, dtype=torch.uint8)
    scales = as_scales([[1, 1, float("nan"), 1]])
    assert limbs_of(scales) is None
    assert exact_product(codes, codes, scales, scales).isnan().all()


def test_int32_holds_the_sums_along_k_or_float64_does_it():
    longest = 2**31 // 64**2 - 1
    x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    assert multiplies_int8(torch.empty(1, longest)) == x86
    assert not multiplies_int8(torch.empty(1, longest + 1))


ONE_LIMB, TWO_LIMBS = Limbs(0.5, 1), Limbs(2.0**-10, 2)
OFFICIAL = {"gemv": ONE_LIMB, "gemm": ONE_LIMB, "dual_gemm": TWO_LIMBS, "group_gemm": ONE_LIMB}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_inputs_are_one_limb_or_two(name):
    problem = PROBLEMS[f"nvfp4_{name}"]
    sizes = {"m": 128, "n": 128, "k": 256, "l": 1}
    if problem.grouped:
        sizes = {key: (size,) for key, size in sizes.items()}
    args = {key: size for key, size in sizes.items() if key in problem.keys}
    data = generate_input(problem.name, **args, seed=3)
    sfa, sfb = data[1][0] if problem.grouped else data[3:5] if name == "dual_gemm" else data[2:4]
    assert limbs_of(sfa) == limbs_of(sfb) == OFFICIAL[name]
