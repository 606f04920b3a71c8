"""fp64 arithmetic that the host's float64 lacks, by exact rationals: fma, directed rounding.

It goes lane by lane and is slow; kernels use it rarely. Operations that the host rounds to nearest
use the host's arithmetic.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np

NATIVE = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
}


def directed64(op: str, mode: str) -> Callable:
    """A function of uint64 patterns for add, sub, mul, div, rcp, sqrt, fma or mad, rounded so."""
    if mode == "rn" and op in NATIVE:
        native = NATIVE[op]
        return lambda *args: native(*(a.view(np.float64) for a in args)).view(np.uint64)
    lane = _LANES["fma" if op == "mad" else op]

    def run(*args):
        rows = zip(*(a.view(np.float64).tolist() for a in args))
        return np.array([lane(mode, *row) for row in rows], np.float64).view(np.uint64)

    return run


def _nearest(x: Fraction) -> float:
    try:
        return float(x)  # a quotient of integers is rounded to nearest even, once
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _step(r: float, comparison: int, mode: str) -> float:
    """From the nearest number r to the directed one; comparison: sign of exact - r."""
    if mode == "rz":
        if r == 0:
            return r
        mode = "rm" if r > 0 else "rp"
    if mode == "rp" and comparison > 0:
        return math.nextafter(r, math.inf)
    if mode == "rm" and comparison < 0:
        return math.nextafter(r, -math.inf)
    return r


def _compare(x: Fraction, r: float) -> int:
    if math.isinf(r):
        return -1 if r > 0 else 1
    return (x > Fraction(r)) - (x < Fraction(r))


def _round(x: Fraction, mode: str, negative_zero: bool) -> float:
    """An exact value as float64; a zero that stands for it gets the sign asked for."""
    if x == 0:
        return -0.0 if negative_zero else 0.0
    sign = 1 if x > 0 else -1
    r = math.copysign(_nearest(x), sign)
    return r if mode == "rn" else math.copysign(_step(r, _compare(x, r), mode), sign)


def _fma(mode: str, a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    if not math.isfinite(c):
        return c + 0.0
    minus = (math.copysign(1, a) * math.copysign(1, b)) < 0, math.copysign(1, c) < 0
    exact_zero = all(minus) if a == 0 or b == 0 or c == 0 else False
    if mode == "rm" and any(minus):
        exact_zero = True
    return _round(Fraction(a) * Fraction(b) + Fraction(c), mode, exact_zero)


def _mul(mode: str, a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return float(np.float64(a) * np.float64(b))
    minus = (math.copysign(1, a) * math.copysign(1, b)) < 0
    return _round(Fraction(a) * Fraction(b), mode, minus)


def _div(mode: str, a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or b == 0:
        return float(np.float64(a) / np.float64(b))
    minus = (math.copysign(1, a) * math.copysign(1, b)) < 0
    return _round(Fraction(a) / Fraction(b), mode, minus)


def _sqrt(mode: str, a: float) -> float:
    r = float(np.sqrt(np.float64(a)))
    if not math.isfinite(r) or a == 0:
        return r
    square = Fraction(r) ** 2
    return _step(r, (Fraction(a) > square) - (Fraction(a) < square), mode)


_LANES = {
    "fma": _fma,
    "add": lambda mode, a, b: _fma(mode, a, 1.0, b),
    "sub": lambda mode, a, b: a - b if math.isnan(b) else _fma(mode, a, 1.0, -b),
    "mul": _mul,
    "div": _div,
    "rcp": lambda mode, a: _div(mode, 1.0, a),
    "sqrt": _sqrt,
}
