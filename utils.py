"""Seeding, cloning, clearing the L2 cache, and the report on where two results differ."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

TILE = 128  # rows and columns of a tile in the mismatch report: the rows of one MMA
MAP_TILES = 48  # widest and highest map printed
FIRST = 5  # mismatches quoted


def set_seed(seed: int) -> None:
    """Seed every random generator a run may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def clone_data(data: Any) -> Any:
    """A deep copy of tuples, lists and tensors; strides of permuted tensors are kept."""
    if isinstance(data, torch.Tensor):
        return data.clone()
    if isinstance(data, (list, tuple)):
        return type(data)(clone_data(item) for item in data)
    return data


def clear_l2_cache(gib: float) -> None:
    """Push everything out of L2 by writing `gib` GiB of normal random numbers, which also lets the
    host run ahead.

    The leaderboards write 4 GiB (gemv) or 62.5 GiB (the others); less where the GPU has less free
    memory.
    """
    free, _ = torch.cuda.mem_get_info()
    numbers = int(min(gib * 2**30, 0.9 * free)) // 4
    torch.randn(numbers, device="cuda")


def compare(received: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> str:
    """Where and how `received` differs from `expected`; empty where it does not.

    Both are (M, N, L) tensors of one shape. An element differs if |received - expected| > atol +
    rtol * |expected|, in fp32, or if one of them is NaN or an infinity that the other is not: the
    leaderboards' criterion.
    """
    got, want = received.float(), expected.float()
    error = (got - want).abs()
    bad = error > atol + rtol * want.abs()
    bad |= torch.isnan(got) != torch.isnan(want)
    bad |= (torch.isinf(got) | torch.isinf(want)) & (got != want)
    if not bool(bad.any()):
        return ""
    where = bad.nonzero().cpu()
    lines = [
        (
            f"{len(where):,} of {bad.numel():,} elements differ"
            f" ({100 * len(where) / bad.numel():.3g} %), rtol {rtol:g}, atol {atol:g}"
        ),
        _worst(got, want, error, bad),
        _extent(where),
        *_nature(got[bad], want[bad]),
        *_tile_map(bad),
        *(_quote(got, want, index) for index in where[:FIRST].tolist()),
    ]
    return "\n".join(lines)


def _quote(got: torch.Tensor, want: torch.Tensor, index: list[int]) -> str:
    at = tuple(index)
    return f"c[{', '.join(map(str, at))}]: got {got[at].item():g}, expected {want[at].item():g}"


def _worst(got: torch.Tensor, want: torch.Tensor, error: torch.Tensor, bad: torch.Tensor) -> str:
    finite = torch.where(bad & torch.isfinite(error), error, torch.zeros_like(error)).contiguous()
    flat = int(finite.argmax())
    at = [int(i) for i in np.unravel_index(flat, tuple(finite.shape))]
    return f"worst finite error {finite.view(-1)[flat].item():g} at {_quote(got, want, at)}"


def _extent(where: torch.Tensor) -> str:
    low, high = where.min(0).values.tolist(), where.max(0).values.tolist()
    axes = ("rows", "columns", "batches")
    return "within " + ", ".join(f"{axis} {a}..{b}" for axis, a, b in zip(axes, low, high))


def _nature(got: torch.Tensor, want: torch.Tensor) -> list[str]:
    """What the wrong values are, where that says something: zeros, NaN, infinities, all of the
    wrong sign.
    """
    kinds = {
        "zero": got == 0,
        "NaN": torch.isnan(got),
        "infinite": torch.isinf(got),
        "the negative of what was expected": (got == -want) & (want != 0),
    }
    counts = ((name, int(hit.sum())) for name, hit in kinds.items())
    return [f"{count:,} of them are {name}" for name, count in counts if count]


def _tile_map(bad: torch.Tensor) -> list[str]:
    """A character for each tile of 128 x 128 of the first batch that differs: `.` right, `+`
    partly, `#` all wrong.
    """
    batch = int(bad.any(0).any(0).nonzero()[0])
    plane = bad[:, :, batch].float()
    if max(plane.shape) <= TILE:
        return []
    rows, columns = (-(-size // TILE) for size in plane.shape)
    padded = torch.zeros(rows * TILE, columns * TILE, device=plane.device)
    padded[: plane.shape[0], : plane.shape[1]] = plane
    wrong = padded.view(rows, TILE, columns, TILE).sum((1, 3)).cpu()
    height = torch.full((rows,), TILE)
    width = torch.full((columns,), TILE)
    height[-1], width[-1] = (
        plane.shape[0] - TILE * (rows - 1),
        plane.shape[1] - TILE * (columns - 1),
    )
    whole = height[:, None] * width[None, :]
    picture = [
        "".join(
            "." if w == 0 else "#" if w == n else "+"
            for w, n in zip(line[:MAP_TILES], full[:MAP_TILES])
        )
        for line, full in zip(wrong.tolist()[:MAP_TILES], whole.tolist()[:MAP_TILES])
    ]
    cut = " (cut)" if max(rows, columns) > MAP_TILES else ""
    tiles = (
        f"{int((wrong > 0).sum())} of {rows * columns} tiles of {TILE} x {TILE} differ in batch"
        f" {batch}{cut}:"
    )
    return [tiles, *("  " + line for line in picture)]
