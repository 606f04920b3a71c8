"""Which tests of a suite are run: all, one of each test function, or some of all."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lab.suites.rows import function_of

WHOLE, FUNCTION = "whole", "function"


def draw(tests: Sequence[str], sample: str, seed: int) -> list[str]:
    """The tests of a sample in an order by chance, the same for the same seed.

    sample: WHOLE, FUNCTION (one set of parameters of each test function), or how many of all.
    """
    chance = random.Random(seed)
    shuffled = list(tests)
    chance.shuffle(shuffled)
    if sample == WHOLE:
        return shuffled
    if sample == FUNCTION:
        return list({function_of(test): test for test in reversed(shuffled)}.values())[::-1]
    return shuffled[: int(sample)]


def checked(sample: str) -> str:
    """The sample as it is given; ValueError for one that there is not."""
    if sample in (WHOLE, FUNCTION) or (sample.isdecimal() and int(sample) > 0):
        return sample
    raise ValueError(f"--sample: expected {WHOLE}, {FUNCTION} or a number, got {sample!r}")
