"""Floating-point registers: formats, rounding, flushing, clamping of arrays of bit patterns.

Results are rounded once. Values of fp16, bf16 and fp32 are computed in float64, and where float64
is not exact it holds the result *rounded to odd*: truncated, its last bit set if anything was cut
off. Rounding that to a format with at least two bits less, in any direction, equals rounding the
exact value (Boldo and Melquiond, "When double rounding is odd", 2005).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Float:
    """A binary format: bits of a register, numpy types of values (None: bf16) and patterns.

    nan is the canonical NaN that instructions produce (PTX ISA 9.7.3: fp32 NaNs are 0x7fffffff).
    """

    name: str
    bits: int
    dtype: type[np.floating[Any]] | None
    bits_dtype: type[np.unsignedinteger[Any]]
    signed_dtype: type[np.signedinteger[Any]]
    infinity: int
    nan: int
    one: int

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def minimum_normal(self) -> int:
        """Pattern of the least normal number: the exponent field holds 1."""
        return self.infinity & -self.infinity

    def native(self, u: np.ndarray) -> np.ndarray:
        """Patterns as a numpy float array that holds them exactly."""
        if self.dtype is not None:
            return u.view(self.dtype)
        return (u.astype(np.uint32) << 16).view(np.float32)

    def decode(self, u: np.ndarray) -> np.ndarray:
        """Patterns as float64."""
        return self.native(u).astype(np.float64)


FLOATS = {
    "f16": Float("f16", 16, np.float16, np.uint16, np.int16, 0x7C00, 0x7FFF, 0x3C00),
    "bf16": Float("bf16", 16, None, np.uint16, np.int16, 0x7F80, 0x7FFF, 0x3F80),
    "f32": Float("f32", 32, np.float32, np.uint32, np.int32, 0x7F800000, 0x7FFFFFFF, 0x3F800000),
    "f64": Float(
        "f64", 64, np.float64, np.uint64, np.int64, 0x7FF << 52, 0xFFF8 << 48, 0x3FF << 52
    ),
}
F16_MAGNITUDE, F16_INFINITY = np.uint16(0x7FFF), np.uint16(0x7C00)
PACKED = ("f16x2", "bf16x2", "f32x2")


OfArrays = Callable[..., np.ndarray]  # as many arrays of patterns as its instruction has operands


@lru_cache(maxsize=256)
def _zeros(dtype: type[np.generic], size: int) -> np.ndarray:
    return np.zeros(size, dtype)


def scalar_kind(kind: str) -> str:
    return kind.removesuffix("x2")


def lift(kind: str, function: OfArrays) -> OfArrays:
    """A function on registers, from a function on arrays of elements. A packed type is taken apart
    into its halves.
    """
    if not kind.endswith("x2"):
        return function
    part = FLOATS[scalar_kind(kind)].bits_dtype
    whole = np.uint64 if part is np.uint32 else np.uint32

    def packed(*args: np.ndarray) -> np.ndarray:
        return function(*(a.view(part) for a in args)).view(whole)

    return packed


# --- on patterns ----------------------------------------------------------------------------------


def flush(u: np.ndarray, form: Float) -> np.ndarray:
    """.ftz: subnormals become zero of the same sign."""
    normal = u & form.infinity
    if np.count_nonzero(normal) == u.size:  # the usual case, and half the price
        return u
    return np.where(normal, u, u & form.sign)


def saturate(u: np.ndarray, form: Float) -> np.ndarray:
    """.sat: clamp to [0, 1], NaN to 0. Patterns of numbers >= 0 are ordered like the numbers."""
    return np.where(u <= form.infinity, np.minimum(u, form.one), form.bits_dtype(0))


def rectify(u: np.ndarray, form: Float) -> np.ndarray:
    """.relu: negative results become 0; NaN stays the canonical NaN."""
    return np.where((u & form.sign != 0) & ~is_nan(u, form), form.bits_dtype(0), u)


def clamp_finite(u: np.ndarray, form: Float) -> np.ndarray:
    """.satfinite: infinities become the largest finite number of their sign."""
    return np.where(u & (form.sign - 1) == form.infinity, u - form.bits_dtype(1), u)


def is_nan(u: np.ndarray, form: Float) -> np.ndarray:
    return u & (form.sign - 1) > form.infinity


def all_finite(r: np.ndarray) -> bool:
    """Whether no NaN and no infinity is in a native float array. x * 0 is 0 of all else, and one
    dot product is the quickest look at all elements, but for fp16, which numpy multiplies slowly.
    """
    if r.dtype == np.float16:
        return bool(np.maximum.reduce(r.view(np.uint16) & F16_MAGNITUDE) < F16_INFINITY)
    return bool(r.dot(_zeros(r.dtype.type, r.size)) == 0)


def canonical(r: np.ndarray, form: Float) -> np.ndarray:
    """A native float array as patterns with canonical NaNs (fp64 keeps what the host computes)."""
    u = r.view(form.bits_dtype)
    if form.bits == 64 or all_finite(r):
        return u
    return np.where(np.isnan(r), form.bits_dtype(form.nan), u)


def order_key(u: np.ndarray, form: Float) -> np.ndarray:
    """Signed integers in the order of the numbers, -0 below +0."""
    s = u.view(form.signed_dtype)
    return s ^ (s >> (form.bits - 1) & (form.sign - 1))


# --- rounding -------------------------------------------------------------------------------------


def to_odd(s: np.ndarray, above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Round to odd: s is the nearest number; the exact value is above it, below it, or equal."""
    even, infinity = s.view(f"u{s.itemsize}") & 1 == 0, s.dtype.type(np.inf)
    s = np.where(above & even, np.nextafter(s, infinity), s)
    return np.where(below & even, np.nextafter(s, -infinity), s)


def sum_error(x: np.ndarray, y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """x + y - s exactly, s the float64 sum (Knuth's two-sum; NaN where s is not finite)."""
    z = s - x
    return (x - (s - z)) + (y - z)


def add_odd(x: np.ndarray, y: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float64 sum rounded to odd; the sign of an exact zero follows the rounding mode."""
    s = x + y
    error = sum_error(x, y, s)
    if np.count_nonzero(error):
        s = to_odd(s, error > 0, error < 0)
    if mode == "rm":
        s = np.where((s == 0) & (np.signbit(x) | np.signbit(y)), -0.0, s)
    return s


def correct(r: np.ndarray, above: np.ndarray, below: np.ndarray, mode: str) -> np.ndarray:
    """Turn r, rounded to nearest, into a value rounded in a directed mode. above, below: whether
    the exact value is above or below r.
    """
    dtype = r.dtype.type
    if mode == "rz":
        inward = np.where(np.signbit(r), above, below)
        return np.where(inward, np.nextafter(r, dtype(0)), r)
    if mode == "rp":
        return np.where(above, np.nextafter(r, dtype(np.inf)), r)
    return np.where(below, np.nextafter(r, dtype(-np.inf)), r)


def encode(x: np.ndarray, form: Float, mode: str = "rn") -> np.ndarray:
    """float64 values, exact or rounded to odd, as patterns of a narrower format."""
    if form.dtype is None:
        return _encode_bf16(x, form, mode)
    r = x.astype(form.dtype)
    if mode != "rn":
        back = r.astype(np.float64)
        r = correct(r, x > back, x < back, mode)
    return canonical(r, form)


def _encode_bf16(x: np.ndarray, form: Float, mode: str) -> np.ndarray:
    """bf16 is the upper half of fp32: rounded to odd there first, then cut."""
    r = x.astype(np.float32)
    back = r.astype(np.float64)
    r = to_odd(r, x > back, x < back)
    u = r.view(np.uint32)
    if mode == "rn":
        u = u + (0x7FFF + (u >> 16 & 1))
    elif mode != "rz":
        away = np.signbit(r) if mode == "rm" else ~np.signbit(r)
        u = u + np.where(away & np.isfinite(r), np.uint32(0xFFFF), np.uint32(0))
    return np.where(np.isnan(x), np.uint16(form.nan), (u >> 16).astype(np.uint16))
