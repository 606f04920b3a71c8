"""Number formats of the tensor core and of the cvt instructions (PTX ISA 5.2.3, OCP MX 1.0).

    decode(bits, fmt)                                      bit patterns -> float64
    encode(values, fmt, saturate=True, rounding="rn")      values -> bit patterns
    stochastic(values, fmt, random)                        values -> values of the format

One value per element: packing two e2m1 in a byte is the business of whoever packs. `bits` wider
than the format are cut to its width. Formats: e2m1, e2m3, e3m2, e4m3, e5m2, ue4m3, ue8m0, f16,
bf16, tf32, f32. A tf32 value is held in 32 bits, like fp32, whose low 13 bits do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    width: bits an element is held in.
    exponent, mantissa, bias: field widths and the bias of the exponent.
    max_code: code of the largest finite magnitude.
    nan: canonical NaN, None where the format has none (encode then gives +max_code, PTX ISA
        cvt.satfinite).
    inf: code of infinity, or None.
    signed: has a sign bit above the exponent.
    pad: bits below the mantissa that do not count.
    """

    width: int
    exponent: int
    mantissa: int
    bias: int
    max_code: int
    nan: int | None = None
    inf: int | None = None
    signed: bool = True
    pad: int = 0

    @property
    def dtype(self) -> type[np.uint8 | np.uint16 | np.uint32]:
        return np.uint8 if self.width <= 8 else np.uint16 if self.width <= 16 else np.uint32

    @property
    def sign(self) -> int:
        """The sign bit, as a mask in units of the code without padding; 0 if unsigned."""
        return 1 << (self.exponent + self.mantissa) if self.signed else 0


FORMATS = {
    "e2m1": Format(4, 2, 1, 1, max_code=0x7),
    "e2m3": Format(6, 2, 3, 1, max_code=0x1F),
    "e3m2": Format(6, 3, 2, 3, max_code=0x1F),
    "e4m3": Format(8, 4, 3, 7, max_code=0x7E, nan=0x7F),
    "e5m2": Format(8, 5, 2, 15, max_code=0x7B, nan=0x7F, inf=0x7C),
    "ue4m3": Format(8, 4, 3, 7, max_code=0x7E, nan=0x7F, signed=False),
    "ue8m0": Format(8, 8, 0, 127, max_code=0xFE, nan=0xFF, signed=False),
    "f16": Format(16, 5, 10, 15, max_code=0x7BFF, nan=0x7FFF, inf=0x7C00),
    "bf16": Format(16, 8, 7, 127, max_code=0x7F7F, nan=0x7FFF, inf=0x7F80),
    "tf32": Format(32, 8, 10, 127, max_code=0x3FBFF, nan=0x3FFFF, inf=0x3FC00, pad=13),
    "f32": Format(32, 8, 23, 127, max_code=0x7F7FFFFF, nan=0x7FFFFFFF, inf=0x7F800000),
}


@cache
def _table(fmt: str) -> np.ndarray:
    """float64 value of each code of a format of at most 8 bits."""
    f = FORMATS[fmt]
    code = np.arange(1 << f.width, dtype=np.int64)
    magnitude = code & ((1 << (f.exponent + f.mantissa)) - 1)
    if f.exponent == 8:  # ue8m0: no zero, no subnormals
        value = np.ldexp(1.0, code - f.bias)
    else:
        field, fraction = magnitude >> f.mantissa, magnitude & ((1 << f.mantissa) - 1)
        significand = fraction + np.where(field > 0, 1 << f.mantissa, 0)
        value = np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - f.bias - f.mantissa)
        value = np.where(code & f.sign != 0, -value, value)
    if f.inf is not None:
        value[magnitude == f.inf] *= np.inf
    value[magnitude > (f.max_code if f.inf is None else f.inf)] = np.nan
    value.flags.writeable = False
    return value


def decode(bits: np.ndarray, fmt: str) -> np.ndarray:
    """Values of bit patterns, exact, as float64 (NaN for every NaN code; ue4m3 ignores bit 7)."""
    bits = np.asarray(bits)
    if FORMATS[fmt].width <= 8:
        return _table(fmt)[bits & ((1 << FORMATS[fmt].width) - 1)]
    if fmt == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    word = bits.astype(np.uint32)
    if fmt == "bf16":
        word = word << np.uint32(16)
    elif fmt == "tf32":
        word = word & np.uint32(0xFFFFE000)
    with np.errstate(invalid="ignore"):  # signalling NaN patterns
        return word.view(np.float32).astype(np.float64)


_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rp": np.ceil,
    "rm": np.floor,
    "rna": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def encode(values: np.ndarray, fmt: str, saturate: bool = True, rounding: str = "rn") -> np.ndarray:
    """Bit patterns of `values` (float32, float64) rounded once, as uint8, uint16 or uint32.

    rounding: rn nearest even, rna nearest with ties away, rz towards zero, rp towards +inf,
        rm towards -inf.
    saturate: magnitudes beyond the largest finite value, infinity too, become that value (PTX
        .satfinite). Without it they become infinity, or NaN in e4m3 which has none; a format
        with neither always saturates.
    NaN becomes the canonical NaN, or the largest value in a format without one. Unsigned formats:
    ue8m0 takes the magnitude, and zero becomes its least value 2^-127; ue4m3 turns negative
    values into zero.
    """
    f = FORMATS[fmt]
    x = np.asarray(values, np.float64)
    if not f.signed:
        x = np.abs(x) if fmt == "ue8m0" else np.maximum(x, 0.0)
    nan, infinite = np.isnan(x), np.isinf(x)
    finite = np.where(nan | infinite, 0.0, x)
    code = (
        _encode_power(finite, f, rounding)
        if fmt == "ue8m0"
        else _encode_finite(finite, f, rounding)
    )
    over = infinite | (code > f.max_code)
    towards_zero = ~infinite & _rounds_to_zero(x, rounding)
    beyond = f.nan if f.inf is None else f.inf
    limit = f.max_code if saturate or beyond is None else beyond
    code = np.where(over, np.where(towards_zero, f.max_code, limit), code)
    code = np.where(np.signbit(x) & f.signed, code | f.sign, code)
    code = np.where(nan, f.max_code if f.nan is None else f.nan, code)
    return _with_padding(code, nan, f)


def stochastic(values: np.ndarray, fmt: str, random: np.ndarray) -> np.ndarray:
    """`values` on the grid of a format, as float64 for `encode`: away from zero where the part that
    is cut off and `random`, in [0, 1), come to 1 or more, else towards zero (PTX ISA, cvt.rs).

    The grid goes on beyond the largest finite value, so that `encode` sees an overflow.
    """
    f = FORMATS[fmt]
    x = np.asarray(values, np.float64)
    quantum = np.maximum(np.frexp(x)[1] - 1, 1 - f.bias) - f.mantissa
    quanta = np.abs(np.ldexp(x, -quantum))
    whole = np.floor(quanta)
    away = quanta - whole + random >= 1
    return np.copysign(np.ldexp(whole + away, quantum), x)


def _encode_finite(x: np.ndarray, f: Format, rounding: str) -> np.ndarray:
    """Magnitude codes before overflow is looked at.

    A code is a count of quanta: a carry out of the mantissa increments the exponent by itself."""
    least = 1 - f.bias
    exponent = np.maximum(np.frexp(x)[1] - 1, least)
    quanta = np.abs(_ROUND[rounding](np.ldexp(x, f.mantissa - exponent))).astype(np.int64)
    return np.where(x == 0, 0, ((exponent - least).astype(np.int64) << f.mantissa) + quanta)


def _encode_power(x: np.ndarray, f: Format, rounding: str) -> np.ndarray:
    """Codes of ue8m0, whose values are powers of two and nothing else."""
    fraction, exponent = np.frexp(x)  # x = fraction * 2^exponent, fraction in [0.5, 1)
    up = {
        "rz": np.zeros(x.shape, bool),
        "rm": np.zeros(x.shape, bool),
        "rp": fraction > 0.5,
        "rn": fraction > 0.75,
        "rna": fraction >= 0.75,
    }[rounding]
    if rounding == "rn":  # a tie goes to the even code
        up = up | ((fraction == 0.75) & ((exponent - 1 + f.bias) % 2 == 1))
    return np.where(x == 0, 0, np.maximum(exponent.astype(np.int64) - 1 + up + f.bias, 0))


def _rounds_to_zero(x: np.ndarray, rounding: str) -> np.ndarray:
    """Where an overflow stops at the largest finite value because of the rounding direction."""
    if rounding in ("rn", "rna"):
        return np.zeros(x.shape, bool)
    return np.ones(x.shape, bool) if rounding == "rz" else (x < 0 if rounding == "rp" else x > 0)


def _with_padding(code: np.ndarray, nan: np.ndarray, f: Format) -> np.ndarray:
    if f.pad:
        code = np.where(nan, 0x7FFFFFFF, code << f.pad)
    return code.astype(f.dtype)
