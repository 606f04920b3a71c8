"""The tensor core's arithmetic, element by element against Fractions (exact_mma.py)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.tensor import tensor_core as tc
from b200.chip.tensor.fused_sum import round_f16, round_f32, workspace
from b200.formats import decode, encode
from tests.oracles import exact_mma
from tests.oracles.exact_mma import NAN

SCALES = {"ue4m3": exact_mma.ue4m3, "ue8m0": exact_mma.ue8m0}


def pack(nibbles: np.ndarray) -> np.ndarray:
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)


def check_fp4(a, sfa, b, sfb, cells, sf_type: str):
    """Nibbles [M, 64], [N, 64], codes [M, 4], [N, 4], cells [M, N] or None."""
    got = tc.block_scaled_fp4(pack(a), sfa, pack(b), sfb, cells, sf_type).copy()
    sf = SCALES[sf_type]
    for m in range(len(a)):
        for n in range(len(b)):
            c = 0 if cells is None else int(cells[m, n])
            want = exact_mma.fp4_element(
                a[m].tolist(), sfa[m].tolist(), b[n].tolist(), sfb[n].tolist(), c, sf
            )
            assert int(got[m, n]) == want, (m, n, hex(int(got[m, n])), hex(want), hex(c))


def fast(sfa, sfb, cells, sf_type: str) -> bool:
    space = workspace(len(sfa), len(sfb))
    return tc._fp4_nothing_lost(tc.scale_table(sf_type), sfa, sfb, cells, space)


def draw(rng, m=3, n=4, low=0, high=127):
    """Random nibbles and scale codes in [low, high)."""
    a, b = rng.integers(0, 16, (m, 64)), rng.integers(0, 16, (n, 64))
    sfa = rng.integers(low, high, (m, 4)).astype(np.uint8)
    sfb = rng.integers(low, high, (n, 4)).astype(np.uint8)
    return a, sfa, b, sfb


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(
    seeds, st.sampled_from([(0x30, 0x40), (0x38, 0x39), (0, 127), (0, 16), (0x60, 127), (0, 256)])
)
def test_nvfp4_any_scales_and_accumulators(seed, codes):
    rng = np.random.default_rng(seed)
    a, sfa, b, sfb = draw(rng, low=codes[0], high=codes[1])
    exponents = rng.integers(-140, 128, (3, 4)) if seed % 2 else rng.integers(-12, 30, (3, 4))
    c = np.ldexp(rng.normal(size=(3, 4)), exponents).astype(np.float32).view(np.uint32)
    check_fp4(a, sfa, b, sfb, c, "ue4m3")
    check_fp4(a, sfa, b, sfb, None, "ue4m3")


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 250), st.integers(1, 255))
def test_mxfp4_any_scales_and_accumulators(seed, low, width):
    rng = np.random.default_rng(seed)
    a, sfa, b, sfb = draw(rng, low=low, high=min(low + width, 256))
    c = rng.integers(0, 2**32, (3, 4), dtype=np.uint32)
    check_fp4(a, sfa, b, sfb, c, "ue8m0")


def test_sequences_of_steps_take_the_fast_path_and_agree():
    rng = np.random.default_rng(1)
    cells = None
    for _ in range(24):
        a, sfa, b, sfb = draw(rng, low=0x30, high=0x50)
        if cells is not None:
            assert fast(sfa, sfb, cells, "ue4m3")
        check_fp4(a, sfa, b, sfb, cells, "ue4m3")
        cells = tc.block_scaled_fp4(pack(a), sfa, pack(b), sfb, cells, "ue4m3").copy()


def test_result_is_cut_not_rounded():
    """2^24 + 1.5 in fp32: cut to 2^24; nearest would be 2^24 + 2."""
    a, b = np.zeros((1, 64), int), np.zeros((1, 64), int)
    a[0, 0], b[0, 0] = 3, 2  # 1.5 * 1
    one = np.full((1, 4), 0x38, np.uint8)
    c = np.array([[2.0**24]], np.float32).view(np.uint32)
    assert fast(one, one, c, "ue4m3")
    got = tc.block_scaled_fp4(pack(a), one, pack(b), one, c, "ue4m3").view(np.float32)
    assert got[0, 0] == 2.0**24
    minus = tc.block_scaled_fp4(pack(a), one, pack(b), one, c ^ 0x80000000, "ue4m3")
    assert (
        minus.view(np.float32)[0, 0] == -(2.0**24) + 2
    )  # -2^24 + 1.5, cut towards zero: -16777214


def test_small_accumulator_bits_below_the_window_are_lost():
    """Scales 2^8 * 2^8 give Emax = 16: bits of C below 2^(16 - 35) vanish, even if the products
    cancel and C alone is left."""
    a, b = np.zeros((1, 64), int), np.zeros((1, 64), int)
    a[0, :2], b[0, :2] = (2, 10), (2, 2)  # 1 - 1 = 0
    big = np.full((1, 4), 0x78, np.uint8)
    c = np.array([[2.0**-19 + 2.0**-25]], np.float32).view(np.uint32)
    assert not fast(big, big, c, "ue4m3")
    got = tc.block_scaled_fp4(pack(a), big, pack(b), big, c, "ue4m3").view(np.float32)
    assert got[0, 0] == 2.0**-19
    check_fp4(a, big, b, big, c, "ue4m3")


def test_huge_accumulator_cuts_the_products():
    rng = np.random.default_rng(5)
    a, sfa, b, sfb = draw(rng, low=1, high=8)  # subnormal scales
    for power in (20, 26, 40, 100, 127):
        c = np.full((3, 4), 2.0**power, np.float32)
        c[1] *= -1.25
        check_fp4(a, sfa, b, sfb, c.view(np.uint32), "ue4m3")


def test_where_a_product_drops_out_of_the_window():
    """-2^-20 (least scales, 0.5 * -0.5) under a growing C: it counts down to 35 bits below C."""
    a, b = np.zeros((1, 64), int), np.zeros((1, 64), int)
    a[0, 5], b[0, 5] = 1, 9
    least = np.full((1, 4), 1, np.uint8)
    for power in range(-30, 60):
        c = np.array([[2.0**power]], np.float32)
        got = tc.block_scaled_fp4(pack(a), least, pack(b), least, c.view(np.uint32), "ue4m3")
        if power > 2:
            assert (got.view(np.float32)[0, 0] < c[0, 0]) == (power <= 15)
        check_fp4(a, least, b, least, c.view(np.uint32), "ue4m3")


def test_cancellation_to_zero_is_positive():
    a, b = np.zeros((1, 64), int), np.zeros((1, 64), int)
    a[0, 0], b[0, 0] = 2, 10  # 1 * -1
    one = np.full((1, 4), 0x38, np.uint8)
    c = np.array([[1.0]], np.float32).view(np.uint32)
    assert tc.block_scaled_fp4(pack(a), one, pack(b), one, c, "ue4m3")[0, 0] == 0
    minus_zero = np.array([[0x80000000]], np.uint32)
    zeros = np.zeros((1, 64), int)
    assert tc.block_scaled_fp4(pack(zeros), one, pack(b), one, minus_zero, "ue4m3")[0, 0] == 0


def test_nan_scale_and_nan_or_infinite_accumulator():
    rng = np.random.default_rng(2)
    a, sfa, b, sfb = draw(rng, low=0x30, high=0x40)
    sfa[1, 2], sfb[3, 0] = 0x7F, 0xFF
    c = np.zeros((3, 4), np.uint32)
    c[0, 0], c[0, 1], c[2, 2] = 0x7FC00000, 0x7F800000, 0xFF800000
    check_fp4(a, sfa, b, sfb, c, "ue4m3")
    got = tc.block_scaled_fp4(pack(a), sfa, pack(b), sfb, c, "ue4m3")
    assert (got[1] == NAN).all() and (got[:, 3] == NAN).all() and got[0, 0] == NAN
    assert got[0, 1] == 0x7F800000 and got[2, 2] == 0xFF800000


def test_overflow_becomes_infinity_only_from_2_128_on():
    """3.4e38 + 2^127 overflows; the largest float plus less than its last bit does not."""
    a, b = np.zeros((1, 64), int), np.zeros((1, 64), int)
    a[0, 0], b[0, 0] = 2, 2
    largest = np.array([[0x7F7FFFFF]], np.uint32)
    for exponent, want in ((127, 0x7F800000), (100, 0x7F7FFFFF), (104, 0x7F800000)):
        sfa, sfb = np.full((1, 4), exponent + 127, np.uint8), np.full((1, 4), 127, np.uint8)
        assert tc.block_scaled_fp4(pack(a), sfa, pack(b), sfb, largest, "ue8m0")[0, 0] == want
        check_fp4(a, sfa, b, sfb, largest, "ue8m0")


def test_negate_turns_the_sign_of_the_products_only():
    rng = np.random.default_rng(3)
    a, sfa, b, sfb = draw(rng, low=0x30, high=0x40)
    c = rng.normal(size=(3, 4)).astype(np.float32).view(np.uint32)
    got = tc.block_scaled_fp4(pack(a), sfa, pack(b), sfb, c, "ue4m3", negate=True).copy()
    want = tc.block_scaled_fp4(pack(a ^ 8), sfa, pack(b), sfb, c, "ue4m3")
    np.testing.assert_array_equal(got, want)


def fractions(values: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in values]


def check_products(a, a_fmt, b, b_fmt, cells, d_type="f32", scale_d=0, sfa=None, sfb=None):
    """Values [M, K], [N, K] against exact_mma; sfa, sfb: ue8m0 codes [M], [N]."""
    left, right = (
        tc.AlignedOperand(v, tc.LEAST[f]) if s is None else tc.with_ue8m0(v, f, s)
        for v, f, s in ((a, a_fmt, sfa), (b, b_fmt, sfb))
    )
    got = tc.multiply(left, right, cells, d_type, scale_d).copy()
    rows, columns = fractions(a), fractions(b)
    for m, row in enumerate(rows):
        for n, column in enumerate(columns):
            c, least = Fraction(0), tc.LEAST[d_type]
            if cells is not None and d_type == "f32":
                c = exact_mma.f32(int(cells[m, n]))
            elif cells is not None:
                c = Fraction(float(np.uint16(cells[m, n] & 0xFFFF).view(np.float16)))
            scale = 0 if sfa is None else int(sfa[m]) + int(sfb[n]) - 254
            total = exact_mma.product_sum(
                row, column, c / 2**scale_d, least, tc.LEAST[a_fmt], tc.LEAST[b_fmt], scale
            )
            f = exact_mma.f32_towards_zero if d_type == "f32" else exact_mma.f16_nearest_even
            assert int(got[m, n]) == f(total), (m, n, hex(int(got[m, n])), hex(f(total)))


def codes(rng, fmt: str, shape) -> np.ndarray:
    """Random finite values of a format, as float64."""
    width = {"f16": 16, "bf16": 16, "tf32": 32, "e2m1": 4, "e2m3": 6, "e3m2": 6}.get(fmt, 8)
    values = decode(rng.integers(0, 1 << width, shape, dtype=np.uint64).astype(np.uint32), fmt)
    return np.where(np.isfinite(values), values, 1.0)


KS = {"f16": 16, "bf16": 16, "tf32": 8}
FORMATS = ["f16", "bf16", "tf32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1"]


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from(FORMATS), st.booleans())
def test_products_of_random_codes(seed, fmt, accumulate):
    rng = np.random.default_rng(seed)
    k = KS.get(fmt, 32)
    a, b = codes(rng, fmt, (2, k)), codes(rng, fmt, (3, k))
    if fmt in ("bf16", "tf32"):  # the full range overflows fp32 most of the time
        a, b = np.clip(a, -1e9, 1e9), np.clip(b, -1e9, 1e9)
    c = np.ldexp(rng.normal(size=(2, 3)), rng.integers(-40, 40, (2, 3))).astype(np.float32)
    check_products(a, fmt, b, fmt, c.view(np.uint32) if accumulate else None)


@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from(["f16", "e4m3"]), st.integers(1, 8))
def test_small_integers_take_the_fast_path(seed, fmt, largest):
    rng = np.random.default_rng(seed)
    k = KS.get(fmt, 32)
    a, b = (rng.integers(-largest, largest + 1, (r, k)).astype(float) for r in (2, 3))
    c = rng.integers(-1000, 1000, (2, 3)).astype(np.float32).view(np.uint32)
    left, right = tc.AlignedOperand(a, tc.LEAST[fmt]), tc.AlignedOperand(b, tc.LEAST[fmt])
    assert tc._products_nothing_lost(left, right, a, b, c, workspace(2, 3))
    check_products(a, fmt, b, fmt, c)
    exact = (a @ b.T + c.view(np.float32)).astype(np.float32)
    np.testing.assert_array_equal(tc.multiply(left, right, c).view(np.float32), exact)


@settings(max_examples=30, deadline=None)
@given(seeds, st.booleans())
def test_f16_accumulator_rounds_to_nearest(seed, accumulate):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(r, 16)).astype(np.float16).astype(float) for r in (2, 3))
    c = rng.normal(size=(2, 3)).astype(np.float16).view(np.uint16).astype(np.uint32)
    check_products(a, "f16", b, "f16", c if accumulate else None, "f16")


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(0, 15))
def test_scale_d_divides_the_accumulator(seed, scale_d):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(r, 16)).astype(np.float16).astype(float) for r in (2, 3))
    c = rng.normal(size=(2, 3)).astype(np.float32).view(np.uint32)
    check_products(a, "f16", b, "f16", c, scale_d=scale_d)


@settings(max_examples=40, deadline=None)
@given(
    seeds,
    st.sampled_from(["e4m3", "e5m2", "e2m1", "e3m2"]),
    st.integers(0, 254),
    st.integers(0, 30),
)
def test_mxfp8_scales(seed, fmt, low, spread):
    rng = np.random.default_rng(seed)
    a, b = codes(rng, fmt, (2, 32)), codes(rng, "e4m3", (3, 32))
    high = min(low + spread, 254)
    sfa = rng.integers(low, high + 1, 2).astype(np.uint8)
    sfb = (254 - rng.integers(low, high + 1, 3)).astype(np.uint8)
    c = rng.normal(size=(2, 3)).astype(np.float32).view(np.uint32)
    check_products(a, fmt, b, "e4m3", c, sfa=sfa, sfb=sfb)


def test_mxfp8_nan_scale():
    one = np.ones((2, 32))
    left = tc.with_ue8m0(one, "e4m3", np.array([255, 127], np.uint8))
    right = tc.with_ue8m0(one, "e4m3", np.array([127, 127], np.uint8))
    got = tc.multiply(left, right, None)
    assert (got[0] == NAN).all() and (got[1].view(np.float32) == 32.0).all()


def test_infinities_and_nan_follow_ieee():
    a, b = np.ones((4, 16)), np.ones((3, 16))
    a[1, 3], a[2, 3], a[2, 4], b[1, 3] = np.inf, np.inf, -np.inf, 0.0
    c = np.zeros((4, 3), np.uint32)
    c[3, 0], c[3, 1] = 0xFF800000, 0x7FC00001
    got = tc.multiply(tc.AlignedOperand(a, -14), tc.AlignedOperand(b, -14), c)
    assert got[1, 0] == 0x7F800000 and got[1, 1] == NAN and (got[2] == NAN).all()
    assert (
        got[3, 0] == 0xFF800000 and got[3, 1] == NAN and got[0, 0] == np.float32(16).view(np.uint32)
    )


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_round_f32_towards_zero(values):
    x = np.array(values)
    for got, value in zip(round_f32(x).tolist(), values):
        if np.isnan(value):
            assert got == NAN
        elif np.isinf(value):
            assert got == (0x7F800000 if value > 0 else 0xFF800000)
        else:
            assert got == exact_mma.f32_towards_zero(Fraction(value))


@given(st.lists(st.floats(-70000, 70000), min_size=1, max_size=20))
def test_round_f16_nearest(values):
    for got, value in zip(round_f16(np.array(values)).tolist(), values):
        assert got == exact_mma.f16_nearest_even(Fraction(value))


@pytest.mark.parametrize("saturate", [False, True])
def test_integers_wrap_or_saturate(saturate):
    a, b = np.full((2, 32), 255.0), np.full((2, 32), 127.0)
    a[1] = -128
    c = np.array([[2**31 - 1, 0], [-(2**31), 5]], np.int64).astype(np.int32).view(np.uint32)
    got = tc.multiply_integers(a, b, c, saturate).view(np.int32).astype(object)
    for m, n in np.ndindex(2, 2):
        total = int(a[m, 0] * b[n, 0] * 32) + int(c.view(np.int32)[m, n])
        if saturate:
            want = max(-(2**31), min(2**31 - 1, total))
        else:
            want = (total + 2**31) % 2**32 - 2**31
        assert got[m, n] == want


def test_formats_and_tables_agree():
    """Values of scale codes come from formats.py; encode(decode) is the identity on them."""
    table = tc.scale_table("ue4m3")
    finite = np.arange(0x7F, dtype=np.uint8)
    np.testing.assert_array_equal(encode(table.value[finite], "ue4m3"), finite)
    for code in finite[1:].tolist():
        value = exact_mma.ue4m3(code)
        lowest = exact_mma.exponent(
            Fraction(value.numerator & -value.numerator, value.denominator), -99
        )
        assert table.range(np.array([code], np.uint8)) == (exact_mma.exponent(value, -6), lowest)


@pytest.mark.parametrize("tops", [range(-150, -85), range(85, 131)], ids=["small", "large"])
def test_scales_at_the_ends_of_fp32(tops):
    """From where on numbers are no longer normal: sums of both exponents one by one, accumulators
    around the smallest product, the smallest numbers, and none.
    """
    rng = np.random.default_rng(4)
    for top in tops:
        sfa = np.full((1, 4), 127 + top // 2, np.uint8)
        sfb = np.full((2, 4), 127 + top - top // 2, np.uint8)
        a, b = rng.integers(0, 16, (1, 64)), rng.integers(0, 16, (2, 64))
        near = np.ldexp([[1.25, -1.5]], top - 30).astype(np.float32).view(np.uint32)
        for cells in (None, near, np.array([[1, 0x807FFFFF]], np.uint32)):
            check_fp4(a, sfa, b, sfb, cells, "ue8m0")
