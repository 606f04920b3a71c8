"""Conversions against exact rationals and tables (between types an H200 has: test_h200.py)."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b200 import formats
from b200.errors import Unsupported
from b200.isa import grammar
from b200.registry import FULL, find
from b200.spaces import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from lab.exact_rounding import nearest, value
from tests.b200.chip.isa_support import execute, fake_warp, instruction
from tests.b200.chip.test_floating import WIDTHS, patterns
from tests.b200.chip.test_integer import FEW, LANES, cut, signed

INTEGERS = [s + n for s in "us" for n in ("8", "16", "32", "64")]


def register(kind: str) -> str:
    """The narrowest register that may hold an integer type; most code has no 8-bit ones."""
    return f"b{max(int(kind[1:]), 16)}"


def contains(target: str, source: str) -> bool:
    """Whether a type has all values of another."""
    (t, n), (s, m) = ((kind[0], int(kind[1:])) for kind in (target, source))
    return m <= n and t == s or m < n and t == "s"


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
@FEW
@given(lanes=LANES)
def test_between_integers(target, source, lanes):
    """The result is extended to its register as its type says; .sat clamps."""
    n, m = int(source[1:]), int(target[1:])
    a = cut(lanes, n)
    xs = [signed(x, n) if source[0] == "s" else x for x in a.tolist()]
    low, high = (-(1 << (m - 1)), (1 << (m - 1)) - 1) if target[0] == "s" else (0, (1 << m) - 1)
    wide = 1 << int(register(target)[1:])

    def held(x: int) -> int:
        x %= 1 << m
        return (signed(x, m) if target[0] == "s" else x) % wide

    got = execute(f"cvt.{target}.{source}", [register(target)], [register(source)], a)
    assert got.tolist() == [held(x) for x in xs]
    clamping = f"cvt.sat.{target}.{source}"
    if contains(target, source):  # PTX has no .sat where nothing can be clamped
        assert grammar.match(clamping) is None
        return
    got = execute(clamping, [register(target)], [register(source)], a)
    assert got.tolist() == [held(min(max(x, low), high)) for x in xs]


ROUND = {
    "rni": lambda x: round(x),  # Fraction rounds half to even
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("rounding", ROUND)
@FEW
@given(data=st.data(), target=st.sampled_from(["u16", "s16", "u32", "s32", "u64", "s64"]))
def test_float_to_integer(rounding, kind, data, target):
    a, n = data.draw(patterns(kind)), int(target[1:])
    with np.errstate(all="ignore"):
        got = execute(f"cvt.{rounding}.{target}.{kind}", [f"b{n}"], [f"b{WIDTHS[kind]}"], a)
        integral = execute(
            f"cvt.{rounding}.{kind}.{kind}", [f"b{WIDTHS[kind]}"], [f"b{WIDTHS[kind]}"], a
        )
    low, high = (-(1 << (n - 1)), (1 << (n - 1)) - 1) if target[0] == "s" else (0, (1 << n) - 1)
    for i in range(32):
        x = value(int(a[i]), kind)
        if x is not None:
            assert int(got[i]) == min(max(ROUND[rounding](x), low), high) % (1 << n)
            assert value(int(integral[i]), kind) == ROUND[rounding](x)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@FEW
@given(lanes=LANES, source=st.sampled_from(INTEGERS))
def test_integer_to_float(mode, kind, lanes, source):
    a = cut(lanes, int(source[1:]))
    held = f"b{source[1:]}" if kind == "bf16" else register(source)
    got = execute(f"cvt.{mode}.{kind}.{source}", [f"b{WIDTHS[kind]}"], [held], a)
    for x, y in zip(a.tolist(), got.tolist()):
        number = signed(x, int(source[1:])) if source[0] == "s" else x
        assert y == nearest(Fraction(number), kind, mode)


NARROWING = [
    ("f32", "f64"),
    ("f16", "f64"),
    ("bf16", "f64"),
    ("f16", "f32"),
    ("bf16", "f32"),
    ("f16", "bf16"),
    ("bf16", "f16"),
]


@pytest.mark.parametrize("target, source", NARROWING)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@FEW
@given(data=st.data())
def test_float_to_float(mode, target, source, data):
    a = data.draw(patterns(source))
    with np.errstate(all="ignore"):
        got = execute(
            f"cvt.{mode}.{target}.{source}", [f"b{WIDTHS[target]}"], [f"b{WIDTHS[source]}"], a
        )
    for x, y in zip(a.tolist(), got.tolist()):
        if value(x, source) is not None:
            assert y == nearest(value(x, source), target, mode, bool(x >> (WIDTHS[source] - 1)))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@FEW
@given(data=st.data())
def test_pairs_of_halves(mode, kind, data):
    """cvt.rn.f16x2.f32 d, a, b: a in the upper half."""
    a, b = data.draw(patterns("f32")), data.draw(patterns("f32"))
    with np.errstate(all="ignore"):
        got = execute(f"cvt.{mode}.{kind}x2.f32", ["b32"], ["b32", "b32"], a, b)
        finite = execute(f"cvt.{mode}.satfinite.relu.{kind}x2.f32", ["b32"], ["b32", "b32"], a, b)
    largest = {"f16": 0x7BFF, "bf16": 0x7F7F}[kind]
    for i in range(32):
        for pattern, shift in ((a, 16), (b, 0)):
            half, clamped = (int(r[i]) >> shift & 0xFFFF for r in (got, finite))
            x = value(int(pattern[i]), "f32")
            if x is not None:
                want = nearest(x, kind, mode, bool(int(pattern[i]) >> 31))
                assert half == want
                assert clamped == (0 if want >> 15 else min(want, largest))


# Magnitudes by code of e2m1, and of e2m3 and e3m2 by their definition (PTX ISA 5.2.3).
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
SMALL = {
    "e2m1": E2M1,
    "e2m3": [(m / 8 if e == 0 else (1 + m / 8) * 2 ** (e - 1)) for e in range(4) for m in range(8)],
    "e3m2": [
        (m / 16 if e == 0 else (1 + m / 4) * 2.0 ** (e - 3)) for e in range(8) for m in range(4)
    ],
}


def nearest_code(x: float, table: list[float]) -> int:
    """Nearest magnitude, ties to the even code, beyond the largest the largest."""
    code = min(range(len(table)), key=lambda c: (abs(table[c] - abs(x)), c & 1))
    return code | (len(table) if math.copysign(1, x) < 0 else 0)


@pytest.mark.parametrize("small", SMALL)
def test_small_floats(small):
    table, random = SMALL[small], Random(1)
    middles = [(p + q) / 2 for p, q in zip(table, table[1:])]
    numbers = [
        *table,
        *middles,
        1000.0,
        6.0,
        7.5,
        28.0,
        *(random.uniform(0, 2 * table[-1]) for _ in range(40)),
    ]
    numbers = np.array([s * x for x in numbers for s in (1, -1)], np.float32)
    numbers = np.resize(numbers, -(-len(numbers) // 32) * 32).reshape(-1, 32)
    nibbles = small == "e2m1"
    for row in numbers:
        bits = row.view(np.uint32).astype(np.uint64)
        other = bits[::-1].copy()
        d = "b8" if nibbles else "b16"
        got = execute(f"cvt.rn.satfinite.{small}x2.f32", [d], ["b32", "b32"], bits, other)
        shift = 4 if nibbles else 8
        assert [int(x) >> shift for x in got] == [nearest_code(float(x), table) for x in row]
        assert [int(x) & ((1 << shift) - 1) for x in got] == [
            nearest_code(float(x), table) for x in row[::-1]
        ]
        back = execute(f"cvt.rn.f16x2.{small}x2", ["b32"], [d], got)
        halves = back.astype(np.uint32).view(np.float16).reshape(32, 2)
        brains = execute(f"cvt.rn.bf16x2.{small}x2", ["b32"], [d], got).astype(np.uint32)
        singles = np.stack((brains << 16, brains & 0xFFFF0000), 1).view(np.float32)
        assert (singles == halves).all()
        signs = np.where(np.signbit(row), -1.0, 1.0)
        assert halves[:, 1].tolist() == [
            s * table[nearest_code(abs(float(x)), table)] for s, x in zip(signs, row)
        ]


def test_small_floats_of_nan():
    nan = np.full(32, 0xFFC00000)
    zero = np.zeros(32)
    assert set(execute("cvt.rn.satfinite.e2m1x2.f32", ["b8"], ["b32"] * 2, nan, zero).tolist()) == {
        0x70
    }
    assert set(
        execute("cvt.rn.satfinite.e4m3x2.f32", ["b16"], ["b32"] * 2, nan, zero).tolist()
    ) == {0x7F00}


# Largest finite value, mantissa bits and least normal exponent (PTX ISA 5.2.3, OCP OFP8, IEEE 754).
GRIDS = {
    "f16": (65504, 10, -14),
    "bf16": ((2 - Fraction(1, 128)) * 2**127, 7, -126),
    "e4m3": (448, 3, -6),
    "e5m2": (57344, 2, -14),
    "e2m3": (Fraction(15, 2), 3, 0),
    "e3m2": (28, 2, -2),
    "e2m1": (6, 1, 0),
}


def stochastic(x: Fraction, small: str, random: Fraction) -> Fraction:
    """The magnitude by the definition of .rs, saturated."""
    largest, mantissa, least = GRIDS[small]
    exponent = least
    while x >= Fraction(2) ** (exponent + 1):
        exponent += 1
    quantum = Fraction(2) ** (exponent - mantissa)
    return min((x / quantum + random).__floor__() * quantum, Fraction(largest))


def randoms(rbits: int, small: str) -> list[Fraction]:
    """The random numbers of the operands, as the text of PTX ISA's cvt shares them out."""
    high, low = rbits >> 16, rbits & 0xFFFF
    if small == "f16":
        return [Fraction(high % 2**13, 2**13), Fraction(low % 2**13, 2**13)]
    if small == "bf16":
        return [Fraction(high, 2**16), Fraction(low, 2**16)]
    if small == "e2m1":
        high, low = (high >> 8) * 256 + (low >> 8), (high % 256) * 256 + low % 256
    return [Fraction(half, 2**16) for half in (high, high, low, low)]


@pytest.mark.parametrize("small", GRIDS)
def test_stochastic_rounding(small):
    random = Random(2)
    largest, count = float(GRIDS[small][0]), 2 if small in ("f16", "bf16") else 4
    kind = f"{small}x{count}"
    for scale in (1e-3, 1.0, 2 * largest if small != "bf16" else 1.0):
        numbers = np.array(
            [[random.uniform(-scale, scale) for _ in range(32)] for _ in range(count)], np.float32
        )
        rbits = np.array([random.getrandbits(32) for _ in range(32)], np.uint64)
        d = "b16" if small == "e2m1" else "b32"
        got = execute(
            f"cvt.rs.satfinite.{kind}.f32",
            [d],
            ["b32"] * (count + 1),
            *numbers.view(np.uint32).astype(np.uint64),
            rbits,
        )
        width = int(d[1:]) // count
        for lane in range(32):
            for i, part in enumerate(randoms(int(rbits[lane]), small)):
                code = int(got[lane]) >> width * (count - 1 - i) & ((1 << width) - 1)
                x = Fraction(float(numbers[i, lane]))
                want = stochastic(abs(x), small, part)
                assert formats.decode(np.uint32(code), small) == (want if x > 0 else -want)


@pytest.mark.parametrize("bits, away", [(0x0000, 0), (0x7FFF, 0), (0x8000, 1), (0xFFFF, 1)])
def test_stochastic_rounding_by_hand(bits, away):
    """1.25 lies half way from 1 to 1.5, 0.0 and 1.0 on the grid, infinity and NaN beyond it."""
    numbers = np.array([1.25, 0.0, np.inf, np.nan], np.float32).view(np.uint32).astype(np.uint64)
    operands = [np.full(32, n, np.uint64) for n in numbers]
    rbits = np.full(32, (bits >> 8) << 24 | (bits & 0xFF) << 8, np.uint64)
    got = execute("cvt.rs.satfinite.e2m1x4.f32", ["b16"], ["b32"] * 5, *operands, rbits)
    assert set(got.tolist()) == {(2 + away) << 12 | 0 << 8 | 7 << 4 | 7}
    relu = execute(
        "cvt.rs.relu.f16x2.f32",
        ["b32"],
        ["b32"] * 3,
        np.full(32, 0xBF800000),
        np.full(32, 0x477FF000),
        np.full(32, bits),
    )
    assert set(relu.tolist()) == {0x7C00 if bits & 0x1FFF >= 0x1000 else 0x7BFF}


@pytest.mark.parametrize("mode", ["rz", "rp"])
@FEW
@given(lanes=LANES)
def test_scales(mode, lanes):
    """cvt.{rz,rp}.satfinite.ue8m0x2.f32: the power of two at or next to the magnitude."""
    a = np.array([(v % 254 + 1) << 23 | (v >> 40 & 0x7FFFFF) * (v & 1) for v in lanes], np.uint64)
    got = execute(f"cvt.{mode}.satfinite.ue8m0x2.f32", ["b16"], ["b32", "b32"], a, a)
    for x, y in zip(a.tolist(), got.tolist()):
        up = mode == "rp" and x & 0x7FFFFF
        code = min((x >> 23) + bool(up), 0xFE)
        assert y == code << 8 | code
    back = execute("cvt.rn.bf16x2.ue8m0x2", ["b32"], ["b16"], got)
    for y, z in zip(got.tolist(), back.tolist()):
        assert value(z & 0xFFFF, "bf16") == Fraction(2) ** ((y & 0xFF) - 127)


@pytest.mark.parametrize(
    "bits, rz, rp",
    [  # of f32; the least code is 2^-127, half of f32's least normal number; 0xFF is NaN
        (0x00000000, 0, 0),
        (0x00000001, 0, 0),
        (0x003FFFFF, 0, 0),
        (0x00400000, 0, 0),  # 2^-127
        (0x00400001, 0, 1),
        (0x007FFFFF, 0, 1),
        (0x00800000, 1, 1),  # 2^-126
        (0x00800001, 1, 2),
        (0x7F000000, 254, 254),  # 2^127
        (0x7F7FFFFF, 254, 254),
        (0x7F800000, 254, 254),  # infinity
        (0x7FC00000, 255, 255),
    ],
)
def test_scales_at_the_ends(bits, rz, rp):
    for mode, code in (("rz", rz), ("rp", rp)):
        for sign in (0, 1 << 31):
            a = np.full(32, bits | sign, np.uint64)
            got = execute(f"cvt.{mode}.satfinite.ue8m0x2.f32", ["b16"], ["b32", "b32"], a, a)
            assert set(got.tolist()) == {code << 8 | code}


@FEW
@given(lanes=LANES)
def test_pack_saturates(lanes):
    a, b, c = cut(lanes, 32), cut(lanes[::-1], 32), cut([v >> 7 for v in lanes], 32)
    got = execute("cvt.pack.sat.s8.s32.b32", ["b32"], ["b32"] * 3, a, b, c)
    for x, y, z, d in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist()):
        x, y = (min(max(signed(v, 32), -128), 127) % 256 for v in (x, y))
        assert d == (z << 16 | x << 8 | y) % 2**32


WINDOWS = {
    "global": 0,
    "shared": SHARED_WINDOW,
    "shared::cluster": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW,
}


@pytest.mark.parametrize("space", WINDOWS)
def test_address_spaces(space):
    inside = np.arange(32, dtype=np.uint64) * 64 + 0x400
    generic = execute(f"cvta.{space}.u64", ["b64"], ["b64"], inside)
    assert np.array_equal(generic, inside + np.uint64(WINDOWS[space]))
    assert np.array_equal(execute(f"cvta.to.{space}.u64", ["b64"], ["b64"], generic), inside)
    for other, window in WINDOWS.items():
        found = execute(f"isspacep.{other}", ["pred"], ["b64"], generic)
        assert found.all() == found.any() == (window == WINDOWS[space])


def test_a_constant_variable_is_its_own_generic_address():
    inside = np.arange(32, dtype=np.uint64) * 64 + 0x400
    assert np.array_equal(execute("cvta.const.u64", ["b64"], ["b64"], inside), inside)


def test_own_shared_memory_is_not_a_peers():
    """isspacep.shared is .shared::cta: an address of another CTA of the cluster is not in it, of
    the CTA of rank 0, too.
    """
    ranks = np.arange(32, dtype=np.uint64) % 4
    address = SHARED_WINDOW + (ranks << np.uint64(24)) + np.uint64(0x800)
    found = execute("isspacep.shared", ["pred"], ["b64"], address, warp=fake_warp(rank=2))
    assert np.array_equal(found, ranks == 2)
    run = find("isspacep.shared").factory(instruction("isspacep.shared", ["pred"], ["b64"]))
    assert run(fake_warp(rank=2), FULL, SHARED_WINDOW + (1 << 24)) == 0
    assert run(fake_warp(rank=2), FULL, SHARED_WINDOW + (2 << 24)) == FULL


def test_refuses():
    bad = (
        "cvt.rs.f16.f32",
        "cvt.rs.e4m3x4.f32",
        "cvt.rs.satfinite.e4m3x2.f32",
        "cvt.rn.e4m3x2.f32",
        "cvt.rn.satfinite.f16x2.e2m3x2",
        "cvt.f16.f32",
        "cvt.s32.f32",
    )
    for opcode in (
        *bad,
        "cvt.rni.f32.f64",
        "cvt.rn.sat.bf16.f32",
        "cvta.tex.u64",
        "cvta.to.shared.u32",
    ):
        with pytest.raises(Unsupported):
            find(opcode)
