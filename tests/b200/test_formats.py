"""Number formats against torch's own types and against brute force over Fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from b200.formats import decode, encode
from tests.oracles.formats import SMALL, magnitudes, nearest_code

TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "ue8m0": torch.float8_e8m0fnu,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
}


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "ue8m0"])
def test_decode_agrees_with_torch(fmt):
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(TORCH[fmt]).to(torch.float64).numpy()
    np.testing.assert_array_equal(decode(codes.numpy(), fmt), expected)


@pytest.mark.parametrize("fmt", ["e2m1", "e2m3", "e3m2"])
def test_decode_small(fmt):
    values = magnitudes(fmt)
    for code, value in enumerate(values):
        assert Fraction(float(decode(code, fmt))) == value
        assert Fraction(float(decode(code + len(values), fmt))) == -value


def test_decode_e2m1_table():
    np.testing.assert_array_equal(decode(np.arange(8), "e2m1"), [0, 0.5, 1, 1.5, 2, 3, 4, 6])


def test_decode_ue4m3_ignores_the_sign_bit():
    codes = np.arange(128)
    np.testing.assert_array_equal(decode(codes + 128, "ue4m3"), decode(codes, "e4m3"))


def test_decode_tf32_drops_13_bits():
    bits = np.array([0x3F801FFF, 0x3F802000, 0xC0001234], np.uint32)
    np.testing.assert_array_equal(decode(bits, "tf32"), [1.0, 1 + 2**-10, -2.0])


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_decode_16_bit_agrees_with_torch(fmt):
    codes = np.arange(65536, dtype=np.uint16)
    expected = torch.from_numpy(codes.view(np.int16)).view(TORCH[fmt]).to(torch.float64).numpy()
    np.testing.assert_array_equal(decode(codes, fmt), expected)


@given(st.sampled_from(sorted(SMALL)), st.floats(allow_nan=False, width=32))
def test_encode_saturating_is_the_nearest(fmt, x):
    values = magnitudes(fmt)
    at_most = min(Fraction(2) ** 100, abs(Fraction(x))) if np.isfinite(x) else Fraction(2) ** 100
    sign = 1 << sum(SMALL[fmt][:2])
    expected = nearest_code(at_most, values) | (sign if np.signbit(x) else 0)
    assert int(encode(np.float32(x), fmt)) == expected


@given(st.sampled_from(sorted(SMALL)), st.integers(0, 126), st.integers(0, 126), st.booleans())
def test_encode_ties_go_to_the_even_code(fmt, a, up, negative):
    values = magnitudes(fmt)
    low = a % (len(values) - 1)
    tie = (values[low] + values[low + 1]) / 2
    sign = 1 << sum(SMALL[fmt][:2])
    x = -float(tie) if negative else float(tie)
    assert int(encode(np.float64(x), fmt)) == (low + low % 2) | (sign if negative else 0)


@given(st.sampled_from(["f16", "bf16", "f32"]), st.floats(allow_nan=False))
def test_encode_unsaturated_agrees_with_torch(fmt, x):
    if fmt != "f32":  # torch narrows double to 16 bits by way of float
        x = float(np.float32(x)) if abs(x) < 3e38 else float(np.copysign(np.inf, x))
    expected = torch.tensor([x], dtype=torch.float64).to(TORCH[fmt])
    raw = expected.view(torch.int32 if fmt == "f32" else torch.int16).numpy()
    assert int(encode(np.array([x]), fmt, saturate=False)[0]) == int(
        raw.view(f"u{raw.itemsize}")[0]
    )


@given(st.sampled_from(["rz", "rp", "rm"]), st.sampled_from(sorted(SMALL)), st.floats(-5, 5))
def test_directed_rounding_brackets(rounding, fmt, x):
    got = Fraction(float(decode(encode(np.float64(x), fmt, rounding=rounding), fmt)))
    every = [*magnitudes(fmt), *(-v for v in magnitudes(fmt))]
    exact = Fraction(x)
    down, up = max(v for v in every if v <= exact), min(v for v in every if v >= exact)
    assert got == {"rm": down, "rp": up, "rz": down if exact > 0 else up}[rounding]


@given(st.integers(-126, 127), st.floats(1, 1.9999998807907104, width=32))
def test_ue8m0_rounding(exponent, significand):
    x = np.float32(np.ldexp(np.float32(significand), exponent))
    assert int(encode(x, "ue8m0", rounding="rz")) == exponent + 127
    assert int(encode(x, "ue8m0", rounding="rp")) == min(exponent + 127 + (significand > 1), 254)
    assert int(encode(-x, "ue8m0", rounding="rz")) == exponent + 127


def test_tf32_nearest_even_and_away():
    tie = np.float32(1 + 2**-11)
    assert int(encode(tie, "tf32")) == 0x3F800000
    assert int(encode(tie, "tf32", rounding="rna")) == 0x3F802000
    assert int(encode(np.float32(np.inf), "tf32", saturate=False)) == 0x7F800000


def test_specials():
    nan = np.float32(np.nan)
    assert {
        f: int(encode(nan, f)) for f in ("e2m1", "e3m2", "e4m3", "e5m2", "ue8m0", "tf32", "bf16")
    } == {
        "e2m1": 0x7,
        "e3m2": 0x1F,
        "e4m3": 0x7F,
        "e5m2": 0x7F,
        "ue8m0": 0xFF,
        "tf32": 0x7FFFFFFF,
        "bf16": 0x7FFF,
    }
    assert int(encode(np.float32(np.inf), "e5m2")) == 0x7B
    assert int(encode(np.float32(np.inf), "e5m2", saturate=False)) == 0x7C
    assert int(encode(np.float32(-1e9), "e4m3", saturate=False)) == 0xFF
    assert int(encode(np.float32(-0.0), "e2m1")) == 0x8
    assert int(encode(np.float32(-3.0), "ue4m3")) == 0
    assert int(encode(np.float32(0.0), "ue8m0")) == 0


def test_results_have_the_container_type():
    x = np.array([1.0, 2.0], np.float32)
    assert [encode(x, f).dtype for f in ("e2m1", "bf16", "tf32")] == [
        np.uint8,
        np.uint16,
        np.uint32,
    ]
