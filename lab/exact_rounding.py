"""Rounding of exact rationals to binary formats, by integer arithmetic alone."""

from __future__ import annotations

import math
from fractions import Fraction

# name: (bits, mantissa bits, bias)
FORMATS = {"f16": (16, 10, 15), "bf16": (16, 7, 127), "f32": (32, 23, 127), "f64": (64, 52, 1023)}


def parts(name: str) -> tuple[int, int, int, int]:
    bits, mantissa, bias = FORMATS[name]
    return bits, mantissa, bias, ((1 << (bits - 1 - mantissa)) - 1) << mantissa


def value(pattern: int, name: str) -> Fraction | None:
    """The number a pattern stands for; None for infinities and NaNs."""
    bits, mantissa, bias, infinity = parts(name)
    magnitude = pattern & ((1 << (bits - 1)) - 1)
    if magnitude >= infinity:
        return None
    field, fraction = magnitude >> mantissa, magnitude & ((1 << mantissa) - 1)
    significand = fraction + (1 << mantissa if field else 0)
    x = Fraction(significand) * Fraction(2) ** (max(field, 1) - bias - mantissa)
    return -x if pattern >> (bits - 1) else x


def special(x: float, name: str) -> int:
    """Pattern of an infinity, a NaN or a zero of either sign."""
    bits, mantissa, _, infinity = parts(name)
    if math.isnan(x):
        return infinity | 1 << (mantissa - 1)
    sign = 1 << (bits - 1) if math.copysign(1.0, x) < 0 else 0
    return sign | (infinity if math.isinf(x) else 0)


def nearest(x: Fraction, name: str, mode: str = "rn", negative_zero: bool = False) -> int:
    """Pattern of x rounded in mode rn, rz, rm or rp; `negative_zero`: the sign where x == 0."""
    bits, mantissa, bias, infinity = parts(name)
    sign = 1 << (bits - 1)
    if x == 0:
        return sign if negative_zero else 0
    negative, x = x < 0, abs(x)
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** exponent > x:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    scaled = x / Fraction(2) ** (exponent - mantissa)
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    away = mode == ("rm" if negative else "rp")
    if rest and (
        away or (mode == "rn" and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1)))
    ):
        whole += 1
    pattern = ((exponent + bias - 1) << mantissa) + whole  # a carry moves on to the next exponent
    if pattern >= infinity:
        pattern = infinity if mode == "rn" or away else infinity - 1
    return pattern | sign if negative else pattern
