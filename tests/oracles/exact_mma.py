"""The tensor core's arithmetic once more, on Fractions and one output element at a time.

Written from the description of the hardware (facts sheet section 3.5, MMA-Sim arXiv 2511.10909)
without numpy and without the emulator's tables, so that the two can be held against each other.
"""

from __future__ import annotations

from fractions import Fraction

NAN = 0x7FFFFFFF
E2M1 = [Fraction(v) / 2 for v in (0, 1, 2, 3, 4, 6, 8, 12)]
ZERO_EXPONENT = -126


def two(e: int) -> Fraction:
    return Fraction(2) ** e


def exponent(x: Fraction, least: int) -> int:
    """floor(log2 |x|), at least `least`; -126 for zero."""
    if x == 0:
        return ZERO_EXPONENT
    n, d = abs(x.numerator), x.denominator
    e = n.bit_length() - d.bit_length()
    if two(e) > abs(x):
        e -= 1
    return max(e, least)


def e2m1(code: int) -> Fraction:
    return -E2M1[code & 7] if code & 8 else E2M1[code]


def ue4m3(code: int) -> Fraction | None:
    """None for NaN; the sign bit does not count."""
    field, fraction = code >> 3 & 15, code & 7
    if field == 15 and fraction == 7:
        return None
    return Fraction(fraction + (8 if field else 0), 8) * two(max(field, 1) - 7)


def ue8m0(code: int) -> Fraction | None:
    return None if code == 255 else two(code - 127)


def f32(bits: int) -> Fraction | None:
    """None for infinity and NaN."""
    field, fraction = bits >> 23 & 255, bits & 0x7FFFFF
    if field == 255:
        return None
    value = Fraction(fraction + (1 << 23 if field else 0)) * two(max(field, 1) - 150)
    return -value if bits >> 31 else value


def f32_towards_zero(x: Fraction) -> int:
    """Bits of x cut off to fp32; infinity from 2^128 on."""
    if x == 0:
        return 0
    e = exponent(x, -126)
    if e > 127:
        magnitude = 0x7F800000
    else:
        quanta = int(abs(x) / two(e - 23))
        magnitude = quanta if quanta < 1 << 23 else (e + 126 << 23) + quanta
    return magnitude | (1 << 31 if x < 0 and magnitude else 0)


def f16_nearest_even(x: Fraction) -> int:
    e = exponent(x, -14)
    if x == 0:
        return 0
    quanta = round(abs(x) / two(e - 10))  # round() on a Fraction is half to even
    magnitude = min(quanta if e == -14 else (e + 14 << 10) + quanta, 0x7C00)
    return magnitude | (1 << 15 if x < 0 and magnitude else 0)


def aligned_sum(terms: list[tuple[Fraction, int]], fraction_bits: int) -> Fraction:
    """Sum of (value, exponent), each cut off below the largest exponent."""
    unit = two(max(e for _, e in terms) - fraction_bits)
    total = 0
    for value, _ in terms:
        cut = int(abs(value) / unit)
        total += -cut if value < 0 else cut
    return total * unit


def fp4_element(a, sfa, b, sfb, c_bits: int, sf) -> int:
    """64 nibbles of a row of A and of B, 4 scale codes each, fp32 bits of C -> fp32 bits of D.

    sf: ue4m3 or ue8m0.
    """
    least = -6 if sf is ue4m3 else -127
    c = f32(c_bits)
    scales = [(sf(x), sf(y)) for x, y in zip(sfa, sfb)]
    if any(x is None or y is None for x, y in scales):
        return NAN
    if c is None:
        return NAN if c_bits & 0x7FFFFF else c_bits
    terms = [(c, exponent(c, -126))]
    for g, (x, y) in enumerate(scales):
        group = slice(16 * g, 16 * g + 16)
        dot = sum(e2m1(p) * e2m1(q) for p, q in zip(a[group], b[group]))
        terms.append((dot * x * y, exponent(x, least) + exponent(y, least)))
    return f32_towards_zero(aligned_sum(terms, 35))


def product_sum(a, b, c: Fraction, c_least: int, a_least: int, b_least: int, scale=0) -> Fraction:
    """Rows of A and B as Fractions; `scale`: the sum of the exponents of their ue8m0 scales."""
    terms = [(c, exponent(c, c_least))]
    for x, y in zip(a, b):
        terms.append((x * y * two(scale), exponent(x, a_least) + exponent(y, b_least) + scale))
    return aligned_sum(terms, 25)
