"""A and B of the steps of a running sum: copied when a step happens, decoded when it is computed.

Tiles in one row or column of a result have an operand in common, and so have CTAs of a cluster that
share one. So a decoded operand is kept for the next one with the same bytes, up to MOST_BYTES in
all: the tiles of a CTA that computes several, for the CTA that computes their neighbours. All bytes
are compared, codes and scale factors, so a kept operand is exactly what decoding would give again.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cache, cached_property

import numpy as np
from numpy.typing import DTypeLike

from b200.chip.tensor import int8_product
from b200.chip.tensor.mma_operands import ScaleFactors
from b200.chip.tensor.tensor_core import ScaleTable, fp4_pairs

STEPS = 8  # that are done together
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1 without its sign
K, BYTES, SCALES = 64, 32, 4  # of a step: elements, their bytes, scale factors of a row
MOST_BYTES = 6 << 20  # of packed codes; decoded, each takes 2 bytes (int8) to 16 (float64)
SAMPLE = 61  # of so many bytes one is part of a key


def _largest_code(bits: int) -> float:
    """The largest magnitude of packed e2m1 in whose bytes no other bits are set."""
    return CODES[(bits | bits >> 4) & 7]


@cache
def _narrow_pairs(negate: bool) -> np.ndarray:
    """The two e2m1 values of each byte (low nibble first), as one complex64."""
    return fp4_pairs(negate).astype(np.complex64)


@cache
def _pairs_of_halves(negate: bool) -> np.ndarray:
    """The two e2m1 values of each byte in halves, two int8, as one uint16."""
    return (2 * fp4_pairs(negate).view(np.float64)).astype(np.int8).view(np.uint16)


class Decoded:
    """A decoded operand of n steps.

    codes: packed e2m1, uint8 [n, rows, 32]. scales: codes of the factors, uint8 [rows, n, 4]. The
    object owns both arrays. lowest, top: of the scale factors, as ScaleTable.range gives them.
    most: the largest magnitude of a scaled element. negate: whether elements have the other sign.
    """

    def __init__(self, codes: np.ndarray, scales: np.ndarray, table: ScaleTable, negate: bool):
        self.codes, self.scales, self.negate = codes, scales, negate
        self.factors = table.value.take(scales)
        self.top, self.lowest = table.range(scales)
        bits = np.bitwise_or.reduce(codes.reshape(-1).view(np.uint64))
        bits = int(np.bitwise_or.reduce(bits.reshape(1).view(np.uint8)))
        self.most = float(self.factors.max()) * _largest_code(bits)

    @property
    def largest(self) -> float:
        """The largest magnitude of a scaled element, in the unit of `one_limb` and `two_limbs`."""
        return self.most * 2.0 ** (1 - self.lowest)

    @cached_property
    def one_limb(self) -> np.ndarray:
        """Values times their scale factors in units of 2^(lowest - 1), int8 [rows, n, 64], where
        `largest` is at most int8_product.LARGEST.
        """
        return self._units(self.codes.swapaxes(0, 1), self._scale_units(), np.int8)

    @cached_property
    def two_limbs(self) -> np.ndarray:
        """The same as limbs, int8 [n, 2, rows, 64], where it is at most LARGEST_OF_TWO."""
        scales = self._scale_units().swapaxes(0, 1)
        return int8_product.split(self._units(self.codes, scales, np.int16))

    def _scale_units(self) -> np.ndarray:
        """The scale factors in units of 2^lowest, [rows, n, 4]."""
        return self.factors * 2.0**-self.lowest

    def _units(self, codes: np.ndarray, scales: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """Codes in halves times scales in their units, of dtype."""
        halves = _pairs_of_halves(self.negate).take(codes).view(np.int8)
        groups = halves.reshape(*halves.shape[:2], SCALES, K // SCALES)
        return np.multiply(groups, scales.astype(dtype)[..., None]).reshape(halves.shape)

    @cached_property
    def narrow(self) -> np.ndarray:
        """Values times their scale factors, float32 [rows, n, 64]."""
        found = _narrow_pairs(self.negate).take(self.codes.swapaxes(0, 1)).view(np.float32)
        groups = found.reshape(*found.shape[:2], SCALES, K // SCALES)
        np.multiply(groups, self.factors.astype(np.float32)[..., None], out=groups)
        return found

    @cached_property
    def wide(self) -> np.ndarray:
        """Values times their scale factors, float64 [n, rows, 64]."""
        found = fp4_pairs(self.negate).take(self.codes).view(np.float64)
        groups = found.reshape(*found.shape[:2], SCALES, K // SCALES)
        np.multiply(groups, self.factors.swapaxes(0, 1)[..., None], out=groups)
        return found


class _Kept:
    """Decoded operands, by a part of their bytes; the latest ones are last."""

    def __init__(self):
        self.found: OrderedDict[tuple[object, ...], tuple[bytes, Decoded]] = OrderedDict()
        self.nbytes = 0

    def get(self, key: tuple[object, ...], codes: bytes) -> Decoded | None:
        found = self.found.get(key)
        if found is None or found[0] != codes:
            return None
        self.found.move_to_end(key)
        return found[1]

    def put(self, key: tuple[object, ...], codes: bytes, decoded: Decoded) -> None:
        if key in self.found:
            self.nbytes -= len(self.found.pop(key)[0])
        self.found[key] = codes, decoded
        self.nbytes += len(codes)
        while self.nbytes > MOST_BYTES:
            self.nbytes -= len(self.found.popitem(last=False)[1][0])


_kept = _Kept()


class StepOperand:
    """Copies of A or B of the steps under way.

    codes: packed e2m1, uint8 [STEPS, rows, 32]; copies: of the scale factors, a list for each CTA
    that gives some of the rows. negate: whether its elements get the other sign.
    """

    def __init__(self, rows: int, factors: ScaleFactors, givers: int, sf_type: str, negate: bool):
        self.rows = rows
        self.codes = np.empty((STEPS, rows, BYTES), np.uint8)
        self.factors = factors
        self.copies: list[list[bytes]] = [[] for _ in range(givers)]
        self.kind = rows, factors.rows, factors.copies, givers, sf_type, negate

    def put(self, step: int, parts: list[np.ndarray], factors: list[bytes]) -> None:
        """The bytes of a step, uint8 [rows of a CTA, 32] each, and its scale factors."""
        rows = len(parts[0])
        for i, part in enumerate(parts):
            self.codes[step, i * rows : (i + 1) * rows] = part
        for copies, factor in zip(self.copies, factors, strict=True):
            copies.append(factor)

    def decoded(self, n: int, table: ScaleTable) -> Decoded:
        """The first n steps decoded; these are all steps that have been put here."""
        codes = self.codes[:n].tobytes()
        factors = b"".join(map(b"".join, self.copies))
        key = *self.kind, n, codes[::SAMPLE], factors
        found = _kept.get(key, codes)
        if found is None:
            parts = [self.factors.by_row(copies) for copies in self.copies]
            scales = parts[0] if len(parts) == 1 else np.concatenate(parts)
            own = np.frombuffer(codes, np.uint8).reshape(n, self.rows, BYTES)
            found = Decoded(own, scales, table, self.kind[-1])
            _kept.put(key, codes, found)
        for copies in self.copies:
            copies.clear()
        return found
