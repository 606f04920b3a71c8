"""What a survey tries of a problem, and `eval.py tune`, too."""

from __future__ import annotations

import pytest

import submission
from harness.evaluator.case.configs import kind, spread
from lab.kernel_cases import dual, gemm, gemv
from lab.survey import plans
from submission import Config

PROBLEMS = [gemv(4096, 7168, 8), dual(3072, 256, 4096), gemm(256, 128, 512)]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_candidates(problem):
    """The pick and the plainest, then the best by estimate of other kinds, each kind once."""
    found = plans.candidates(problem)
    legal = submission.legal_configs(problem)
    assert found[0] == submission.pick(problem)
    assert min(len(kind(config)) for config in legal) in map(len, map(kind, found[:2]))
    assert len(found) == len(set(found)) <= plans.MAX_CANDIDATES
    others = found[2:]
    kinds = [kind(config) for config in others]
    assert len(set(kinds)) == len(kinds) or len(set(map(kind, legal))) < plans.MAX_CANDIDATES
    for config in found:
        submission.check(config, problem)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_of_each_kind_the_best_comes_first(problem):
    legal = submission.legal_configs(problem)
    order = spread(submission, problem)
    assert set(order) == {*legal, submission.pick(problem)} and len(order) == len(set(order))
    first = {}
    for config in order[2:]:
        first.setdefault(kind(config), config)
    for config in legal:
        best = first.get(kind(config))
        if best is not None and config not in order[:2]:
            assert submission.estimate(best, problem) <= submission.estimate(config, problem)


def test_a_kind_is_what_differs_from_the_default():
    assert kind(Config()) == () and kind(Config(tile_n=128, split_k=2)) == ("tile_n", "split_k")
