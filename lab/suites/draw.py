"""Which tests of a suite are run: all, one of each test function, or some of all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from lab.suites.rows import function_of

WHOLE, FUNCTION = "whole", "function"


def draw(tests: Sequence[str], sample: str, seed: int) -> list[str]:
    """The tests of a sample in an order by chance, the same for the same seed.

    sample: WHOLE, FUNCTION (one set of parameters of each test function), "function:N" (N sets of
    each), or how many of all.
    """
    chance = random.Random(seed)
    shuffled = list(tests)
    chance.shuffle(shuffled)
    if sample == WHOLE:
        return shuffled
    if (most := of_each(sample)) is not None:
        seen: Counter[str] = Counter()
        drawn = []
        for test in shuffled:
            seen[function_of(test)] += 1
            if seen[function_of(test)] <= most:
                drawn.append(test)
        return drawn
    return shuffled[: int(sample)]


def of_each(sample: str) -> int | None:
    """How many tests of each function a sample has; None for one that is not of functions."""
    if sample == FUNCTION:
        return 1
    name, _, many = sample.partition(":")
    return int(many) if name == FUNCTION and many.isdecimal() and int(many) else None


def checked(sample: str) -> str:
    """The sample as it is given; ValueError for one that there is not."""
    if sample == WHOLE or of_each(sample) or (sample.isdecimal() and int(sample) > 0):
        return sample
    expected = f"{WHOLE}, {FUNCTION}, {FUNCTION}:N or a number"
    raise ValueError(f"--sample: expected {expected}, got {sample!r}")
