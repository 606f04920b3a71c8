"""The tensor core: D = A * B (+ D) of one tcgen05.mma, bit for bit (see fused_sum.py).

Operands are what the instruction reads: bytes of A and B tiles, scale-factor codes, and D as
uint32 cells of tensor memory. Results are cells again. If the hardware's sum cannot cut anything
off, a float64 matrix product gives the same bits; the functions named `_nothing_lost` prove this
for a tile. All other tiles take the exact way (fused_sum.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from b200 import formats
from b200.chip.tensor import fused_sum
from b200.chip.tensor.fused_sum import Workspace, workspace

LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126,
         "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0}  # fmt: skip
NO_EXPONENT = 1 << 14  # of a NaN scale, larger than every real one
NO_BIT = 1 << 13  # lowest set bit of zero
NAN_SPAN = 0xFFFFFFFF
MAGNITUDE = np.uint32(0x7FFFFFFF)
KEEP_24_BITS = np.uint64(0xFFFFFFFFE0000000)  # of the 53 bits of a float64 significand


@dataclass(frozen=True, eq=False)
class ScaleTable:
    """For each code of a scale-factor format: its value, exponent, and (ue4m3) span of bits.

    span: bits 16 + p of a word, from the lowest set bit p of the value to its exponent, so that
    the union of spans shows the lowest bit and the largest exponent of many values.
    """

    value: np.ndarray
    exponent: np.ndarray
    span: np.ndarray | None

    def range(self, codes: np.ndarray) -> tuple[int, int]:
        """(largest exponent, lowest set bit) of the values of codes; a NaN among them shows as an
        exponent of at least NO_EXPONENT, all zeros as a lowest bit of NO_BIT."""
        if self.span is None:
            return int(self.exponent[codes.max()]), int(codes.min()) - 127
        union = int(np.bitwise_or.reduce(self.span.take(codes), axis=None))
        if not union:
            return fused_sum.ZERO_EXPONENT, NO_BIT
        if union == NAN_SPAN:
            return NO_EXPONENT, NO_BIT
        return union.bit_length() - 1 - 16, (union & -union).bit_length() - 1 - 16


@cache
def scale_table(fmt: str) -> ScaleTable:
    """Table of "ue4m3" (exponents as in fused_sum.exponents) or "ue8m0"."""
    value = formats.decode(np.arange(256, dtype=np.uint8), fmt)
    number = np.where(np.isnan(value), 1.0, value)
    exponent = fused_sum.exponents(number, -6 if fmt == "ue4m3" else -127)
    exponent[np.isnan(value)] = NO_EXPONENT
    span = None
    if fmt == "ue4m3":
        span = np.array([_span(x) for x in value], np.uint32)
    return ScaleTable(value, exponent.astype(np.int32), span)


def _span(x: float) -> int:
    if np.isnan(x):
        return NAN_SPAN
    fixed = int(x * 2**16)  # ue4m3 has no bits below 2^-9
    if not fixed:
        return 0
    top = max(fixed.bit_length() - 1, 16 - 6)
    return (2 << top) - (fixed & -fixed)


@cache
def fp4_pairs(negate: bool) -> np.ndarray:
    """The two e2m1 values of each byte (low nibble first), as one complex number."""
    byte = np.arange(256)
    low, high = formats.decode(byte & 15, "e2m1"), formats.decode(byte >> 4, "e2m1")
    sign = -1.0 if negate else 1.0
    return np.stack([low * sign, high * sign], axis=1).reshape(-1).view(np.complex128)


@cache
def _operand_space(name: str, rows: int) -> np.ndarray:
    """Values of packed operand `name`: complex128 [rows, 32], to be used again."""
    return np.empty((rows, 32), np.complex128)


def fp4_values(packed: np.ndarray, name: str, negate: bool = False) -> np.ndarray:
    """float64 [rows, 64] of packed e2m1, uint8 [rows, 32]; valid until the next call for `name`."""
    space = _operand_space(name, len(packed))
    fp4_pairs(negate).take(packed, out=space, mode="clip")  # not buffered, unlike mode="raise"
    return space.view(np.float64)


def block_scaled_fp4(
    a: np.ndarray,
    sfa: np.ndarray,
    b: np.ndarray,
    sfb: np.ndarray,
    cells: np.ndarray | None,
    sf_type: str,
    negate: bool = False,
) -> np.ndarray:
    """One K = 64 step of kind::mxf4 or mxf4nvf4; returns fp32 cells, uint32 [M, N], which the next
    call overwrites.

    a, b: packed e2m1, uint8 [M, 32] and [N, 32]; sfa, sfb: scale codes, uint8 [M, 4] and [N, 4],
    one for each 16 elements (block32: each code twice); cells: the accumulator, uint32 [M, N], or
    None for zero; negate: the sign of A * B is turned.
    """
    table, space = scale_table(sf_type), workspace(len(a), len(b))
    va, vb = fp4_values(a, "A", negate), fp4_values(b, "B")
    sa, sb = table.value.take(sfa), table.value.take(sfb)
    if not _fp4_nothing_lost(table, sfa, sfb, cells, space):
        return _block_scaled_fp4_exact(va, sa, vb, sb, cells, table, sfa, sfb)
    for values, scales in ((va, sa), (vb, sb)):
        groups = values.reshape(-1, 4, 16)
        np.multiply(groups, scales[:, :, None], out=groups)
    return _dot_cut_to_f32(va, vb, cells, space)


def _fp4_nothing_lost(
    table: ScaleTable, sfa: np.ndarray, sfb: np.ndarray, cells: np.ndarray | None, space: Workspace
) -> bool:
    """Whether RZ_fp32(C + dot) is what the hardware gives for every element of the tile.

    With `top` the sum of the largest scale exponents, every element's largest exponent E is at
    most max(top, exponent of C). A scaled group sum is a multiple of 2^lowest (fp4 products are
    multiples of 2^-2), so nothing of it lies below 2^(E - 35) if lowest >= E - 35. C has 24 bits:
    it loses some only where it is smaller than 2^(top - 12), and not if it is a multiple of
    2^(top - 35). Then all terms are multiples of 2^(E - 35) and less than 2^(E + 12): float64
    sums them without rounding in any order. Normal, finite results are ensured by the range.
    """
    top_a, lowest_a = table.range(sfa)
    top_b, lowest_b = table.range(sfb)
    top, lowest = top_a + top_b, lowest_a + lowest_b - 2
    if top > 100 or min(lowest, top - 35) < -126:
        return False
    return _sum_exact(top, lowest, cells, 35, space)


def _sum_exact(
    top: int, lowest: int, cells: np.ndarray | None, fraction_bits: int, space: Workspace
) -> bool:
    """Whether multiples of 2^lowest and an fp32 accumulator survive alignment to their largest
    exponent, which is at most `top` but for the accumulator. Leaves the accumulator in space.c."""
    if cells is None:
        return lowest >= top - fraction_bits
    largest = int(np.bitwise_and(cells, MAGNITUDE, out=space.bits).max()) >> 23
    if largest > 126 + 127 or lowest < max(top, largest - 127) - fraction_bits:
        return False
    space.c[...] = cells.view(np.float32)
    fixed = np.multiply(space.c, 2.0 ** (fraction_bits - top), out=space.x)
    whole = np.rint(fixed, out=space.y)
    return bool(np.equal(whole, fixed, out=space.flags).all())


def _dot_cut_to_f32(
    a: np.ndarray, b: np.ndarray, cells: np.ndarray | None, space: Workspace
) -> np.ndarray:
    """fp32 cells of a @ b.T + space.c (nothing where cells is None), cut off towards zero.

    Results are zero or normal; 24 bits are kept, which makes the conversion to fp32 exact. Adding
    zero makes -0 positive.
    """
    total: np.ndarray = np.matmul(a, b.T, out=space.total)
    if cells is not None:
        total += space.c
    bits = total.view(np.uint64)
    bits &= KEEP_24_BITS
    space.cells[...] = total
    np.add(space.cells, np.float32(0), out=space.cells)
    return space.cells.view(np.uint32)


def _block_scaled_fp4_exact(
    va: np.ndarray,
    sa: np.ndarray,
    vb: np.ndarray,
    sb: np.ndarray,
    cells: np.ndarray | None,
    table: ScaleTable,
    sfa: np.ndarray,
    sfb: np.ndarray,
) -> np.ndarray:
    """The fused sum of the groups; a NaN in a scale or C gives NaN, an infinite C stays."""
    c = _accumulator(cells, "f32", (len(va), len(vb)))
    bad_a, bad_b, finite = np.isnan(sa), np.isnan(sb), np.isfinite(c)
    sa, sb, number = np.where(bad_a, 0, sa), np.where(bad_b, 0, sb), np.where(finite, c, 0.0)
    ea = np.where(bad_a, fused_sum.ZERO_EXPONENT, table.exponent.take(sfa))
    eb = np.where(bad_b, fused_sum.ZERO_EXPONENT, table.exponent.take(sfb))
    terms = fused_sum.block_products(va, vb, sa, sb)
    ec = fused_sum.exponents(number, LEAST["f32"])
    total = fused_sum.fused_sum(terms, ea, eb, number, ec, 35)
    total = np.where(finite, total, c)
    total[bad_a.any(axis=1)] = np.nan
    total[:, bad_b.any(axis=1)] = np.nan
    return fused_sum.round_f32(total)


@dataclass(frozen=True)
class AlignedOperand:
    """A or B of a kind whose products are aligned one by one.

    values: float64 [rows, K]; least: least normal exponent of the format; scale: exponents of the
    ue8m0 scale of each row, int [rows], or None. Values do not have the scale in them.
    """

    values: np.ndarray
    least: int
    scale: np.ndarray | None = None

    def scaled(self) -> np.ndarray:
        if self.scale is None:
            return self.values
        return self.values * fused_sum.power(self.scale)[:, None]

    def top(self) -> int:
        """Upper bound of the exponents that terms take from this operand."""
        largest = float(np.abs(self.values).max())
        most = 0 if self.scale is None else int(self.scale.max())
        return max(int(np.frexp(largest)[1]) - 1, self.least) + most

    def exponents(self) -> np.ndarray:
        found = fused_sum.exponents(self.values, self.least)
        return found if self.scale is None else found + self.scale[:, None]

    def finite(self) -> AlignedOperand:
        """The operand with zero for infinity and NaN."""
        return AlignedOperand(
            np.where(np.isfinite(self.values), self.values, 0.0), self.least, self.scale
        )


def multiply(
    a: AlignedOperand,
    b: AlignedOperand,
    cells: np.ndarray | None,
    d_type: str = "f32",
    scale_d: int = 0,
) -> np.ndarray:
    """One K-step of kind::f16, tf32, f8f6f4 or mxf8f6f4; returns cells, uint32 [M, N], which the
    next call overwrites.

    cells: the accumulator, or None for zero; d_type: "f32" or "f16" (low half of a cell);
    scale_d: the accumulator is multiplied by 2^-scale_d first.
    """
    va, vb = a.scaled(), b.scaled()
    space = workspace(len(va), len(vb))
    finite = bool(np.isfinite(va).all() and np.isfinite(vb).all())
    plain = finite and d_type == "f32" and not scale_d
    if plain and _products_nothing_lost(a, b, va, vb, cells, space):
        return _dot_cut_to_f32(va, vb, cells, space)
    c = _accumulator(cells, d_type, (len(va), len(vb)), scale_d)
    if finite and np.isfinite(c).all():
        total = _multiply_exact(a, b, va, vb, c, d_type)
    else:
        total = _multiply_special(a, b, va, vb, c, d_type)
    if d_type == "f16":
        return fused_sum.round_f16(total).astype(np.uint32)
    return fused_sum.round_f32(total)


def _accumulator(
    cells: np.ndarray | None, d_type: str, shape: tuple[int, int], scale_d: int = 0
) -> np.ndarray:
    """float64 values of the accumulator's cells."""
    if cells is None:
        return np.zeros(shape)
    if d_type == "f16":
        c = formats.decode(cells & np.uint32(0xFFFF), "f16")
    else:
        with np.errstate(invalid="ignore"):  # signalling NaN patterns
            c = cells.view(np.float32).astype(np.float64)
    return c * 2.0**-scale_d if scale_d else c


def _multiply_exact(
    a: AlignedOperand, b: AlignedOperand, va: np.ndarray, vb: np.ndarray, c: np.ndarray, d_type: str
) -> np.ndarray:
    ec = fused_sum.exponents(c, LEAST[d_type])
    terms = fused_sum.products(va, vb)
    return fused_sum.fused_sum(terms, a.exponents(), b.exponents(), c, ec, 25)


def _multiply_special(
    a: AlignedOperand, b: AlignedOperand, va: np.ndarray, vb: np.ndarray, c: np.ndarray, d_type: str
) -> np.ndarray:
    """Some input is infinite or NaN: what IEEE gives for the elements it reaches."""
    with np.errstate(invalid="ignore"):
        ieee: np.ndarray = va @ vb.T + c
    number = np.where(np.isfinite(c), c, 0.0)
    a, b = a.finite(), b.finite()
    total = _multiply_exact(a, b, a.scaled(), b.scaled(), number, d_type)
    return np.where(np.isfinite(ieee), total, ieee)


def _products_nothing_lost(
    a: AlignedOperand,
    b: AlignedOperand,
    va: np.ndarray,
    vb: np.ndarray,
    cells: np.ndarray | None,
    space: Workspace,
) -> bool:
    """As _fp4_nothing_lost, for products aligned one by one and 25 fraction bits.

    Here the lowest bit of all values is looked for. The accumulator is fp32 and not scaled.
    """
    top_a, top_b = a.top(), b.top()
    low_a, low_b = _lowest(va, top_a), _lowest(vb, top_b)
    if low_a is None or low_b is None:
        return False
    top, lowest = top_a + top_b, low_a + low_b
    if top > 100 or min(lowest, top - 25) < -126:
        return False
    return _sum_exact(top, lowest, cells, 25, space)


def _lowest(values: np.ndarray, top: int) -> int | None:
    """Position of the lowest set bit of all values, NO_BIT if all are zero; None if it is more
    than 40 bits below `top`."""
    fixed = values * 2.0 ** (40 - top)
    whole = fixed.astype(np.int64)
    if not (whole == fixed).all():
        return None
    bits = int(np.bitwise_or.reduce(whole, axis=None))
    return (bits & -bits).bit_length() - 1 - 40 + top if bits else NO_BIT


def multiply_integers(
    a: np.ndarray, b: np.ndarray, cells: np.ndarray | None, saturate: bool
) -> np.ndarray:
    """One K-step of kind::i8; a, b: float64 integers [M, K], [N, K]; returns s32 cells [M, N].

    The sum wraps modulo 2^32, or saturates.
    """
    total: np.ndarray = (a @ b.T).astype(np.int64)  # below 2^53: exact
    if cells is not None:
        total += cells.view(np.int32)
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return (total & 0xFFFFFFFF).astype(np.uint32)


def with_ue8m0(values: np.ndarray, fmt: str, codes: np.ndarray) -> AlignedOperand:
    """An operand of kind::mxf8f6f4: values [rows, K], one ue8m0 code for each row."""
    if (codes == 0xFF).any():
        values = np.where((codes == 0xFF)[:, None], np.nan, values)
    return AlignedOperand(values, LEAST[fmt], codes.astype(np.int32) - 127)
