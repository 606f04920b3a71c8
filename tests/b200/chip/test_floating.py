"""Floating-point arithmetic against exact rationals (what an H200 has is in test_h200.py too)."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b200.errors import Unsupported
from b200.registry import find
from lab.exact_rounding import nearest, value
from tests.b200.chip.isa_support import execute, instruction
from tests.b200.chip.test_integer import FEW

WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def patterns(kind: str):
    """32 patterns: any, and numbers with exponents near each other (cancellation, ties)."""
    return st.integers(0, 2**32 - 1).map(lambda seed: draw_patterns(kind, Random(seed)))


def draw_patterns(kind: str, random: Random) -> np.ndarray:
    bits = WIDTHS[kind]
    mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[kind]
    middle = (1 << (bits - 2)) - (1 << mantissa)

    def one() -> int:
        if random.random() < 0.4:
            return random.getrandbits(bits)
        fraction = random.choice([0, 1, 2 ** (mantissa - 1), random.getrandbits(mantissa)])
        exponent = random.randrange(-4, 5)
        return (middle + (exponent << mantissa) + fraction) | random.getrandbits(1) << (bits - 1)

    return np.array([one() for _ in range(32)], np.uint64)


def negative(pattern: int, kind: str) -> bool:
    return bool(pattern >> (WIDTHS[kind] - 1))


def exact(op: str, args: list[int], kind: str, mode: str) -> int | None:
    """Pattern of the correctly rounded result, None where an operand is not finite."""
    xs = [value(a, kind) for a in args]
    if None in xs:
        return None
    signs = [negative(a, kind) for a in args]
    if op == "mul":
        return nearest(xs[0] * xs[1], kind, mode, signs[0] != signs[1])
    if op == "sub":
        xs[1], signs[1] = -xs[1], not signs[1]
    product, sign = (xs[0] * xs[1], signs[0] != signs[1]) if op == "fma" else (xs[0], signs[0])
    total = product + xs[-1]
    # the sum of zeros of like sign keeps it; else an exact zero is +0, in rm -0
    zeros = product == 0 and xs[-1] == 0 and sign == signs[-1]
    return nearest(total, kind, mode, sign if zeros else mode == "rm")


CASES = [(k, "rn") for k in WIDTHS] + [(k, m) for k in ("f32", "f64") for m in ("rz", "rm", "rp")]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("kind, mode", CASES)
@FEW
@given(data=st.data())
def test_rounded_once(op, kind, mode, data):
    n = 3 if op == "fma" else 2
    args = [data.draw(patterns(kind)) for _ in range(n)]
    b = f"b{WIDTHS[kind]}"
    with np.errstate(all="ignore"):
        got = execute(f"{op}.{mode}.{kind}", [b], [b] * n, *args)
    for i in range(32):
        want = exact(op, [int(a[i]) for a in args], kind, mode)
        if want is not None:
            assert int(got[i]) == want, [hex(int(a[i])) for a in args]


def test_a_product_hardly_off_the_middle_of_two_numbers():
    """A product that is 2^-53 and at most 2^-104 of that more or less, to numbers from 1 to 2."""
    near = 1 + np.array([0, -(2.0**-52), 2.0**-52, -(2.0**-53)])
    odd = 1 + np.array([0, 1, 2, 3]) * 2.0**-52
    rows = [
        (sign * x * 2.0**-53, y, z) for sign in (1, -1) for x in near for y in near for z in odd
    ]
    args = np.array(rows).view(np.uint64).T
    for part in np.split(args, len(rows) // 32, axis=1):
        got = execute("fma.rn.f64", ["b64"], ["b64"] * 3, *map(np.ascontiguousarray, part))
        want = [exact("fma", [int(x) for x in row], "f64", "rn") for row in part.T]
        assert got.tolist() == want


@pytest.mark.parametrize("op", ["div", "rcp", "sqrt"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@FEW
@given(data=st.data())
def test_division_and_root(op, kind, mode, data):
    args = [data.draw(patterns(kind)) for _ in range(2 if op == "div" else 1)]
    b = f"b{WIDTHS[kind]}"
    with np.errstate(all="ignore"):
        got = execute(f"{op}.{mode}.{kind}", [b], [b] * len(args), *args)
    for i in range(32):
        xs = [value(int(a[i]), kind) for a in args]
        if None in xs or xs[-1] == 0:
            continue
        if op == "sqrt":
            if xs[0] > 0:
                check_root(int(got[i]), xs[0], kind, mode)
            continue
        x = xs[0] / xs[1] if op == "div" else 1 / xs[0]
        minus = negative(int(args[0][i]), kind) != negative(int(args[-1][i]), kind)
        assert int(got[i]) == nearest(x, kind, mode, minus)


def check_root(pattern: int, x, kind: str, mode: str):
    """The result and its neighbours enclose the root as the mode says: compared by squares."""
    r, up, down = (value(p, kind) for p in (pattern, pattern + 1, pattern - 1))
    if mode == "rn":
        assert ((r + up) / 2) ** 2 >= x >= ((r + down) / 2) ** 2
    elif mode == "rp":
        assert r**2 >= x > down**2
    else:
        assert r**2 <= x < up**2


@pytest.mark.parametrize("op", ["add", "mul", "fma"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@FEW
@given(data=st.data())
def test_f32x2_is_two_f32(op, mode, data):
    """sm_100: the low word first; each half as the f32 instruction gives it."""
    n = 3 if op == "fma" else 2
    low, high = ([data.draw(patterns("f32")) for _ in range(n)] for _ in range(2))
    packed = [x | y << np.uint64(32) for x, y in zip(low, high)]
    with np.errstate(all="ignore"):
        got = execute(f"{op}.{mode}.ftz.f32x2", ["b64"], ["b64"] * n, *packed)
        for half, args in ((got & np.uint64(0xFFFFFFFF), low), (got >> np.uint64(32), high)):
            assert np.array_equal(
                half, execute(f"{op}.{mode}.ftz.f32", ["b32"], ["b32"] * n, *args)
            )


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@FEW
@given(data=st.data())
def test_mixed_precision(kind, data):
    """fma.f32.f16 and add.f32.f16 (sm_100): narrow factors, fp32 sum, rounded once."""
    a, b, c = data.draw(patterns(kind)), data.draw(patterns(kind)), data.draw(patterns("f32"))
    with np.errstate(all="ignore"):
        fma = execute(f"fma.rn.f32.{kind}", ["b32"], ["b16", "b16", "b32"], a, b, c)
        add = execute(f"add.rz.f32.{kind}", ["b32"], ["b16", "b32"], a, c)
    for i in range(32):
        x, y, z = value(int(a[i]), kind), value(int(b[i]), kind), value(int(c[i]), "f32")
        if x is not None and y is not None and z is not None:
            if x * y + z:
                assert int(fma[i]) == nearest(x * y + z, "f32")
            if x + z:
                assert int(add[i]) == nearest(x + z, "f32", "rz")


def f32(*values: float) -> np.ndarray:
    return np.resize(np.array(values, np.float32).view(np.uint32), 32).astype(np.uint64)


def test_three_operand_minimum():
    """min.f32 of three (sm_100): NaN ignored, or propagated with .NaN; .abs compares magnitudes."""
    a, b, c = f32(3.0, math.nan, -5.0, 0.0), f32(-2.0, 4.0, 1.0, -0.0), f32(7.0, 5.0, math.nan, 1.0)
    least = execute("min.f32", ["b32"], ["b32"] * 3, a, b, c)
    assert np.array_equal(least, f32(-2.0, 4.0, -5.0, -0.0))
    strict = execute("min.NaN.f32", ["b32"], ["b32"] * 3, a, b, c)
    assert [int(x) for x in strict[:4]] == [int(f32(-2.0)[0]), NAN["f32"], NAN["f32"], 0x80000000]
    greatest = execute("max.abs.f32", ["b32"], ["b32"] * 3, a, b, c)
    assert np.array_equal(greatest, f32(7.0, 5.0, 5.0, 1.0))


def test_flushing_and_clamping():
    tiny = f32(1e-40, -1e-40, 2.0, -3.0)
    one = f32(1.0)
    assert np.array_equal(
        execute("mul.rn.ftz.f32", ["b32"], ["b32"] * 2, tiny, one), f32(0.0, -0.0, 2.0, -3.0)
    )
    sat = execute("add.rn.sat.f32", ["b32"], ["b32"] * 2, f32(0.25, -1.0, 2.0, math.nan), f32(0.0))
    assert np.array_equal(sat, f32(0.25, 0.0, 1.0, 0.0))


APPROXIMATE = {
    "ex2.approx.ftz.f32": lambda x: 2.0**x,
    "tanh.approx.f32": math.tanh,
    "sin.approx.f32": math.sin,
}


@pytest.mark.parametrize("opcode", APPROXIMATE)
def test_approximations_are_close(opcode):
    x = np.linspace(-3, 3, 32).astype(np.float32)
    got = execute(opcode, ["b32"], ["b32"], x.view(np.uint32).astype(np.uint64))
    want = np.array([APPROXIMATE[opcode](float(v)) for v in x])
    error = np.abs(got.astype(np.uint32).view(np.float32) - want)
    assert (error <= 2.0**-23 * np.abs(want)).all()


def test_refuses():
    bad = (
        "add.rn.relu.f32",
        "fma.rn.sat.bf16",
        "mul.f32.f16",
        "min.NaN.f64",
        "tanh.approx.ftz.f32",
        "div.f32",
    )
    for opcode in (*bad, "add.rna.f32", "sqrt.approx.f64", "fma.rn.oob.f16"):
        with pytest.raises(Unsupported):
            find(opcode).factory(instruction(opcode, ["b32"], ["b32", "b32"]))


@pytest.mark.parametrize("kind, dtype", [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("zeros", [False, True])
def test_the_smaller_and_the_larger_of_finite_numbers(kind, dtype, zeros):
    """With and without zeros among them, of which the negative one is less."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 32)).astype(dtype)
    if zeros:
        a[:4], b[:4] = (0.0, -0.0, 0.0, -0.0), (-0.0, 0.0, 0.0, -0.0)
    width = f"b{8 * a.itemsize}"
    bits = [x.view(f"u{a.itemsize}") for x in (a, b)]

    def ordered(x, y):  # as (number, sign), which tells -0 from +0
        return (x, not np.signbit(x)) < (y, not np.signbit(y))

    for name in ("min", "max"):
        got = execute(f"{name}.{kind}", [width], [width] * 2, *bits)
        want = [x if ordered(x, y) == (name == "min") else y for x, y in zip(a, b)]
        np.testing.assert_array_equal(got, np.array(want, dtype).view(bits[0].dtype))
