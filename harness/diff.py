"""Where an output differs from the reference, and which hypotheses reproduce it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from b200 import pictures
from harness.hypotheses import HYPOTHESES, Operand, View, operand
from reference import ATOL, RTOL, ref_kernel

SAMPLE = 600  # wrong elements that a hypothesis must reproduce
TERMS = 2_000_000  # of their sums held at a time, so fewer elements where K is large
MAP_WIDTH, MAP_HEIGHT = 96, 32
TILE = (128, 64)  # of the counts: M x N of the MMA
PARTIAL = 0.5  # share from which a hypothesis is worth a line though it does not explain all
CELLS = 1024  # of the picture along its longer side


@dataclass(frozen=True)
class Plane:
    """One group: output and truth, float32 (M, N, L), and where they differ, bool."""

    index: int
    got: np.ndarray
    want: np.ndarray
    wrong: np.ndarray
    view: Any  # (m, n, l) -> View
    rows_axis: int
    k: int


def planes(data: tuple, output: Any) -> Iterator[Plane]:
    """The groups of any of the four problems' data; one for all but nvfp4_group_gemm."""
    truth = ref_kernel(data)
    if isinstance(data[0], list):
        abc, scales, _, _ = data
        groups = [
            (operand("a", a, sfa), [operand("b", b, sfb)])
            for (a, b, _), (sfa, sfb) in zip(abc, scales)
        ]
        for i, group in enumerate(groups):
            near = [(by, *groups[i + by]) for by in (1, -1) if 0 <= i + by < len(groups)]
            yield _plane(i, *group, output[i], truth[i], near)
    elif len(data) == 10:
        a, b1, b2, sfa, sfb1, sfb2 = data[:6]
        pair = [operand("b", b1, sfb1), operand("b", b2, sfb2)]
        yield _plane(0, operand("a", a, sfa), pair, output, truth)
    else:
        a, b, sfa, sfb = data[:4]
        yield _plane(0, operand("a", a, sfa), [operand("b", b, sfb)], output, truth)


def _plane(index: int, a: Operand, b: list[Operand], got, want, neighbours=()) -> Plane:
    got, want = got.float().cpu().numpy(), want.float().cpu().numpy()
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - want) <= ATOL + RTOL * np.abs(want)) & (got != want)
    # In the leaderboards' cases a is the rows of a gemv's and a dual's MMA, b of the others'.
    axis = 0 if len(b) == 2 or (want.shape[1] == 1 and b[0].rows > 1) else 1

    def view(m, n, l) -> View:
        return View(a, b, m, n, l, want.shape, axis, neighbours)

    wrong &= ~(np.isnan(got) & np.isnan(want))
    return Plane(index, got, want, wrong, view, axis, 2 * a.codes.shape[1])


def explain(
    data: tuple, output: Any, picture: Path | None = None, what: str = ""
) -> tuple[bool, str]:
    """(whether the output is right, the report).

    picture: file for a map of the first wrong group (b200.pictures.SUFFIXES). what: the case, for
    its title.
    """
    lines: list[str] = []
    for plane in planes(data, output):
        if plane.wrong.any():
            found = _group(plane)
            if picture is not None:
                draw_map(plane, picture, what, "\n".join(found))
                found.append(f"picture: {picture}")
                picture = None
            lines += found
    return not lines, "\n".join(lines) or "the output is right: nothing to explain"


def _group(plane: Plane) -> list[str]:
    m, n, l = plane.want.shape
    total = int(plane.wrong.sum())
    share = 100 * total / plane.wrong.size
    lines = [
        f"group {plane.index} (c is {m} x {n} x {l}): {total:,} elements differ ({share:.3g} %)"
    ]
    lines += _why(plane)
    lines += _counts(plane)
    return lines + _map(plane)


# --- why ----------------------------------------------------------------------------------------


def _why(plane: Plane) -> list[str]:
    places = np.argwhere(plane.wrong)
    most = min(SAMPLE, max(64, TERMS // plane.k))
    if len(places) > most:
        places = places[np.random.default_rng(0).choice(len(places), most, replace=False)]
    m, n, l = places.T
    got = plane.got[m, n, l].astype(np.float64)
    scored = sorted(_scores(plane.view(m, n, l), got), key=lambda s: -s[1])
    exact = [name for name, share in scored if share == 1.0]
    lines = [f"  explained: {name}" for name in exact[:4]]
    partial = [s for s in scored if PARTIAL <= s[1] < 1.0][:3] if not exact else []
    lines += [f"  {100 * share:.0f} % explained: {name}" for name, share in partial]
    return lines or [f"  none of {len(scored)} hypotheses reproduces it; see harness/hypotheses.py"]


def _scores(view: View, got: np.ndarray) -> Iterator[tuple[str, float]]:
    for make in HYPOTHESES:
        for name, values in make(view):
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = values.astype(np.float16).astype(np.float64)
                near = np.abs(rounded - got) <= ATOL + RTOL * np.abs(rounded)
            near |= rounded == got
            yield name, float(near.mean())


# --- where --------------------------------------------------------------------------------------


def _counts(plane: Plane) -> list[str]:
    """By batch, by the epilogue's warp, by row and column inside a tile, by tile."""
    axis = plane.rows_axis
    wrong = plane.wrong if axis == 0 else plane.wrong.transpose(1, 0, 2)  # rows of the MMA first
    rows, columns = wrong.sum((1, 2)), wrong.sum((0, 2))
    lines = []
    if wrong.shape[2] > 1:
        lines.append("  by batch: " + _ranges(wrong.sum((0, 1))))
    warps = [int(rows[np.arange(len(rows)) // 32 % 4 == w].sum()) for w in range(4)]
    lines.append(
        "  by epilogue warp (row of the MMA / 32 % 4): " + ", ".join(f"{c:,}" for c in warps)
    )
    lines.append("  rows in a tile of 128: " + _ranges(_folded(rows, TILE[0])))
    lines.append("  columns in a tile of 64: " + _ranges(_folded(columns, TILE[1])))
    tiles = _tiles(wrong.sum(2), TILE)
    lines.append(
        f"  tiles of 128 rows x 64 columns with errors: {(tiles > 0).sum()} of {tiles.size}"
    )
    worst = np.unravel_index(int(tiles.argmax()), tiles.shape)
    lines.append(f"  most in the tile {tuple(map(int, worst))}: {int(tiles.max()):,}")
    return lines


def _folded(counts: np.ndarray, period: int) -> np.ndarray:
    """Counts by index modulo a period."""
    padded = np.zeros(-(-len(counts) // period) * period, counts.dtype)
    padded[: len(counts)] = counts
    return padded.reshape(-1, period).sum(0)


def _ranges(counts: np.ndarray) -> str:
    """ "0-31: 4,096 each", "all alike", ...: runs of equal counts, zeros left out."""
    if (counts == counts[0]).all():
        return f"all alike, {int(counts[0]):,} each"
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
    runs = [(a, b - 1, int(counts[a])) for a, b in zip(edges, edges[1:]) if counts[a]]
    if len(runs) > 8:
        nonzero = np.flatnonzero(counts)
        return f"{len(nonzero)} of {len(counts)}, from {nonzero[0]} to {nonzero[-1]}"
    named = (f"{a}-{b}" if a != b else f"{a}" for a, b, _ in runs)
    return ", ".join(f"{where}: {count:,} each" for where, (_, _, count) in zip(named, runs))


def _tiles(counts: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Sums over tiles of a matrix."""
    shape = [-(-n // s) for n, s in zip(counts.shape, size)]
    padded = np.zeros((shape[0] * size[0], shape[1] * size[1]), np.int64)
    padded[: counts.shape[0], : counts.shape[1]] = counts
    return padded.reshape(shape[0], size[0], shape[1], size[1]).sum((1, 3))


def _map(plane: Plane) -> list[str]:
    """The first wrong batch in characters: how much of each cell is wrong."""
    wrong = plane.wrong[:, :, int(np.flatnonzero(plane.wrong.any((0, 1)))[0])]
    cell = [max(1, -(-n // limit)) for n, limit in zip(wrong.shape, (MAP_HEIGHT, MAP_WIDTH))]
    bad, all_ = _tiles(wrong, tuple(cell)), _tiles(np.ones_like(wrong, int), tuple(cell))
    marks = np.array(list(".:+#"))
    level = np.where(bad == 0, 0, np.where(bad == all_, 3, np.where(2 * bad > all_, 2, 1)))
    lines = [
        f"  map, a character is {cell[0]} x {cell[1]} of c: . right, : some, + most, # all wrong"
    ]
    return lines + ["    " + "".join(marks[row]) for row in level]


def draw_map(plane: Plane, path: Path, what: str, text: str) -> None:
    """The first wrong batch over rows and columns of c: white right, colour by the size of the
    error, black NaN or infinite, with the grid of output tiles. text: stands under it in HTML.
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
    _tile_grid(axes, m, n, plane.rows_axis)
    sides = ("M of the MMA", "N of the MMA")[:: 1 if plane.rows_axis == 0 else -1]
    axes.set_ylabel(f"row of c ({sides[0]})")
    axes.set_xlabel(f"column of c ({sides[1]})")
    share = f"{int(wrong.sum()):,} of {wrong.size:,} elements differ, {spread}"
    where = f"group {plane.index}, batch {batch}: c is {m} x {n}, K = {plane.k}"
    title = "\n".join(filter(None, (what, where, share)))
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    handles = [
        Patch(facecolor="white", edgecolor="gray", label="right"),
        Patch(color="#ff8000", label="wrong, by the size of the error"),
        Patch(color="black", label="wrong: NaN or infinite"),
    ]
    grid = f"grid: tiles of {TILE[0]} x {TILE[1]}, M x N of the MMA"
    figure.legend(
        handles=handles, title=grid, loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    pictures.save(figure, path, title.replace("\n", "; "), text)


def _inches(m: int, n: int) -> tuple[float, float]:
    """Of a figure for a matrix: near its shape, but never a thread."""
    ratio = min(max(m / n, 0.4), 1.6)
    return 9.0, 2.2 + 6.0 * ratio


def _most(cells: np.ndarray, step: int) -> np.ndarray:
    """The largest value of each square of step x step, so that no lone error is left out."""
    padded = np.zeros([-(-size // step) * step for size in cells.shape], cells.dtype)
    padded[: cells.shape[0], : cells.shape[1]] = cells
    shape = (padded.shape[0] // step, step, padded.shape[1] // step, step)
    return padded.reshape(shape).max((1, 3))


def _tile_grid(axes, m: int, n: int, rows_axis: int) -> None:
    """Lines at the edges of output tiles, and ticks where they are few enough to be read."""
    tile = TILE if rows_axis == 0 else TILE[::-1]
    for size, length, line, ticks in (
        (m, tile[0], axes.axhline, axes.set_yticks),
        (n, tile[1], axes.axvline, axes.set_xticks),
    ):
        edges = range(0, size + 1, length)
        for edge in edges:
            line(edge, color="#3060a0", linewidth=0.4 if len(edges) > 40 else 0.7, alpha=0.6)
        ticks(edges if len(edges) <= 10 else edges[:: -(-len(edges) // 10)])
