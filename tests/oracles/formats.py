"""Small floating-point formats as exact rationals, from the tables of the formats' documents."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

# (exponent bits, mantissa bits, bias, number of finite magnitudes): PTX ISA 5.2.3, OCP MX 1.0.
SMALL = {
    "e2m1": (2, 1, 1, 8),
    "e2m3": (2, 3, 1, 32),
    "e3m2": (3, 2, 3, 32),
    "e4m3": (4, 3, 7, 127),
    "e5m2": (5, 2, 15, 124),
}


@cache
def magnitudes(fmt: str) -> tuple[Fraction, ...]:
    """Finite magnitudes of a format of SMALL in order of their code."""
    _, mantissa, bias, count = SMALL[fmt]
    found = []
    for code in range(count):
        field, fraction = divmod(code, 1 << mantissa)
        whole = fraction + (1 << mantissa if field else 0)
        found.append(Fraction(whole) * Fraction(2) ** (max(field, 1) - bias - mantissa))
    return tuple(found)


def nearest_code(x: Fraction, values: Sequence[Fraction]) -> int:
    """Code of the value nearest to x >= 0; of two equally near ones the even code."""
    return min(range(len(values)), key=lambda code: (abs(values[code] - x), code % 2))


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
