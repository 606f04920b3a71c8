"""What a survey tries of a problem."""

from __future__ import annotations

import submission
from harness.evaluator.case.configs import spread
from submission import Config, Problem

MAX_CANDIDATES = 8


def candidates(problem: Problem, count: int = MAX_CANDIDATES) -> list[Config]:
    """At most `count` configurations, the pick first, as `eval.py tune` has them."""
    return spread(submission, problem)[:count]
