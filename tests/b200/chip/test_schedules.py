"""Schedules are read, perturb what may be perturbed, and leave a correct kernel's bits alone."""

from __future__ import annotations

import pytest
import torch

import submission
from b200.chip.schedules import Schedule, parse
from lab.kernel_cases import gemm as gemm_problem
from lab.kernel_cases import inputs
from submission import Config
from tests.planted_bugs import gemm
from tests.submission.submission_support import run

ORDERS = (None, "early", "late", "random:3")


def test_parse():
    assert parse("late") == Schedule("late")
    assert parse("random:12") == Schedule("random", 12)
    assert str(parse("random:12")) == "random:12"
    for text in ("", "random", "random:", "random:x", "late:1", "never"):
        with pytest.raises(ValueError, match="early, late, random:SEED, pdl or all"):
            parse(text)


def outcome(name: str, bug: bool, schedule: str):
    planted = next(c for c in gemm.PLANTED if c.name == name)
    return planted.run(bug, schedule)[1]


def test_late_completions_make_a_race_visible_in_the_result():
    """An epilogue that does not wait reads the accumulator before any MMA has happened."""
    assert outcome("tmem_before_commit", True, "late").right is False
    assert outcome("tmem_before_commit", False, "late").right is True


def test_the_same_seed_gives_the_same_run():
    first, second = (outcome("commit_before_mma", True, "random:5") for _ in range(2))
    assert first.text == second.text


@pytest.fixture
def three_stages(monkeypatch):
    """Shared memory so small that the ring of stages goes around."""
    monkeypatch.setattr(submission, "SMEM_BYTES", 100 * 1024)
    submission.kernel_for.cache_clear()
    yield
    submission.kernel_for.cache_clear()


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(cta_group=2),
        Config(cluster_n=2),
        Config(split_k=2),
    ],
    ids=["plain", "CTA pair", "multicast", "K split"],
)
def test_the_kernel_gives_the_same_bits_under_every_schedule(config, three_stages):
    data = inputs(gemm_problem(256, 128, 1280), 3)
    results = [run(data, config, schedule).clone() for schedule in ORDERS]
    for schedule, result in zip(ORDERS, results):
        assert torch.equal(result.view(torch.int16), results[0].view(torch.int16)), schedule


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_configurations_under_twenty_schedules(seed):
    """A seeded sample of the covering set, twenty schedules each: same bits, no finding."""
    import random

    from lab.kernel_cases import covering_set

    rng = random.Random(seed)
    config, problem = rng.choice(covering_set()[0])
    data = inputs(problem, seed)

    def bits(schedule):
        result = run(data, config, schedule)
        parts = result if isinstance(result, list) else [result]
        return [part.clone().view(torch.int16) for part in parts]

    orders = ["early", "late", *(f"random:{rng.randrange(10**6)}" for _ in range(18))]
    expected = bits(None)
    for schedule in orders:
        same = all(torch.equal(a, b) for a, b in zip(bits(schedule), expected))
        assert same, (schedule, config, problem)
