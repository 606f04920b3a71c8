"""Where an output differs from the reference, and which hypotheses reproduce it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.hypotheses import HYPOTHESES, Operand, View, operand
from reference import ATOL, RTOL, ref_kernel

SAMPLE = 600  # wrong elements that a hypothesis must reproduce
TERMS = 2_000_000  # of their sums held at a time, so fewer elements where K is large
MAP_WIDTH, MAP_HEIGHT = 96, 32
TILE = (128, 64)  # of the counts: weight rows x tokens
PARTIAL = 0.5  # share from which a hypothesis is worth a line though it does not explain all
PICTURE = 1024  # pixels of the longer side


@dataclass(frozen=True)
class Plane:
    """One group: output and truth, float32 (M, N, L), and where they differ, bool."""

    index: int
    got: np.ndarray
    want: np.ndarray
    wrong: np.ndarray
    view: Any  # (m, n, l) -> View
    weights_axis: int
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
    axis = 0 if want.shape[1] == 1 and b[0].rows > 1 else 1

    def view(m, n, l) -> View:
        return View(a, b, m, n, l, want.shape, axis, neighbours)

    wrong &= ~(np.isnan(got) & np.isnan(want))
    return Plane(index, got, want, wrong, view, axis, 2 * a.codes.shape[1])


def explain(data: tuple, output: Any, picture: Path | None = None) -> tuple[bool, str]:
    """(whether the output is right, the report). picture: a PNG of the first wrong group's map."""
    lines: list[str] = []
    for plane in planes(data, output):
        if plane.wrong.any():
            lines += _group(plane, picture)
            picture = None
    return not lines, "\n".join(lines) or "the output is right: nothing to explain"


def _group(plane: Plane, picture: Path | None) -> list[str]:
    m, n, l = plane.want.shape
    total = int(plane.wrong.sum())
    share = 100 * total / plane.wrong.size
    lines = [
        f"group {plane.index} (c is {m} x {n} x {l}): {total:,} elements differ ({share:.3g} %)"
    ]
    lines += _why(plane)
    lines += _counts(plane)
    lines += _map(plane)
    if picture is not None:
        _draw(plane, picture)
        lines.append(f"picture: {picture}")
    return lines


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
    axis = plane.weights_axis
    wrong = plane.wrong if axis == 0 else plane.wrong.transpose(1, 0, 2)  # weight rows first
    rows, tokens = wrong.sum((1, 2)), wrong.sum((0, 2))
    lines = []
    if wrong.shape[2] > 1:
        lines.append("  by batch: " + _ranges(wrong.sum((0, 1))))
    warps = [int(rows[np.arange(len(rows)) // 32 % 4 == w].sum()) for w in range(4)]
    lines.append("  by epilogue warp (weight row / 32 % 4): " + ", ".join(f"{c:,}" for c in warps))
    lines.append("  weight rows in a tile of 128: " + _ranges(_folded(rows, TILE[0])))
    lines.append("  tokens in a tile of 64: " + _ranges(_folded(tokens, TILE[1])))
    tiles = _tiles(wrong.sum(2), TILE)
    lines.append(
        f"  tiles of 128 weight rows x 64 tokens with errors: {(tiles > 0).sum()} of {tiles.size}"
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


def _draw(plane: Plane, path: Path):
    """A picture of the first wrong batch: white right, red wrong, black NaN."""
    from b200.clock.png import write_png

    batch = int(np.flatnonzero(plane.wrong.any((0, 1)))[0])
    wrong, got = plane.wrong[:, :, batch], plane.got[:, :, batch]
    scale = max(1, PICTURE // max(wrong.shape))
    step = max(1, max(wrong.shape) // PICTURE)
    pixels = np.full((*wrong.shape, 3), 255, np.uint8)
    pixels[wrong] = (208, 32, 32)
    pixels[np.isnan(got)] = (0, 0, 0)
    pixels = pixels[::step, ::step].repeat(scale, 0).repeat(scale, 1)
    write_png(path, np.ascontiguousarray(pixels))
