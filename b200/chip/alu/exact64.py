"""fp64 arithmetic that the host's float64 lacks: fma, directed rounding.

An fma to nearest takes all lanes at once, by sums whose error is known. The rest goes lane by lane,
by exact rationals, and is slow; kernels use it rarely. Operations that the host rounds to nearest
use the host's arithmetic.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np

NATIVE: dict[str, Callable[..., np.ndarray]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}


def directed64(op: str, mode: str) -> Callable[..., np.ndarray]:
    """A function of uint64 patterns for add, sub, mul, div, rcp, sqrt, fma or mad, rounded so."""
    if mode == "rn" and op in NATIVE:
        native = NATIVE[op]
        return lambda *args: native(*(a.view(np.float64) for a in args)).view(np.uint64)
    if mode == "rn" and op in ("fma", "mad"):
        return lambda *args: _fma_nearest(*(a.view(np.float64) for a in args)).view(np.uint64)
    lane = _LANES["fma" if op == "mad" else op]

    def run(*args: np.ndarray) -> np.ndarray:
        rows = zip(*(a.view(np.float64).tolist() for a in args))
        return np.array([lane(mode, *row) for row in rows], np.float64).view(np.uint64)

    return run


# Of the factors and the summand, so that no part of a product or sum over- or underflows.
_LOW, _HIGH, _MOST = 2.0**-400, 2.0**400, 2.0**900
_SPLIT = 2.0**27 + 1  # halves a number of 53 bits


def _fma_nearest(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c, rounded once. Source: S. Boldo, G. Melquiond, Emulation of a FMA and correctly
    rounded sums: proved algorithms using rounding to odd, IEEE Trans. Comput. 57 (2008), figure 4.
    """
    with np.errstate(all="ignore"):
        size = np.minimum(abs(a), abs(b)), np.maximum(abs(a), abs(b))
        plain = (size[0] >= _LOW) & (size[1] <= _HIGH) & (abs(c) <= _MOST)
        high, low = _product(a, b)
        top, rest = _sum(c, low)
        high, middle = _sum(high, top)
        found = high + _to_odd(*_sum(rest, middle))
    if not plain.all():
        for i in np.flatnonzero(~plain):
            found[i] = _fma("rn", float(a[i]), float(b[i]), float(c[i]))
    return found


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a b, and the error of that (Dekker)."""
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    high = a * b
    return high, a2 * b2 - (((high - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = a * _SPLIT
    first = scaled - (scaled - a)
    return first, a - first


def _sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b, and the error of that (Knuth)."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


def _to_odd(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """high + low, where low is the error of high: if not exact, the neighbour that is odd."""
    bits = high.view(np.int64)
    away = np.where((low > 0) == (high > 0), 1, -1)
    return np.where((low != 0) & (bits & 1 == 0), bits + away, bits).view(np.float64)


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


def _add(mode: str, a: float, b: float) -> float:
    return _fma(mode, a, 1.0, b)


def _sub(mode: str, a: float, b: float) -> float:
    return a - b if math.isnan(b) else _fma(mode, a, 1.0, -b)


def _rcp(mode: str, a: float) -> float:
    return _div(mode, 1.0, a)


_LANES: dict[str, Callable[..., float]] = {
    "fma": _fma,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "rcp": _rcp,
    "sqrt": _sqrt,
}
