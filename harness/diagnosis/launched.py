"""What the launches of a call did to its output: which elements they stored, which part of it a CTA
has, and which of its sides is M of the MMA. Taken from the emulator's record of stores, so it holds
for any kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_TILE = 8  # rows or columns; where CTAs' parts are narrower, they are no tiles
MOSTLY = (
    0.99  # of neighbours along a side, from which one warp is said to store it; 31 of 32 are not
)


@dataclass(frozen=True)
class Launched:
    """What the launches of a call did to an output (M, N, L).

    stored: bool (M, N, L). warps: int (M, N, L), the warp that stored an element, -1 where nobody
    did or where it came out of shared memory. tile: (rows, columns) of the output that a CTA has,
    None where they are not regular. m_axis: the axis of the output that is M of the MMA, None where
    it cannot be told. mma: (M of a CTA, N) of the MMAs, None without any or with several.
    """

    stored: np.ndarray
    warps: np.ndarray
    tile: tuple[int, int] | None
    m_axis: int | None
    mma: tuple[int, int] | None


def of(launches: Iterable[Any], output: Any) -> Launched | None:
    """The record for `output`; None where no launch has kept its stores."""
    records = [launch.stores for launch in launches if launch.stores is not None]
    if not records or output.element_size() % 2:
        return None
    shape = tuple(output.shape)
    cta, warp = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    before = 0  # CTAs of earlier launches
    for record in records:
        ctas = {w.cta: before + i for i, w in reversed(list(enumerate(record.writers))) if w}
        before += len(record.writers)
        numbers = _elements(record, output)
        cta_of = np.array([-1, *(ctas[w.cta] for w in record.writers[1:])], np.int32)
        kept = (-1 if record.copied else w.warp for w in record.writers[1:])
        warp_of = np.array([-1, *kept], np.int32)
        np.copyto(cta, cta_of[numbers], where=numbers > 0)
        np.copyto(warp, warp_of[numbers], where=numbers > 0)
    shapes = {(m, n) for record in records for m, n, _ in record.mmas}
    mma = next(iter(shapes)) if len(shapes) == 1 else None
    tile = _tile(cta) if (cta >= 0).any() else None
    return Launched(cta >= 0, warp, tile, _m_axis(cta, warp, tile, shapes), mma)


def _elements(record: Any, output: Any) -> np.ndarray:
    """The number of the writer of each element, its first two bytes: uint32 of output's shape."""
    size = output.element_size()
    last = sum((n - 1) * step for n, step in zip(output.shape, output.stride()))
    units = record.written(output.data_ptr(), (last + 1) * size)
    steps = [step * size // 2 * units.itemsize for step in output.stride()]
    return np.lib.stride_tricks.as_strided(units, tuple(output.shape), steps).copy()


def _tile(cta: np.ndarray) -> tuple[int, int] | None:
    """Rows and columns between which the CTA changes: the greatest common divisor of the places."""
    sizes = []
    for axis in (0, 1):
        size = cta.shape[axis]
        lines = np.moveaxis(cta, axis, 0).reshape(size, -1)
        latest = np.maximum.accumulate(np.where(lines >= 0, np.arange(size)[:, None], 0), 0)
        before = np.take_along_axis(lines, latest, 0)[:-1]  # of who stored last in front of a place
        changes = (lines[1:] >= 0) & (before >= 0) & (lines[1:] != before)
        edges = np.flatnonzero(changes.any(1)) + 1
        step = math.gcd(*edges.tolist()) or size
        if step < min(LEAST_TILE, size):
            return None
        sizes.append(step)
    return sizes[0], sizes[1]


def _m_axis(
    cta: np.ndarray, warp: np.ndarray, tile: tuple[int, int] | None, shapes: set
) -> int | None:
    """By the sizes, where only one side of a tile is as long as M of the MMA; else by the warps: a
    warp has 32 lanes of tensor memory, which are rows of the MMA.
    """
    if not shapes:
        return None
    fits = [tile is not None and all(tile[axis] == m for m, _ in shapes) for axis in (0, 1)]
    if fits[0] != fits[1]:
        return 0 if fits[0] else 1
    alike = [_alike(cta, warp, axis) for axis in (0, 1)]  # along rows: a warp has whole columns
    if (alike[0] >= MOSTLY) != (alike[1] >= MOSTLY):
        return 1 if alike[0] >= MOSTLY else 0
    return None


def _alike(cta: np.ndarray, warp: np.ndarray, axis: int) -> float:
    """The share of neighbours along an axis, of one CTA, that one warp has stored."""
    low = (slice(None),) * axis + (slice(None, -1),)
    high = (slice(None),) * axis + (slice(1, None),)
    same_cta = (cta[low] == cta[high]) & (warp[low] >= 0) & (warp[high] >= 0)
    count = int(same_cta.sum())
    return float((same_cta & (warp[low] == warp[high])).sum() / count) if count else 1.0
