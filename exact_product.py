"""The exact product of two NVFP4 matrices, as float64, where no GPU has an instruction for it.

A dequantised element has at most 6 significant bits (2 of e2m1, 4 of ue4m3), a product of two at
most 12, which leaves float64 41 bits for the spread of the exponents and the sum. So the sum of the
leaderboards' inputs is exact in any order, and any other is rounded far below fp16.

On an x86 CPU most of that goes faster in integers, with the same sums. The elements of a matrix are
multiples of a unit that its scales tell. Where they are few units, each is a limb of 7 bits with a
sign, or two, and the product is that of int8 matrices, summed in int32 without rounding: one or
four products, each in an eighth of the time of float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from utils import MAX_E2M1, dequantize

# Rows dequantised at a time. It bounds the memory; for larger blocks malloc asks the system for
# fresh pages each time, which costs more than the arithmetic.
ROWS_AT_ONCE = 256

LIMB_BITS = 7  # a limb is in [-64, 63], so that a CPU without VNNI can add two products in 16 bits
BASE, HALF = 1 << LIMB_BITS, 1 << LIMB_BITS - 1
MOST_LIMBS = 2  # of an element
LEAST_EXPONENT = -9  # ue4m3 is a multiple of 2^-9


class Limbs(NamedTuple):
    """How a matrix is written in int8: an element is `unit` times a number of `count` limbs."""

    unit: float
    count: int


def exact_product(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor
) -> torch.Tensor:
    """a @ b^T, float64 (M, N). a, b: codes (M, K/2) and (N, K/2). sfa, sfb: scales, ue4m3
    (rows, K/16).

    The operand with fewer rows is kept dequantised as a whole, to bound the memory.
    """
    if a.shape[0] > b.shape[0]:
        return _blocks_times_kept(a, sfa, b, sfb)
    return _blocks_times_kept(b, sfb, a, sfa).T


def _blocks_times_kept(
    many: torch.Tensor, sf_many: torch.Tensor, few: torch.Tensor, sf_few: torch.Tensor
) -> torch.Tensor:
    """many @ few^T: `few` dequantised once as a whole, `many` in blocks of rows."""
    kept = torch.cat(list(_blocks(few, sf_few)))
    out = torch.zeros(len(many), len(few), dtype=torch.float64, device=kept.device)
    rows = zip(_blocks(many, sf_many), out.split(ROWS_AT_ONCE))
    form, other = limbs_of(sf_many), limbs_of(sf_few)
    if form and other and multiplies_int8(kept):
        limbs, unit = _split(kept, other), form.unit * other.unit
        for block, out_rows in rows:
            _add_product_of_limbs(out_rows, _split(block, form), limbs, unit)
    else:
        wide = kept.double().T
        for block, out_rows in rows:
            torch.mm(block.double(), wide, out=out_rows)
    return out


def _blocks(codes: torch.Tensor, scales: torch.Tensor) -> Iterator[torch.Tensor]:
    """The dequantised matrix in float32, which is exact, some rows at a time."""
    scales = scales.to(codes.device)
    for rows, row_scales in zip(codes.split(ROWS_AT_ONCE), scales.split(ROWS_AT_ONCE)):
        yield dequantize(rows, row_scales)


def multiplies_int8(matrix: torch.Tensor) -> bool:
    """Whether torch._int_mm is oneDNN's for x86, which elsewhere may be a loop, and int32 holds the
    sums along K.
    """
    x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    fast = x86 and torch.backends.mkldnn.is_available() and not matrix.is_cuda
    return fast and matrix.shape[1] * HALF**2 < 2**31


def limbs_of(scales: torch.Tensor) -> Limbs | None:
    """How an operand with these scales is written in int8; None if MOST_LIMBS are too few."""
    used = torch.bincount(scales.reshape(-1).view(torch.uint8), minlength=256).nonzero()
    values = used.to(torch.uint8).view(torch.float8_e4m3fn).double()
    for exponent in range(0, LEAST_EXPONENT - 1, -1):
        units = values / 2.0**exponent
        if bool((units == units.round()).all()):
            largest = int(units.abs().max()) * round(2 * MAX_E2M1)
            counts = (n for n in range(1, MOST_LIMBS + 1) if largest <= _largest(n))
            count = next(counts, None)
            return Limbs(2.0**exponent / 2, count) if count else None
    return None  # a scale is NaN


def _largest(count: int) -> int:
    """The largest number of so many limbs."""
    return (HALF - 1) * sum(BASE**i for i in range(count))


def _split(matrix: torch.Tensor, limbs: Limbs) -> list[torch.Tensor]:
    """The limbs of the elements, int8, the least significant first."""
    rest = (matrix / limbs.unit).to(torch.int16)
    found = []
    for _ in range(limbs.count - 1):
        low = ((rest + HALF) & (BASE - 1)) - HALF
        found.append(low.to(torch.int8))
        rest = (rest - low) >> LIMB_BITS
    return [*found, rest.to(torch.int8)]


def _add_product_of_limbs(
    out: torch.Tensor, a: list[torch.Tensor], b: list[torch.Tensor], unit: float
) -> None:
    """Add a @ b^T, whose limbs these are, in units, to `out`."""
    for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b)):
        out.add_(torch._int_mm(x, y.T), alpha=unit * BASE ** (i + j))
