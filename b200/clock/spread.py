"""How far off the clock is on kernels that it was not fitted to: the range beside a modelled time.

published_errors.json has the errors, by kind of kernel (kind.py): modelled over published time,
less one, for the reporting half of the published B200 times. `python -m lab figures --write`
writes the file from the points of `eval.py ladder`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("published_errors.json")
FEWEST = 4  # points of a kind that make a range; with fewer, those of all kinds do


@dataclass(frozen=True)
class Spread:
    """A range of errors. low, high: the published times of `points` kernels were between `low` and
    `high` times their modelled times; 1 lies between the two. whose: which kernels, in words.
    """

    low: float
    high: float
    points: int
    whose: str

    @property
    def text(self) -> str:
        return f"errors on {self.points} published times of {self.whose}"


def spread(
    kind: str,
    errors: dict[str, list[float]] | None = None,
    policies: Sequence[str] = (),
) -> Spread:
    """The spread of a kind of kernel. errors: kind -> errors, in place of the file's. policies: of
    the caches that the kernel asks for, which the clock does not time.
    """
    errors = published_errors() if errors is None else errors
    own = errors.get(kind, [])
    every = [error for part in errors.values() for error in part]
    if policies:
        return _of(every, f"all kinds (it asks for {', '.join(policies)}, which is not timed)")
    if len(own) >= FEWEST:
        return _of(own, f"kind {kind}")
    return _of(every, f"all kinds ({kind}: {len(own) or 'none'})")


def _of(errors: list[float], whose: str) -> Spread:
    ratios = [1.0, *(1 / (1 + error) for error in errors)]
    return Spread(min(ratios), max(ratios), len(errors), whose)


@cache
def published_errors() -> dict[str, list[float]]:
    return json.loads(FILE.read_text())["errors"]
