"""bf16 to and from narrow formats (PTX ISA 9.1, 9.2), and fma.bf16 in the directed roundings,
against exact rationals: tables of the formats' values by their definitions, rounding by integers.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import cache
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.exact_rounding import nearest, value
from tests.b200.chip.isa_support import execute
from tests.b200.chip.test_floating import FEW, exact, patterns
from tests.oracles.formats import SMALL, magnitudes, nearest_code

# Of NaN: e4m3's own, e5m2's canonical one; formats without one have their largest number.
OF_NAN = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}
BF16_NAN, BF16_INFINITY = 0x7FFF, 0x7F80
POWERS = [Fraction(2) ** (code - 127) for code in range(255)]


@cache
def narrowed(pattern: int, small: str, relu: bool) -> int:
    """The code of a bf16 number: nearest, ties to the even code, the largest beyond it."""
    exponent, mantissa, _, count = SMALL[small]
    if pattern & 0x7FFF > BF16_INFINITY:
        return OF_NAN[small]
    minus = pattern >> 15
    if minus and relu:
        return 0
    x = value(pattern & 0x7FFF, "bf16")
    code = count - 1 if x is None else nearest_code(x, magnitudes(small))
    return code | minus << exponent + mantissa


def drawn(small: str) -> np.ndarray:
    """bf16 patterns: zeros, infinities, NaN, subnormals, all middles of the format's numbers, and
    numbers around them and beyond.
    """
    random, finite = Random(small), magnitudes(small)
    middles = [(a + b) / 2 for a, b in pairwise(finite)]
    near = [nearest(x, "bf16") + d for x in middles for d in (-1, 0, 1) if x]
    top = nearest(finite[-1], "bf16")
    beyond = [random.randrange(top, BF16_INFINITY) for _ in range(16)]
    some = [0, 1, 0x7F, *near, *beyond, BF16_INFINITY, BF16_INFINITY + 1, 0x7FC0]
    both = [p | sign for p in some for sign in (0, 0x8000)]
    return np.resize(np.array(both, np.uint64), -(-len(both) // 64) * 64).reshape(-1, 2, 32)


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_pairs_to_narrow_floats(relu, small):
    """cvt.rn.satfinite{.relu}.NARROW.bf16x2: the upper half gives the upper code."""
    register, shift = ("b8", 4) if small == "e2m1" else ("b16", 8)
    for high, low in drawn(small):
        given_ = high << np.uint64(16) | low
        got = execute(f"cvt.rn.satfinite{relu}.{small}x2.bf16x2", [register], ["b32"], given_)
        for lane in range(32):
            codes = (narrowed(int(p[lane]), small, bool(relu)) for p in (high, low))
            upper, lower = codes
            assert int(got[lane]) == upper << shift | lower, hex(int(given_[lane]))


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_narrow_floats_to_pairs(relu, small):
    """cvt.rn{.relu}.bf16x2.NARROW of every code: each is a bf16 number."""
    exponent, mantissa, _, count = SMALL[small]
    bits, largest = 1 + exponent + mantissa, count - 1

    def widened(code: int) -> int:
        minus, code = code >> bits - 1, code & ((1 << bits - 1) - 1)
        if code > largest and (small == "e4m3" or code > largest + 1):
            return BF16_NAN
        if minus and relu:
            return 0
        infinite = code > largest
        pattern = BF16_INFINITY if infinite else nearest(magnitudes(small)[code], "bf16")
        assert infinite or value(pattern, "bf16") == magnitudes(small)[code]
        return pattern | minus << 15

    register, shift = ("b8", 4) if small == "e2m1" else ("b16", 8)
    codes = list(range(1 << bits)) + [0] * (-(1 << bits) % 32)
    for first in range(0, len(codes), 32):
        some = codes[first : first + 32]
        pairs = np.array([a << shift | b for a, b in zip(some, reversed(some))], np.uint64)
        got = execute(f"cvt.rn{relu}.bf16x2.{small}x2", ["b32"], [register], pairs)
        wanted = [widened(a) << 16 | widened(b) for a, b in zip(some, reversed(some))]
        assert got.tolist() == wanted


@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_pairs_to_scales(mode):
    """cvt.{rz,rp}.satfinite.ue8m0x2.bf16x2: the power of two at or next to the magnitude, from
    2^-127 to 2^127; of every magnitude.
    """

    def scale(pattern: int) -> int:
        if pattern & 0x7FFF > BF16_INFINITY:
            return 0xFF
        x = value(pattern & 0x7FFF, "bf16")
        if x is None:
            return 0xFE
        code = max(bisect_right(POWERS, x) - 1, 0)
        up = mode == "rp" and x > POWERS[code]
        return min(code + up, 0xFE)

    some = [*range(0, 0x200), *range(0x3F00, 0x4080, 3), *range(0x7F00, 0x8000, 5)]
    some = np.resize(np.array(some, np.uint64), -(-len(some) // 32) * 32).reshape(-1, 32)
    for low in some:
        high = low[::-1] | np.uint64(0x8000)
        pair = high << np.uint64(16) | low
        got = execute(f"cvt.{mode}.satfinite.ue8m0x2.bf16x2", ["b16"], ["b32"], pair)
        assert got.tolist() == [scale(int(a)) << 8 | scale(int(b)) for a, b in zip(high, low)]


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("relu", ["", ".relu"])
@FEW
@given(data=st.data())
def test_fused_multiply_add_in_directed_roundings(relu, mode, data):
    """fma.{rz,rm,rp}{.relu}.bf16 is rounded once; .bf16x2 is two of it."""
    low, high = ([data.draw(patterns("bf16")) for _ in range(3)] for _ in range(2))
    with np.errstate(all="ignore"):
        got = execute(f"fma.{mode}{relu}.bf16", ["b16"], ["b16"] * 3, *low)
        pairs = [y << np.uint64(16) | x for x, y in zip(low, high)]
        both = execute(f"fma.{mode}{relu}.bf16x2", ["b32"], ["b32"] * 3, *pairs)
    for lane in range(32):
        for numbers, found in (
            (low, int(got[lane])),
            (low, int(both[lane]) & 0xFFFF),
            (high, int(both[lane]) >> 16),
        ):
            want = exact("fma", [int(n[lane]) for n in numbers], "bf16", mode)
            if want is not None:
                assert found == (0 if relu and want >> 15 else want)
