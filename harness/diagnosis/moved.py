"""Whether wrong rows or columns of an output are right ones in another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from reference import ATOL, RTOL

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of a step, of a block that is turned
FEWEST = 8  # elements that a line must have to be known again; lines that follow a rule
TRIED = 512  # wrong lines, that are looked for one by one
LISTED = 6  # of those that follow no rule
Rule = tuple[str, Callable[[np.ndarray], np.ndarray]]  # in words, of "line i"; line -> its source


def explain(got: np.ndarray, want: np.ndarray, wrong: np.ndarray) -> str:
    """A line on where the wrong elements belong, "" if they are no others of the right result.

    got, want: [M, N, L]; wrong: which elements are to be explained, bool.
    """
    for axis, what in enumerate(("row", "column")):
        # [lines, the elements of a line that are looked at, L], the lines along the axis
        crosswise = wrong.any((axis, 2))
        x, y, bad = (np.moveaxis(t, axis, 0)[:, crosswise] for t in (got, want, wrong))
        lines = np.flatnonzero(bad.any((1, 2)))
        if found := _explain(x, y, bad, lines):
            return f"{what}s of c are in other places: {found.format(what=what)}"
    return ""


def _explain(got: np.ndarray, want: np.ndarray, bad: np.ndarray, lines: np.ndarray) -> str:
    if len(lines) < 2:
        return ""
    followed = len(lines) >= FEWEST or got[0].size >= FEWEST
    for words, rule in _rules() if followed else ():
        if _is_it(got, want, bad, lines, rule(lines)):
            return f"{{what}} i has what belongs in {{what}} {words}"
    if got[0].size < FEWEST or len(lines) > TRIED:
        return ""
    sources = _look_for(got[lines], want)
    if (sources < 0).any():
        return ""
    pairs = [f"that of {s} in {i}" for i, s in zip(lines.tolist(), sources.tolist())]
    more = ", ..." if len(pairs) > LISTED else ""
    return f"what belongs in a {{what}} is in another, {', '.join(pairs[:LISTED])}{more}"


def _rules() -> Iterator[Rule]:
    """Plain ones first. A line whose source lies outside follows no rule."""
    for size in SIZES:
        yield f"i ^ {size}", lambda i, s=size: i ^ s
    for size in SIZES:
        yield f"i + {size}", lambda i, s=size: i + s
        yield f"i - {size}", lambda i, s=size: i - s
    for block in SIZES[2:]:
        within = f" in each {block}"
        yield f"{block - 1} - i{within}", lambda i, b=block: i // b * b + b - 1 - i % b
        for size in (s for s in SIZES if s < block):
            for by in (size, -size):
                text = f"i {'+' if by > 0 else '-'} {size}{within}, around"
                yield text, lambda i, b=block, by=by: i // b * b + (i % b + by) % b


def _is_it(
    got: np.ndarray, want: np.ndarray, bad: np.ndarray, lines: np.ndarray, sources: np.ndarray
) -> bool:
    """Whether all wrong elements of the lines are those of their sources."""
    if sources.min() < 0 or sources.max() >= len(want):
        return False
    few = slice(0, FEWEST)
    return all(
        bool((_near(got[lines[part]], want[sources[part]]) | ~bad[lines[part]]).all())
        for part in (few, slice(None))
    )


def _look_for(lines: np.ndarray, want: np.ndarray) -> np.ndarray:
    """For each of some lines the only one of `want` that it is; -1 where none or several are."""
    flat, found = want.reshape(len(want), -1), np.full(len(lines), -1)
    for at, line in enumerate(lines.reshape(len(lines), -1)):
        candidates = np.arange(len(want))
        for part in (slice(0, FEWEST), slice(None)):
            candidates = candidates[_near(line[part], flat[candidates, part]).all(1)]
        if len(candidates) == 1:
            found[at] = candidates[0]
    return found


def _near(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.abs(got - want) <= ATOL + RTOL * np.abs(want)
