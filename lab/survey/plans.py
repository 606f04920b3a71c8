"""What is tried of a problem: the pick, and what could repair a wrong estimate."""

from __future__ import annotations

from collections.abc import Callable

import submission
from submission import Config, Problem, mechanisms

MAX_CANDIDATES = 8
WORTH_TRYING = 1.15  # an estimate of at most this times the pick's


def plainest(problem: Problem) -> Config:
    """One CTA a tile, no cluster, no K split, one tile a CTA."""
    return Config(tile_n=8 if all(shape.m <= 8 for shape in problem.groups) else 64)


def candidates(problem: Problem, count: int = MAX_CANDIDATES) -> list[Config]:
    """At most `count` configurations, in this order: first the pick.

    Always among them, should the estimate be wrong: the plainest configuration, the best by
    estimate without a cluster, the best without any mechanism, and another tile for the pick's
    mechanisms. Then the best of each other combination of mechanisms that is worth trying.
    """
    legal = submission.legal_configs(problem)
    estimates = {config: submission.estimate(config, problem) for config in legal}
    first = submission.pick(problem)
    used = mechanisms(first)
    by_estimate = sorted(estimates, key=lambda config: estimates[config])

    def best(accepted: Callable[[Config], bool]) -> Config:
        return next(filter(accepted, by_estimate), first)

    found = [
        first,
        plainest(problem),
        best(lambda config: config.cluster == 1 and mechanisms(config) != ()),
        best(lambda config: mechanisms(config) == ()),
        best(lambda config: mechanisms(config) == used and config != first),
    ]
    combinations = {mechanisms(config) for config in found}
    limit = WORTH_TRYING * submission.estimate(first, problem)
    for config in by_estimate:
        if estimates[config] <= limit and mechanisms(config) not in combinations:
            combinations.add(mechanisms(config))
            found.append(config)
    return list(dict.fromkeys(found))[:count]
