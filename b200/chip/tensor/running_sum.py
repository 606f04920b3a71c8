"""Sums of block-scaled fp4 products that stay out of tensor memory while nobody looks at them.

A tile is the sum of many tcgen05.mma into the same cells, and nobody reads the cells before the
last. So the operands of a step are copied when the step happens, and the arithmetic of several
steps is done at once, when the copies are many or the cells are touched (`CTA.columns`). What the
cells then hold is, bit for bit, what one step after the other gives (tensor_core.block_scaled_fp4).
This is why:

The hardware aligns the terms of an element to the largest exponent E of the step, cuts them off 35
bits below it, adds exactly, and cuts the sum to the 24 bits of fp32 (fused_sum.py). All terms of a
step are multiples of 2^lowest, which the scale factors tell, and so is each sum, since cutting
clears low bits only. E is at most `top`, the sum of the largest exponents of the scales, or the
exponent of the accumulator, which is below its `bound`. So nothing is lost in the alignment where

    lowest >= max(top, exponent of bound) - 35                                                  (1)

Numbers that are multiples of 2^lowest and at most 2^(lowest + 24) are fp32 numbers, and their sums
are exact in any order while they stay so. That leaves three ways for steps that meet (1):

    together    bound + bounds of the steps <= 2^(lowest + 24): no sum is ever cut; one fp32
                product of all steps, added
    one by one  the bound of a step is at most 2^(lowest + 24): its fp32 product is exact, and so
                is the fp32 sum where it is at most that large (one that is rounded to that is cut
                to that, too); the other elements are added in float64 and cut
    in float64  the product and the sum are exact in float64 (53 bits are more than 35 + 12), and
                cut

A step that does not meet (1), or whose numbers may leave the normal range of fp32, ends the running
sum: it and those after it are done one by one from the cells (tensor_core.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import frexp
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.chip.tensor import tensor_core
from b200.chip.tensor.tensor_core import KEEP_24_BITS, ScaleTable, fp4_pairs, scale_table

if TYPE_CHECKING:
    from b200.chip.state import CTA
    from b200.chip.tensor.mma import DecodedMma
    from b200.chip.tensor.mma_operands import ScaleFactors

STEPS = 8  # that are done together
KEPT_BITS = 24
FRACTION_BITS = 35
LARGEST_EXPONENT, LEAST_EXPONENT = 100, -126  # between which numbers are zero or normal in fp32
FEW = 16  # where more than one element of so many has to be cut, all are added in float64
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1 without its sign
K, BYTES, SCALES = 64, 32, 4  # of a step: elements, their bytes, scale factors of a row


def _largest_code(bits: int) -> float:
    """The largest magnitude of packed e2m1 in whose bytes no other bits are set."""
    return CODES[(bits | bits >> 4) & 7]


@cache
def _pairs(negate: bool) -> np.ndarray:
    """The two e2m1 values of each byte (low nibble first), as one complex64."""
    return fp4_pairs(negate).astype(np.complex64)


@cache
def _scales(table: ScaleTable) -> np.ndarray:
    return table.value.astype(np.float32)


class Range(NamedTuple):
    """Of the operands of steps: the products are multiples of 2^lowest, their scales' exponents add
    up to at most `top`, and the sum of one step is at most `bound` in magnitude.
    """

    lowest: int
    top: int
    bound: float


@dataclass(frozen=True, eq=False)
class Space:
    """Arrays that every sum of a shape [M, N] uses for a moment."""

    a: np.ndarray  # complex64 [M, STEPS, 32]: two values each
    b: np.ndarray  # ... [N, STEPS, 32]
    wide_a: np.ndarray  # complex128 [M, 32]
    wide_b: np.ndarray  # ... [N, 32]
    product: np.ndarray  # float32 [M, N]
    spare: np.ndarray
    wide: np.ndarray  # float64 [M, N]


@lru_cache(maxsize=16)
def _space(m: int, n: int) -> Space:
    narrow = (np.empty((rows, STEPS, BYTES), np.complex64) for rows in (m, n))
    wide = (np.empty((rows, BYTES), np.complex128) for rows in (m, n))
    sums = (np.empty((m, n), t) for t in (np.float32, np.float32, np.float64))
    return Space(*narrow, *wide, *sums)


class Operand:
    """Copies of A or B of the steps under way.

    codes: packed e2m1, uint8 [rows, STEPS, 32]; copies: of the scale factors, a list for each CTA
    that gives some of the rows; scales: uint8 [rows, n, 4], made of these.
    """

    def __init__(self, rows: int, factors: ScaleFactors, givers: int):
        self.codes = np.empty((rows, STEPS, BYTES), np.uint8)
        self.factors = factors
        self.copies: list[list[bytes]] = [[] for _ in range(givers)]
        self.scales = np.empty((rows, 0, SCALES), np.uint8)

    def put(self, step: int, parts: list[np.ndarray], factors: list[bytes]) -> None:
        """The bytes of a step, uint8 [rows of a CTA, 32] each, and its scale factors."""
        rows = len(parts[0])
        for i, part in enumerate(parts):
            self.codes[i * rows : (i + 1) * rows, step] = part
        for copies, factor in zip(self.copies, factors, strict=True):
            copies.append(factor)

    def range(self, table: ScaleTable, n: int) -> tuple[int, int, float]:
        """(lowest, top, largest magnitude of a scaled element) of the first n steps, whose scale
        factors are laid out here.
        """
        parts = [self.factors.by_row(copies) for copies in self.copies]
        self.scales = parts[0] if len(parts) == 1 else np.concatenate(parts)
        for copies in self.copies:
            copies.clear()
        top, lowest = table.range(self.scales)
        bits = int(np.bitwise_or.reduce(self.codes[:, :n], axis=None))
        return lowest, top, float(table.value.take(self.scales).max()) * _largest_code(bits)

    def decode(self, pairs: np.ndarray, table: ScaleTable, into: np.ndarray) -> np.ndarray:
        """float32 [rows, n, 64]: values times their scale factors."""
        n = self.scales.shape[1]
        found = into if n == STEPS else np.empty((len(into), n, BYTES), into.dtype)
        pairs.take(self.codes[:, :n], out=found, mode="clip")
        numbers = found.view(np.float32)
        groups = numbers.reshape(*numbers.shape[:2], SCALES, K // SCALES)
        np.multiply(groups, _scales(table).take(self.scales)[..., None], out=groups)
        return numbers

    def decode_step(self, pairs, table: ScaleTable, into: np.ndarray, step: int) -> np.ndarray:
        """float64 [rows, 64] of one step."""
        pairs.take(self.codes[:, step], out=into, mode="clip")
        groups = into.view(np.float64).reshape(-1, SCALES, K // SCALES)
        np.multiply(groups, table.value.take(self.scales[:, step])[..., None], out=groups)
        return into.view(np.float64)


class RunningSum:
    """The sum in the cells of D of `members`, a CTA or a pair, of steps since it was started.

    mma: the first of these. first, end: columns of its cells in each member. total: [M, N], float32
    or float64 numbers that fp32 has, None before the first work; lowest, bound: of its elements.
    """

    def __init__(self, members: tuple[CTA, ...], mma: DecodedMma):
        self.members, self.acc = members, mma.acc
        self.key = _key(mma)
        self.negate = mma.d.negate_a != mma.d.negate_b
        self.sf_type = mma.d.sf_type or ""
        self.table = scale_table(self.sf_type)
        self.first = self.acc.taddr & 0xFFFF
        self.end = self.first + self.acc.columns // self.acc.parts
        assert mma.sfa is not None and mma.sfb is not None
        self.a = Operand(self.acc.rows * len(members), mma.sfa, len(members))
        self.b = Operand(mma.d.n, mma.sfb, 1)
        self.count = 0
        self.total: np.ndarray | None = None
        self.lowest, self.bound = tensor_core.NO_BIT, 0.0
        for member in members:
            member.columns(self.first, self.end - self.first)  # sums that lie across it, first
            member.sums.append(self)

    def takes(self, mma: DecodedMma) -> bool:
        """Whether a step into the same cells can be added here."""
        return self.key == _key(mma)

    def meets(self, first: int, end: int) -> bool:
        """Whether some of the columns [first, end) are its own."""
        return self.first < end and first < self.end

    def add(self, a: list[np.ndarray], sfa: list[bytes], b: list[np.ndarray], sfb: bytes) -> None:
        """A step: bytes uint8 [rows, 32] of A and B of each member, the scale factors of A in each,
        and those of all of B.
        """
        self.a.put(self.count, a, sfa)
        self.b.put(self.count, b, [sfb])
        self.count += 1
        if self.count == STEPS:
            self.work()

    def settle(self) -> None:
        """Put the sum into the cells, and forget it."""
        self.work()
        if self in self.members[0].sums:  # still, for the exact way ends it
            self.drop()
            if self.total is not None:
                self._write(self._cells())

    def drop(self) -> None:
        """Forget it: its cells are written over."""
        for member in self.members:
            member.sums.remove(self)

    def _cells(self) -> np.ndarray:
        """Bit patterns of the sum; adding zero makes -0 positive."""
        assert self.total is not None
        return np.add(self.total, 0, dtype=np.float32, casting="same_kind").view(np.uint32)

    def _write(self, cells: np.ndarray):
        for i, member in enumerate(self.members):
            self.acc.write(member, cells[i * self.acc.rows : (i + 1) * self.acc.rows])

    # --- arithmetic -------------------------------------------------------------------------------
    def work(self) -> None:
        """Do the steps that are under way."""
        n, self.count = self.count, 0
        if not n:
            return
        found = self._range(n)
        if found is None or not self._aligned(found, n):
            self._end(n)
            return
        space = _space(len(self.a.codes), len(self.b.codes))
        lowest = min(self.lowest, found.lowest)
        limit = 2.0 ** (lowest + KEPT_BITS)
        together = self._bounded(n * found.bound, limit)
        if not together and found.bound > 2.0 ** (found.lowest + KEPT_BITS):
            for i in range(n):
                self._in_float64(i, space)
        else:
            a = self.a.decode(_pairs(self.negate), self.table, space.a)
            b = self.b.decode(_pairs(False), self.table, space.b)
            self._narrow()
            if together:
                self._together(a, b, space)
            else:
                for i in range(n):
                    self._one(a[:, i], b[:, i], limit, space)
        self.lowest, self.bound = lowest, self.bound + n * found.bound

    def _bounded(self, more: float, limit: float) -> bool:
        """Whether the sum and `more` stay within a limit. Numbers are smaller than the sum of their
        bounds, so it is worth a look how large they are.
        """
        if self.bound + more > limit >= more and self.total is not None:
            self.bound = float(max(self.total.max(), -self.total.min()))
        return self.bound + more <= limit

    def _range(self, n: int) -> Range | None:
        """The range of the first n steps; None where some are not numbers of the normal range."""
        low_a, top_a, most_a = self.a.range(self.table, n)
        low_b, top_b, most_b = self.b.range(self.table, n)
        top, lowest = top_a + top_b, low_a + low_b - 2
        if max(top, top_a, top_b) > LARGEST_EXPONENT:
            return None
        if min(lowest, low_a - 1, low_b - 1, top - FRACTION_BITS) < LEAST_EXPONENT:
            return None
        return Range(lowest, top, K * most_a * most_b)

    def _aligned(self, found: Range, n: int) -> bool:
        """Condition (1), for each of n steps."""
        largest = frexp(self.bound + n * found.bound)[1]
        if largest > LARGEST_EXPONENT:
            return False
        return min(self.lowest, found.lowest) >= max(found.top, largest) - FRACTION_BITS

    def _narrow(self):
        if self.total is not None and self.total.dtype != np.float32:
            self.total = self.total.astype(np.float32)

    def _together(self, a: np.ndarray, b: np.ndarray, space: Space):
        rows = a.reshape(len(a), -1), b.reshape(len(b), -1)
        if self.total is None:
            self.total = np.matmul(rows[0], rows[1].T)
        else:
            self.total += np.matmul(rows[0], rows[1].T, out=space.product)

    def _one(self, a: np.ndarray, b: np.ndarray, limit: float, space: Space):
        product = np.matmul(a, b.T, out=space.product)
        if self.total is None:
            self.total = product.copy()
            return
        total = np.add(self.total, product, out=space.spare)
        if max(total.max(), -total.min()) <= limit:
            np.copyto(self.total, total)
            return
        large = np.flatnonzero(np.abs(total) > limit)
        if large.size > total.size // FEW:
            np.add(self.total, product, out=space.wide, dtype=np.float64)
            self.total[...] = _cut(space.wide)
            return
        wide = np.add(self.total.reshape(-1)[large], product.reshape(-1)[large], dtype=np.float64)
        total.reshape(-1)[large] = _cut(wide)
        np.copyto(self.total, total)

    def _in_float64(self, step: int, space: Space):
        a = self.a.decode_step(fp4_pairs(self.negate), self.table, space.wide_a, step)
        b = self.b.decode_step(fp4_pairs(False), self.table, space.wide_b, step)
        if self.total is None:
            self.total = _cut(np.matmul(a, b.T))
            return
        if self.total.dtype != np.float64:
            self.total = self.total.astype(np.float64)
        self.total += np.matmul(a, b.T, out=space.wide)
        _cut(self.total)

    def _end(self, n: int):
        """Steps that need the exact way: from the cells, one after the other."""
        cells = None if self.total is None else self._cells()
        for i in range(n):
            cells = tensor_core.block_scaled_fp4(
                np.ascontiguousarray(self.a.codes[:, i]),
                self.a.scales[:, i],
                np.ascontiguousarray(self.b.codes[:, i]),
                self.b.scales[:, i],
                cells,
                self.sf_type,
                self.negate,
            ).copy()
        assert cells is not None
        self.drop()
        self._write(cells)


def _key(mma: DecodedMma) -> tuple:
    """What the steps of a sum have in common, besides their cells."""
    assert mma.sfa is not None and mma.sfb is not None
    factors = mma.sfa.rows, mma.sfa.copies, mma.sfb.rows, mma.sfb.copies
    return mma.d.sf_type, mma.d.negate_a != mma.d.negate_b, mma.d.n, factors


def _cut(wide: np.ndarray) -> np.ndarray:
    """float64 numbers cut, in place, towards zero to the 24 bits of fp32."""
    wide.view(np.uint64)[...] &= KEEP_24_BITS
    return wide
