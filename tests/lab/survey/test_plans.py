"""What a survey tries of a problem."""

from __future__ import annotations

import pytest

import submission
from lab.kernel_cases import dual, gemm, gemv
from lab.survey import plans


@pytest.mark.parametrize(
    "problem", [gemv(4096, 7168, 8), dual(3072, 256, 4096), gemm(256, 128, 512)]
)
def test_candidates(problem):
    """The pick, then what can repair a wrong estimate, then others in order."""
    found = plans.candidates(problem)
    assert found[0] == submission.pick(problem) and plans.plainest(problem) in found[:2]
    assert len(found) == len(set(found)) <= plans.MAX_CANDIDATES
    used = submission.mechanisms(found[0])
    legal = submission.legal_configs(problem)

    def best(accepted):
        of_them = filter(accepted, legal)
        return min(of_them, key=lambda c: submission.estimate(c, problem), default=found[0])

    assert best(lambda c: c.cluster == 1 and submission.mechanisms(c)) in found
    assert best(lambda c: not submission.mechanisms(c)) in found
    assert best(lambda c: submission.mechanisms(c) == used and c != found[0]) in found
    for config in found:
        submission.check(config, problem)
