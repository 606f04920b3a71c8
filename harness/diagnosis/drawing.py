"""A picture of where an output is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from b200 import pictures
from harness.diagnosis.places import tiled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.diagnosis.places import Plane

CELLS = 1024  # of the picture along its longer side


def draw_map(plane: Plane, path: Path, what: str, text: str, of: str = "c is {m} x {n}") -> None:
    """The first wrong batch over rows and columns of c: white right, colour by the size of the
    error, black NaN or infinite, with the grid of the launch's tiles where they are known. text:
    stands under it in HTML. of: what is drawn, in the title, with the batch and its sizes.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch

    batch = int(np.flatnonzero(plane.wrong.any((0, 1)))[0])
    wrong = plane.wrong[:, :, batch]
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(plane.got[:, :, batch] - plane.want[:, :, batch])
    finite = np.where(wrong & np.isfinite(error), error, 0.0)
    lost = wrong & ~np.isfinite(error)
    step = max(1, -(-max(wrong.shape) // CELLS))
    m, n = wrong.shape
    figure = pictures.new(*_inches(m, n))
    axes = figure.subplots()
    extent = (0, n, m, 0)
    shown = _most(finite, step)
    if shown.any():
        sizes = finite[finite > 0]
        low, high = float(sizes.min()), float(sizes.max())
        norm = LogNorm(low, high if high > low else 2 * low)
        cells = np.ma.masked_equal(shown, 0)
        image = axes.imshow(
            cells, cmap="autumn_r", norm=norm, extent=extent, interpolation="nearest"
        )
        figure.colorbar(image, ax=axes, label="|got - expected|", shrink=0.8)
        spread = f"errors {low:.3g} to {high:.3g}"
    else:
        spread = "no finite error"
    if lost.any():
        black = np.ma.masked_equal(_most(lost.astype(np.float32), step), 0)
        axes.imshow(black, cmap="gray", vmin=1, vmax=2, extent=extent, interpolation="nearest")
    axes.set_aspect("auto")
    launched = plane.launched
    tile = launched.tile if launched is not None else None
    if tile is not None:
        _tile_grid(axes, m, n, tile)
    sides = ["", ""]
    if launched is not None and launched.m_axis is not None:
        sides = [f" ({'MN'[launched.m_axis != axis]} of the MMA)" for axis in (0, 1)]
    axes.set_ylabel(f"row of c{sides[0]}")
    axes.set_xlabel(f"column of c{sides[1]}")
    share = f"{int(wrong.sum()):,} of {wrong.size:,} elements differ, {spread}"
    where = of.format(batch=batch, m=m, n=n)
    title = "\n".join(filter(None, (what, where, share)))
    heading = pictures.set_title(axes, title, path)
    handles = [
        Patch(facecolor="white", edgecolor="gray", label="right"),
        Patch(color="#ff8000", label="wrong, by the size of the error"),
        Patch(color="black", label="wrong: NaN or infinite"),
    ]
    grid = f"grid: {tile[0]} rows x {tile[1]} columns, what a CTA has at a time" if tile else None
    figure.legend(
        handles=handles, title=grid, loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    pictures.save(figure, path, heading, text)


def _inches(m: int, n: int) -> tuple[float, float]:
    """The size of a figure for a matrix: near its shape, but never a thread."""
    ratio = min(max(m / n, 0.4), 1.6)
    return 9.0, 2.2 + 6.0 * ratio


def _most(cells: np.ndarray, step: int) -> np.ndarray:
    """The largest value of each square of step x step, so that no lone error is left out."""
    return tiled(cells, (step, step)).max((1, 3))


def _tile_grid(axes: Axes, m: int, n: int, tile: tuple[int, int]) -> None:
    """Lines at the edges of output tiles, and ticks where they are few enough to be read."""
    for size, length, line, ticks in (
        (m, tile[0], axes.axhline, axes.set_yticks),
        (n, tile[1], axes.axvline, axes.set_xticks),
    ):
        edges = range(0, size + 1, length)
        for edge in edges:
            line(edge, color="#3060a0", linewidth=0.4 if len(edges) > 40 else 0.7, alpha=0.6)
        ticks(edges if len(edges) <= 10 else edges[:: -(-len(edges) // 10)])
