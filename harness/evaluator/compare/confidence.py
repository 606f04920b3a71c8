"""How far a modelled difference of two kernels can be trusted: how often the clock has put two
published versions of a kernel in the order that a B200 had them in (docs/results/ladder.jsonl).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LADDER = Path(__file__).resolve().parents[3] / "docs" / "results" / "ladder.jsonl"
EDGES = (0.0, 0.02, 0.1)  # of the bands of a difference
SURE = 0.9  # share of the pairs from which a difference is said to be more than the clock's error
LIKELY = 0.65


class Band(NamedTuple):
    """Pairs whose modelled times are `low` to `high` apart: how many, and in how many of them the
    slower one was slower on a B200.
    """

    low: float
    high: float
    pairs: int
    right: int

    def __str__(self) -> str:
        apart = f"{self.low:.0%} and more" if self.high == float("inf") else self._between()
        return f"of {self.pairs} pairs {apart} apart, {self.right} were in that order on a B200"

    def _between(self) -> str:
        return f"{self.low:.0%} to {self.high:.0%}" if self.low else f"less than {self.high:.0%}"

    @property
    def word(self) -> str:
        share = self.right / self.pairs if self.pairs else 0.0
        if share >= SURE:
            return "more than the clock's error"
        return "likely" if share >= LIKELY else "less than the clock can tell"


@cache
def bands() -> tuple[Band, ...]:
    """The bands of the half of the versions that the clock was not fitted to."""
    lines = LADDER.read_text().splitlines()
    return tuple(count([json.loads(line) for line in lines]))


def count(records: Sequence[dict[str, Any]]) -> Iterator[Band]:
    """The bands of pairs of versions on one shape, both of the odd half; equal published times
    count as wrong.
    """
    held = [r for r in records if r["parity"] == "odd" and r["status"] == "pass"]
    pairs = [
        sorted(pair, key=lambda r: r["time_us"])
        for pair in itertools.combinations(held, 2)
        if pair[0]["problem"] == pair[1]["problem"] and pair[0]["shape"] == pair[1]["shape"]
    ]
    for low, high in itertools.pairwise((*EDGES, float("inf"))):
        here = [(a, b) for a, b in pairs if low <= b["time_us"] / a["time_us"] - 1 < high]
        right = sum(b["published_us"] > a["published_us"] for a, b in here)
        yield Band(low, high, len(here), right)


def of(ratio: float) -> Band:
    """The band of two modelled times whose ratio is this."""
    apart = max(ratio, 1 / ratio) - 1
    return next(band for band in bands() if band.low <= apart < band.high)
