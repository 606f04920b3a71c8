"""Where an output is wrong, in words and characters: by batch, by tile, by warp.

Tiles and warps are those of the launches at hand (launched.py); without a record of their stores
only rows and columns are named.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from harness.diagnosis.launched import Launched

MAP_WIDTH, MAP_HEIGHT = 96, 32
QUARTER = 32  # lanes of tensor memory that a warp can read
MOST_RUNS = 8
ALL_OVER = 0.95  # share of a map's cells that are mostly wrong, from which it shows nothing


class Plane(Protocol):
    """An output beside the right one, float32 (M, N, L); where they differ, bool; and what the
    launches did to it.
    """

    @property
    def got(self) -> np.ndarray: ...
    @property
    def want(self) -> np.ndarray: ...
    @property
    def wrong(self) -> np.ndarray: ...
    @property
    def launched(self) -> Launched | None: ...


def counts(plane: Plane) -> list[str]:
    wrong, launched = plane.wrong, plane.launched
    lines = []
    if wrong.shape[2] > 1:
        lines.append("  by batch: " + runs(wrong.sum((0, 1))))
    tile = launched.tile if launched is not None else None
    if launched is None or tile is None:
        for axis, what in enumerate(("rows", "columns")):
            lines.append(f"  {what} with errors: {ranges(wrong.sum((1 - axis, 2)) > 0)}")
        return lines
    rows, columns = tile
    of = f", MMAs of {launched.mma[0]} x {launched.mma[1]}" if launched.mma else ""
    lines.append(f"  the launch: a CTA has {rows} rows x {columns} columns of c at a time{of}")
    lines += _by_warp(plane)
    for axis, (size, what) in enumerate(((rows, "rows"), (columns, "columns"))):
        along = wrong.sum((1 - axis, 2))
        side = "" if launched.m_axis is None else f" ({'MN'[launched.m_axis != axis]} of the MMA)"
        lines.append(f"  {what} in a tile{side}: {runs(folded(along, size))}")
    bad = sums(wrong.sum(2), tile)
    lines.append(f"  tiles with errors: {(bad > 0).sum()} of {bad.size}")
    worst = np.unravel_index(int(bad.argmax()), bad.shape)
    lines.append(f"  most in the tile {tuple(map(int, worst))}: {int(bad.max()):,}")
    return lines


def _by_warp(plane: Plane) -> list[str]:
    """Errors by the warp that stored them; out of shared memory, by quarter of tensor memory."""
    launched, wrong = plane.launched, plane.wrong
    assert launched is not None and launched.tile is not None
    warps = launched.warps
    if (wrong & (warps >= 0)).any():
        numbers = np.unique(warps[warps >= 0]).tolist()
        found = (f"{w}: {int(wrong[warps == w].sum()):,}" for w in numbers)
        return [f"  by the warp that stores it: {', '.join(found)}"]
    if launched.m_axis is None or launched.tile[launched.m_axis] % (4 * QUARTER):
        return []
    if (warps >= 0).any():
        return []  # what is wrong was not stored
    along = wrong.sum((1 - launched.m_axis, 2))
    at = np.arange(len(along)) // QUARTER % 4
    found = ", ".join(f"{int(along[at == quarter].sum()):,}" for quarter in range(4))
    side = ("row", "column")[launched.m_axis]
    return [f"  by quarter of tensor memory ({side} of c / {QUARTER} % 4): {found}"]


def folded(along: np.ndarray, period: int) -> np.ndarray:
    """Counts by index modulo a period."""
    padded = np.zeros(-(-len(along) // period) * period, along.dtype)
    padded[: len(along)] = along
    return padded.reshape(-1, period).sum(0)


def runs(along: np.ndarray) -> str:
    """ "0-31: 4,096 each", "all alike, 3 each", ...: runs of equal counts, zeros left out."""
    if (along == along[0]).all():
        return f"all alike, {int(along[0]):,} each"
    edges = [0, *(np.flatnonzero(np.diff(along)) + 1).tolist(), len(along)]
    found = [(a, b - 1, int(along[a])) for a, b in zip(edges, edges[1:]) if along[a]]
    if len(found) > MOST_RUNS:
        nonzero = np.flatnonzero(along)
        return f"{len(nonzero)} of {len(along)}, from {nonzero[0]} to {nonzero[-1]}"
    return ", ".join(f"{_run(a, b)}: {count:,} each" for a, b, count in found)


def ranges(marked: np.ndarray) -> str:
    """ "all 128", "0-31, 64", "17 of 128, from 3 to 99": where a bool vector is true."""
    if marked.all():
        return f"all {len(marked)}"
    edges = np.flatnonzero(np.diff(np.concatenate(([0], marked.astype(np.int8), [0]))))
    found = [(a, b - 1) for a, b in zip(edges[::2].tolist(), edges[1::2].tolist())]
    if len(found) > MOST_RUNS:
        at = np.flatnonzero(marked)
        return f"{len(at)} of {len(marked)}, from {at[0]} to {at[-1]}"
    return ", ".join(_run(a, b) for a, b in found) or "none"


def _run(first: int, last: int) -> str:
    return f"{first}-{last}" if first != last else f"{first}"


def sums(cells: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Sums over tiles of a matrix."""
    return tiled(cells.astype(np.int64), size).sum((1, 3))


def tiled(cells: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """A matrix by its tiles: [row of tiles, row, column of tiles, column]; zeros at its ends."""
    rows, columns = (-(-n // s) for n, s in zip(cells.shape, size))
    padded = np.zeros((rows * size[0], columns * size[1]), cells.dtype)
    padded[: cells.shape[0], : cells.shape[1]] = cells
    return padded.reshape(rows, size[0], columns, size[1])


def text_map(plane: Plane) -> list[str]:
    """The first wrong batch in characters: how much of each cell is wrong."""
    batch = int(np.flatnonzero(plane.wrong.any((0, 1)))[0])
    wrong = plane.wrong[:, :, batch]
    cell = [max(1, -(-n // limit)) for n, limit in zip(wrong.shape, (MAP_HEIGHT, MAP_WIDTH))]
    bad, all_ = sums(wrong, tuple(cell)), sums(np.ones_like(wrong, int), tuple(cell))
    marks = np.array(list(".:+#"))
    level = np.where(bad == 0, 0, np.where(bad == all_, 3, np.where(2 * bad > all_, 2, 1)))
    if (level == level[0, 0]).all() or (level >= 2).mean() > ALL_OVER:
        share = f"{wrong.sum():,} of {wrong.size:,} elements"
        return [f"  no map: batch {batch} is wrong all over ({share})"]
    lines = [
        f"  map, a character is {cell[0]} x {cell[1]} of c: . right, : some, + most, # all wrong"
    ]
    rows = itertools.groupby("".join(marks[row]) for row in level)
    for row, alike in rows:
        count = len(list(alike))
        lines.append(f"    {row}{f'  ({count} rows of this map)' if count > 1 else ''}")
    return lines
