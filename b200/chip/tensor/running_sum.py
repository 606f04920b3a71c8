"""Sums of block-scaled fp4 products, kept outside tensor memory until somebody reads the cells.

A tile is the sum of many tcgen05.mma into the same cells, and nobody reads the cells before the
last step. So the operands of a step are copied when the step happens. The arithmetic of several
steps is done at once, when there are many copies or the cells are touched (`CTA.columns`). The
result is, bit for bit, that of one step after the other (tensor_core.block_scaled_fp4). The reason:

The hardware aligns the terms of an element to the largest exponent E of the step, cuts them off 35
bits below it, adds exactly, and cuts the sum to the 24 bits of fp32 (fused_sum.py). All terms of a
step are multiples of 2^lowest, which the scale factors tell, and so is each sum, since cutting
clears low bits only. E is at most `top`, the sum of the largest exponents of the scales, or the
exponent of the accumulator, which is below its `bound`. So nothing is lost in the alignment where

    lowest >= max(top, exponent of bound) - 35                                                  (1)

Numbers that are multiples of 2^lowest and at most 2^(lowest + 24) are fp32 numbers, and their sums
are exact in any order while they stay so. That leaves three ways for steps that meet (1):

    together    bound + bounds of the steps <= 2^(lowest + 24): no sum is ever cut; one product of
                all steps, in fp32 or int8, added
    one by one  the bound of a step is at most 2^(lowest + 24): its fp32 product is exact, and so
                is the fp32 sum where it is at most that large (one that is rounded to that is cut
                to that, too); the other elements are added in float64 and cut
    in float64  the product and the sum are exact in float64 (53 bits are more than 35 + 12), and
                cut; the product may be one of limbs in int8

A step that does not meet (1), or whose numbers may leave the normal range of fp32, ends the running
sum: it and those after it are done one by one from the cells (tensor_core.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import frexp
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.chip.tensor import int8_product, tensor_core
from b200.chip.tensor.step_operands import STEPS, Decoded, K, StepOperand
from b200.chip.tensor.tensor_core import KEEP_24_BITS, scale_table

if TYPE_CHECKING:
    from b200.chip.state import CTA
    from b200.chip.tensor.mma import DecodedMma

KEPT_BITS = 24
FRACTION_BITS = 35
LARGEST_EXPONENT, LEAST_EXPONENT = 100, -126  # between which numbers are zero or normal in fp32
FEW = 16  # where more than one element of so many has to be cut, all are added in float64


class Range(NamedTuple):
    """The range of the numbers of some steps: their products are multiples of 2^lowest, the
    exponents of their scales add up to at most `top`, and the sum of one step is at most `bound` in
    magnitude.
    """

    lowest: int
    top: int
    bound: float


@dataclass(frozen=True, eq=False)
class Space:
    """Arrays that every sum of a shape [M, N] uses for a moment."""

    product: np.ndarray  # float32 [M, N]
    spare: np.ndarray
    wide: np.ndarray  # float64 [M, N]
    units: np.ndarray  # int32 [M, N]


@lru_cache(maxsize=16)
def _space(m: int, n: int) -> Space:
    sums = (np.empty((m, n), t) for t in (np.float32, np.float32, np.float64, np.int32))
    return Space(*sums)


class RunningSum:
    """The sum of several steps into the same cells of D, of `members`: a CTA or a pair.

    mma: the first step. first, end: columns of its cells in each member. total: [M, N], float32, or
    float64 with values that fp32 has; None before the first work. lowest, bound: of its elements,
    as in Range.
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
        rows = self.acc.rows * len(members)
        self.a = StepOperand(rows, mma.sfa, len(members), self.sf_type, self.negate)
        self.b = StepOperand(mma.d.n, mma.sfb, 1, self.sf_type, negate=False)
        self.count = 0
        self.total: np.ndarray | None = None
        self.lowest, self.bound = tensor_core.NO_BIT, 0.0
        for member in members:
            member.columns(self.first, self.end - self.first)  # sums that lie across it, first
            member.sums.append(self)

    def takes(self, mma: DecodedMma) -> bool:
        """Whether a step into the same cells can be added here."""
        return self.key == _key(mma)

    def add(self, a: list[np.ndarray], sfa: list[bytes], b: list[np.ndarray], sfb: bytes) -> None:
        """Add a step. a, b: bytes uint8 [rows, 32] of each member. sfa: scale factors of A in each
        member; sfb: those of all of B.
        """
        self.a.put(self.count, a, sfa)
        self.b.put(self.count, b, [sfb])
        self.count += 1
        if self.count == STEPS:
            self.work()

    def settle(self) -> None:
        """Put the sum into the cells of tensor memory, and forget the sum."""
        self.work()
        if self in self.members[0].sums:  # still, for the exact way ends it
            self.drop()
            if self.total is not None:
                self._write(self._cells())

    def drop(self) -> None:
        """Forget the sum, because its cells are written over."""
        for member in self.members:
            member.sums.remove(self)

    def _cells(self) -> np.ndarray:
        """Bit patterns of the sum; adding zero makes -0 positive."""
        assert self.total is not None
        return np.add(self.total, 0, dtype=np.float32, casting="same_kind").view(np.uint32)

    def _write(self, cells: np.ndarray) -> None:
        for i, member in enumerate(self.members):
            self.acc.write(member, cells[i * self.acc.rows : (i + 1) * self.acc.rows])

    # --- arithmetic -------------------------------------------------------------------------------
    def work(self) -> None:
        """Do the arithmetic of the steps that have been added since the last call."""
        n, self.count = self.count, 0
        if not n:
            return
        a, b = self.a.decoded(n, self.table), self.b.decoded(n, self.table)
        found = _range(a, b)
        if found is None or not self._aligned(found, n):
            self._end(a, b)
            return
        space = _space(self.a.rows, self.b.rows)
        lowest = min(self.lowest, found.lowest)
        limit = 2.0 ** (lowest + KEPT_BITS)
        together = self._bounded(n * found.bound, limit)
        if not together and found.bound > 2.0 ** (found.lowest + KEPT_BITS):
            self._in_float64(a, b, found, space)
        else:
            self._narrow()
            if together:
                self._together(_product(a, b, found, space))
            else:
                for i in range(n):
                    self._one(a.narrow[:, i], b.narrow[:, i], limit, space)
        self.lowest, self.bound = lowest, self.bound + n * found.bound

    def _bounded(self, more: float, limit: float) -> bool:
        """Whether the sum and `more` stay within a limit. Numbers are smaller than the sum of their
        bounds, so it is worth a look how large they are.
        """
        if self.bound + more > limit >= more and self.total is not None:
            self.bound = float(max(self.total.max(), -self.total.min()))
        return self.bound + more <= limit

    def _aligned(self, found: Range, n: int) -> bool:
        """Condition (1), for each of n steps."""
        largest = frexp(self.bound + n * found.bound)[1]
        if largest > LARGEST_EXPONENT:
            return False
        return min(self.lowest, found.lowest) >= max(found.top, largest) - FRACTION_BITS

    def _narrow(self) -> None:
        if self.total is not None and self.total.dtype != np.float32:
            self.total = self.total.astype(np.float32)

    def _together(self, product: np.ndarray) -> None:
        if self.total is None:
            self.total = product.copy()
        else:
            self.total += product

    def _one(self, a: np.ndarray, b: np.ndarray, limit: float, space: Space) -> None:
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

    def _in_float64(self, a: Decoded, b: Decoded, found: Range, space: Space) -> None:
        if self.total is None:
            self.total = np.zeros((self.a.rows, self.b.rows))
        elif self.total.dtype != np.float64:
            self.total = self.total.astype(np.float64)
        unit = 2.0**found.lowest
        if _are_two_limbs(a, b, found.bound / unit):
            product = int8_product.product_of_limbs(*self.total.shape)
            for limbs_a, limbs_b in zip(a.two_limbs, b.two_limbs, strict=True):
                product.add(self.total, limbs_a, limbs_b, unit)
                _cut(self.total)
        else:
            for step_a, step_b in zip(a.wide, b.wide, strict=True):
                self.total += np.matmul(step_a, step_b.T, out=space.wide)
                _cut(self.total)

    def _end(self, a: Decoded, b: Decoded) -> None:
        """Steps that need the exact way: from the cells, one after the other."""
        cells = None if self.total is None else self._cells()
        for i in range(len(a.codes)):
            cells = tensor_core.block_scaled_fp4(
                a.codes[i],
                a.scales[:, i],
                b.codes[i],
                b.scales[:, i],
                cells,
                self.sf_type,
                self.negate,
            ).copy()
        assert cells is not None
        self.drop()
        self._write(cells)


def _product(a: Decoded, b: Decoded, found: Range, space: Space) -> np.ndarray:
    """The product of all steps, which fp32 can hold."""
    if max(a.largest, b.largest) <= int8_product.LARGEST and int8_product.is_there():
        a_rows, b_rows = (x.one_limb.reshape(len(x.one_limb), -1) for x in (a, b))
        int8_product.product(a_rows, b_rows, space.units)
        unit = np.float32(2.0**found.lowest)
        return np.multiply(space.units, unit, out=space.product, dtype=np.float32, casting="unsafe")
    a_rows, b_rows = (x.narrow.reshape(len(x.narrow), -1) for x in (a, b))
    return np.matmul(a_rows, b_rows.T, out=space.product)


def _are_two_limbs(a: Decoded, b: Decoded, largest_sum: float) -> bool:
    """Whether the products of the steps can be those of limbs."""
    fits = max(a.largest, b.largest) <= int8_product.LARGEST_OF_TWO
    return fits and largest_sum <= int8_product.LARGEST_SUM and int8_product.is_there()


def _range(a: Decoded, b: Decoded) -> Range | None:
    """The Range of the steps of A and B; None if some numbers are not in the normal range."""
    top, lowest = a.top + b.top, a.lowest + b.lowest - 2
    if max(top, a.top, b.top) > LARGEST_EXPONENT:
        return None
    if min(lowest, a.lowest - 1, b.lowest - 1, top - FRACTION_BITS) < LEAST_EXPONENT:
        return None
    return Range(lowest, top, K * a.most * b.most)


def _key(mma: DecodedMma) -> tuple[object, ...]:
    """What the steps of a sum have in common, besides their cells."""
    assert mma.sfa is not None and mma.sfb is not None
    factors = mma.sfa.rows, mma.sfa.copies, mma.sfb.rows, mma.sfb.copies
    return mma.d.sf_type, mma.d.negate_a != mma.d.negate_b, mma.d.n, factors


def _cut(wide: np.ndarray) -> np.ndarray:
    """float64 numbers cut, in place, towards zero to the 24 bits of fp32."""
    wide.view(np.uint64)[...] &= KEEP_24_BITS
    return wide
