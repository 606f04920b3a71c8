"""Arithmetic and conversions with a rounding mode, by exact rationals; IEEE 754, PTX ISA `cvt`."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np

from lab import exact_rounding
from lab.headers.judge import Expected, Words, is_nan, kind_of
from lab.headers.programs import Call
from lab.headers.values import FLOATS, floats, integers

MODES = {"rn": "rn", "rz": "rz", "ru": "rp", "rd": "rm"}
_ARITHMETIC = re.compile(
    r"__(?:(?P<single>f)|(?P<double>d))?(?P<what>add|sub|mul|maf|maf_ieee|ma|fma|rcp|sqrt|rsqrt|div)"
    r"(?P<pair>2)?_(?P<mode>r[nzud])$"
)
_BY_MODE = re.compile(
    r"(?:d?(?P<what>mul|add|sub|fma)|(?:double|float|u?int|u?ll)2(?P<to>double|float|u?int|u?ll))$"
)
_SOURCES = "half|bfloat16|float|double|int|uint|ll|ull|short|ushort|char|uchar"
_CONVERTED = re.compile(rf"__(?P<of>{_SOURCES})2(?P<to>{_SOURCES})(?:_(?P<mode>r[nzud]))?$")


def _sticky_root(x: Fraction, inverse: bool) -> Fraction:
    """sqrt(x) or 1 / sqrt(x) to 200 bits, with a bit below where it is not exact."""
    x = 1 / x if inverse else x
    shift = 400 + 2 * max(0, x.denominator.bit_length() - x.numerator.bit_length())
    scaled = (x.numerator << shift) // x.denominator
    root = math.isqrt(scaled)
    exact = root * root == scaled and (x.numerator << shift) % x.denominator == 0
    return Fraction(2 * root + (not exact), 1 << shift // 2 + 1)


def _special(what: str, operands: list[float]) -> float:
    """The result where an operand is no finite number, or a divisor is zero."""
    a, b, c = (*map(np.float64, operands), np.float64(0), np.float64(0))[:3]
    with np.errstate(all="ignore"):
        if what in ("maf", "maf_ieee", "ma", "fma"):
            return float(c if np.isfinite(a) and np.isfinite(b) else a * b + c)
        found = {
            "add": lambda: a + b,
            "sub": lambda: a - b,
            "mul": lambda: a * b,
            "div": lambda: a / b,
            "rcp": lambda: 1 / a,
            "sqrt": lambda: np.sqrt(a),
            "rsqrt": lambda: 1 / np.sqrt(a),
        }
        return float(found[what]())


def computed(what: str, operands: list[float], kind: str, mode: str) -> int:
    negative = [math.copysign(1.0, x) < 0 for x in operands]
    bad = not all(map(math.isfinite, operands))
    bad |= what in ("div", "rcp", "rsqrt") and operands[-1] == 0
    bad |= what in ("sqrt", "rsqrt") and operands[0] < 0
    if bad:
        return exact_rounding.special(_special(what, operands), kind)
    a, *rest = map(Fraction, operands)
    zero_sign = mode == "rm"
    if what in ("add", "sub"):
        exact = a + rest[0] if what == "add" else a - rest[0]
        signs = (negative[0], negative[1] ^ (what == "sub"))
        zero_sign = signs[0] if signs[0] == signs[1] else zero_sign
    elif what in ("mul", "div"):
        exact = a * rest[0] if what == "mul" else a / rest[0]
        zero_sign = negative[0] ^ negative[1]
    elif what in ("maf", "maf_ieee", "ma", "fma"):
        exact = a * rest[0] + rest[1]
        signs = (negative[0] ^ negative[1], negative[2])
        zero_sign = signs[0] if signs[0] == signs[1] else zero_sign
    elif what == "rcp":
        exact = 1 / a
    elif a == 0:
        exact, zero_sign = a, negative[0]
    else:
        exact = _sticky_root(a, what == "rsqrt")
    return exact_rounding.nearest(exact, kind, mode, zero_sign)


def arithmetic(
    call: Call, given: Words, what: str, mode: str, count: int | None = None
) -> Expected:
    """An operation on all parameters, or on the first `count`."""
    kind, names = kind_of(call, "r"), [f"p{n}" for n in range(len(call.function.parameters))]
    columns = [floats(given[p], kind_of(call, p).kind).reshape(-1) for p in names[:count]]
    rows = (list(map(float, row)) for row in zip(*columns, strict=True))
    words = kind.words(computed(what, row, kind.kind, mode) for row in rows)
    return Expected({"r": words}, "exact rationals")


def to_integer(x: float, mode: str, bits: int, signed: bool, from_double: bool) -> int:
    """PTX `cvt`: rounds, then clamps; of NaN zero, or the middle where 64 bits take part."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if math.isnan(x):
        return -(1 << bits - 1) if from_double or bits == 64 else 0
    if math.isinf(x):
        return high if x > 0 else low
    whole = {"rn": round, "rz": math.trunc, "rp": math.ceil, "rm": math.floor}[mode](Fraction(x))
    return min(max(whole, low), high)


def _conversion(call: Call, given: Words, mode: str) -> Expected | None:
    source, target = kind_of(call, "p0"), kind_of(call, "r")
    if source.count != 1 or target.count != 1:
        return None
    whole = source.kind[0] in "iu"
    if whole and target.kind[0] in "iu":
        return None
    bits = target.word.itemsize * 8
    if whole:
        values = integers(given["p0"], source.kind)[:, 0]
        found = [exact_rounding.nearest(Fraction(v), target.kind, mode) for v in values]
    elif target.kind in FLOATS:
        values = floats(given["p0"], source.kind)[:, 0]
        found = [
            exact_rounding.nearest(Fraction(v), target.kind, mode, math.copysign(1, v) < 0)
            if math.isfinite(v)
            else exact_rounding.special(v, target.kind)
            for v in map(float, values)
        ]
    else:
        double, signed = source.kind == "f64", target.kind[0] == "i"
        values = map(float, floats(given["p0"], source.kind)[:, 0])
        found = [to_integer(v, mode, bits, signed, double) for v in values]
    return Expected({"r": target.words(found)}, "exact rationals")


def _by_mode(call: Call, given: Words, match: re.Match[str]) -> Expected | None:
    """The functions whose last parameter is a cudaRoundMode: one row of each mode."""
    last = len(call.function.parameters) - 1
    modes, merged = given[f"p{last}"][:, 0], None
    for number, mode in enumerate(("rn", "rz", "rp", "rm")):
        if match["to"]:
            one = _conversion(call, given, mode)
        else:
            one = arithmetic(call, given, match["what"], mode, last)
        if one is None:
            return None
        merged = one.words["r"].copy() if merged is None else merged
        merged[modes == number] = one.words["r"][modes == number]
    return None if merged is None else Expected({"r": merged}, "exact rationals")


def expected(call: Call, given: Words) -> Expected | None:
    name = call.function.name
    if match := _ARITHMETIC.match(name):
        if kind_of(call, "r").kind in FLOATS:
            return arithmetic(call, given, match["what"], MODES[match["mode"]])
    if any(p.type == "cudaRoundMode" for p in call.function.parameters):
        match = _BY_MODE.match(name)
        return _by_mode(call, given, match) if match else None
    if name in ("fma", "fmaf", "fdivide"):
        return arithmetic(call, given, "div" if name == "fdivide" else "fma", "rn")
    if match := _CONVERTED.match(name):
        return _conversion(call, given, MODES[match["mode"] or "rn"])
    if name == "__saturatef":
        values = floats(given["p0"], "f32")
        clamped = np.where(is_nan(given["p0"], "f32"), 0, np.clip(values, 0, 1)) + 0.0
        return Expected({"r": clamped.astype(np.float32).view(np.uint32)}, "PTX ISA")
    if name in ("__double2hiint", "__double2loint"):
        shift = np.uint64(32 if name == "__double2hiint" else 0)
        return Expected({"r": (given["p0"] >> shift).astype(np.uint32)}, "the same bits")
    if name == "__hiloint2double":
        high, low = given["p0"].astype(np.uint64), given["p1"].astype(np.uint64)
        return Expected({"r": high << np.uint64(32) | low}, "the same bits")
    return None
