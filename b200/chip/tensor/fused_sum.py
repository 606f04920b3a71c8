"""The exact arithmetic of one tensor-core instruction, element by element of D.

The model is that of MMA-Sim (Microsoft, arXiv 2511.10909), which claims bit accuracy on a B200:
the terms of an output element (products, and the accumulator) are aligned to the largest of their
exponents, cut off towards zero a fixed number of bits below it, summed exactly, and the sum is
rounded once. A term's exponent is the sum of the exponents of its factors, before any carry;
a subnormal factor has the least normal exponent of its format, a zero counts as 2^-126.

tensor_core.py has the faster ways to the same bits, and says when they apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ZERO_EXPONENT = -126
NAN_F32 = np.uint32(0x7FFFFFFF)
NAN_F16 = np.uint16(0x7FFF)


@dataclass(frozen=True, eq=False)
class Workspace:
    """Arrays [M, N] that every instruction of that shape uses again.

    The system gives fresh arrays of this size as untouched pages each time, and the page faults
    cost more than the arithmetic. What a function leaves here is valid until the next call.
    """

    total: np.ndarray
    c: np.ndarray
    x: np.ndarray
    y: np.ndarray
    top: np.ndarray
    pair: np.ndarray
    bits: np.ndarray
    cells: np.ndarray
    flags: np.ndarray


@lru_cache(maxsize=32)
def workspace(m: int, n: int) -> Workspace:
    types = (*(np.float64,) * 4, np.int16, np.int16, np.uint32, np.float32, bool)
    return Workspace(*(np.empty((m, n), t) for t in types))


def exponents(x: np.ndarray, least: int) -> np.ndarray:
    """Exponents of finite float64 values of a format whose least normal exponent is `least`."""
    found = (x.view(np.int64) >> 52 & 0x7FF).astype(np.int32)
    found -= 1023
    np.maximum(found, least, out=found)
    if least != ZERO_EXPONENT:
        found[x == 0] = ZERO_EXPONENT
    return found


def power(e: np.ndarray) -> np.ndarray:
    """2.0 ** e for integers in the range of normal float64."""
    return (e.astype(np.int64) + 1023 << 52).view(np.float64)


def fused_sum(
    terms: Iterable[np.ndarray],
    ea: np.ndarray,
    eb: np.ndarray,
    c: np.ndarray,
    ec: np.ndarray,
    fraction_bits: int,
) -> np.ndarray:
    """c + sum of terms, each cut off at `fraction_bits` below the largest exponent; float64 [M, N].

    terms: K arrays [M, N], exact values, overwritten; ea [M, K], eb [N, K]: the exponent of term k
    is ea[m, k] + eb[n, k]; c, ec [M, N]: accumulator and its exponent. The sum is exact: terms are
    below 2^12 times the largest exponent, so it needs fewer than 53 bits. The result lies in the
    workspace.
    """
    space = workspace(*c.shape)
    top = space.top
    top[...] = ec
    ea, eb = (np.ascontiguousarray(e.T, np.int16) for e in (ea, eb))
    for a, b in zip(ea, eb, strict=True):
        np.maximum(top, np.add.outer(a, b, out=space.pair), out=top)
    scale, total = power(fraction_bits - top), space.total
    np.trunc(np.multiply(c, scale, out=total), out=total)
    for term in terms:
        np.multiply(term, scale, out=term)
        np.trunc(term, out=term)
        total += term
    total *= power(top - fraction_bits)
    return total


def products(a: np.ndarray, b: np.ndarray) -> Iterable[np.ndarray]:
    """The terms a[m, k] * b[n, k] of a plain kind, one array [M, N] for each k."""
    space = workspace(len(a), len(b)).x
    for x, y in zip(np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), strict=True):
        yield np.multiply.outer(x, y, out=space)


def block_products(
    a: np.ndarray, b: np.ndarray, sa: np.ndarray, sb: np.ndarray
) -> Iterable[np.ndarray]:
    """The terms of a block-scaled fp4 kind: the exact dot product of 16 elements, times its scales.

    a [M, K], b [N, K]; sa [M, K / 16], sb [N, K / 16].
    """
    space = workspace(len(a), len(b))
    for g in range(sa.shape[1]):
        group = slice(16 * g, 16 * g + 16)
        dot = np.matmul(a[:, group], b[:, group].T, out=space.x)
        dot *= np.multiply.outer(sa[:, g], sb[:, g], out=space.y)
        yield dot


def round_f32(x: np.ndarray) -> np.ndarray:
    """Bit patterns uint32 of float64 values rounded towards zero to fp32.

    Magnitudes from 2^128 on become infinity, NaN 0x7FFFFFFF, and a zero is always positive.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        nearest = x.astype(np.float32)
        magnitude = np.abs(x)
        away = (np.abs(nearest) > magnitude) & (magnitude < 2.0**128)
    bits = nearest.view(np.uint32) - away
    bits = bits.astype(np.uint32)
    bits[bits == 0x80000000] = 0
    bits[np.isnan(x)] = NAN_F32
    return bits


def round_f16(x: np.ndarray) -> np.ndarray:
    """Bit patterns uint16 of float64 values rounded to nearest even to fp16."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        bits = x.astype(np.float16).view(np.uint16)
    bits[bits == 0x8000] = 0
    bits[np.isnan(x)] = NAN_F16
    return bits
