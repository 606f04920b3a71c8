"""e2m1 and e4m3 as exact rationals, from the tables of the formats' documents."""

from __future__ import annotations

from fractions import Fraction


def e2m1(code: int) -> Fraction:
    """OCP MX: sign, two exponent bits with bias 1, one mantissa bit, subnormals."""
    exponent, mantissa = code >> 1 & 3, code & 1
    magnitude = (
        Fraction(mantissa, 2) if exponent == 0 else Fraction(2 + mantissa, 2) * 2 ** (exponent - 1)
    )
    return -magnitude if code & 8 else magnitude


def e4m3(code: int) -> Fraction:
    """OCP FP8: four exponent bits with bias 7, three mantissa bits, subnormals; 0x7f is NaN."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return Fraction(mantissa, 8) / 2**6
    return Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
