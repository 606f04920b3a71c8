"""The kernel as submitted, on random legal shapes of the four problems, in the emulator."""

from __future__ import annotations

import math
import random

import pytest
import torch

import b200
import submission
from b200.checker.observer import Observer
from lab.kernel_cases import dual, gemm, gemv, group, inputs
from submission import Config, Problem
from tests.submission.submission_support import run, verify

PROBLEMS = ("gemv", "gemm", "dual", "group")


def random_problem(name: str, rng: random.Random) -> Problem:
    """Sizes of 1 up to a few tiles, K a multiple of 64; rows are aligned in half of the cases."""

    def rows() -> int:
        return rng.randint(1, 48) * 16 if rng.random() < 0.5 else rng.randint(1, 600)

    def tokens() -> int:
        return rng.choice((rng.randint(1, 16), rng.randint(1, 150), rng.randint(1, 400)))

    def k() -> int:
        return 64 * rng.choice((rng.randint(1, 8), rng.randint(1, 40)))

    if name == "gemv":
        return gemv(rows(), k(), rng.randint(1, 3))
    if name == "group":
        return group(*((tokens(), rows(), k()) for _ in range(rng.randint(1, 5))))
    return {"gemm": gemm, "dual": dual}[name](rows(), tokens(), k(), rng.choice((1, 1, 2, 3)))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROBLEMS)
def test_random_shape(name, seed):
    verify(random_problem(name, random.Random(f"{name} {seed}")), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_200_random_shapes(name):
    rng = random.Random(f"{name} sweep")
    schedules = (None, "early", "late", "random:3")
    for index in range(200):
        verify(random_problem(name, rng), seed=index, schedule=schedules[index % 4])


@pytest.mark.parametrize(
    "name, kind",
    [
        *(("gemv", "full"), ("gemm", "quantized"), ("dual", "full"), ("group", "quantized")),
        pytest.param("gemv", "quantized", marks=pytest.mark.slow),
        pytest.param("gemm", "full", marks=pytest.mark.slow),
        pytest.param("dual", "quantized", marks=pytest.mark.slow),
        pytest.param("group", "full", marks=pytest.mark.slow),
    ],
)
def test_other_values(name, kind):
    """Quantised real values; all nibbles with scales from subnormal to 448. The shapes are those of
    test_random_shape: the kernels are compiled.
    """
    verify(random_problem(name, random.Random(f"{name} 0")), seed=7, kind=kind)


@pytest.mark.parametrize(
    "problem, config",
    [
        (gemm(512, 64, 512), Config(tile_n=64)),
        (gemm(512, 64, 512), Config(tile_n=64, cta_group=2)),
        (dual(512, 64, 512), Config(tile_n=64, cluster_n=1)),
        (group((64, 512, 512), (64, 256, 512)), Config(tile_n=64)),
    ],
)
def test_of_clusters_that_do_the_same_one_is_checked(problem, config):
    """Else nothing is wrong but the time that a test takes (b200/checker/following.py)."""
    run(inputs(problem, 1), config)
    launch = b200.install().launches[-1]
    clusters = math.prod(launch.grid) // math.prod(launch.cluster)
    assert clusters > 1 and launch.followed >= clusters - 2


def test_of_a_second_launch_none_is_checked_and_as_much_is_known(monkeypatch):
    """Rules for the whole launch know as much as where all clusters are checked, here of the
    descriptors of each CTA.
    """
    known, finish = [], Observer.finish

    def noted(observer):
        known.append(str(observer.descriptors.fields))
        finish(observer)

    monkeypatch.setattr(Observer, "finish", noted)
    config = Config(tile_n=64, cta_group=2)
    followed = []
    for check in (True, "all"):
        gpu = b200.install(check=check)
        for seed in (1, 2):
            data = inputs(gemm(512, 64, 512), seed)
            groups, _ = submission.unpack(data)
            submission.launch(submission.problem_of(data, groups), groups, config)
            followed.append(gpu.launches[-1].followed)
            assert gpu.launches[-1].findings == []
    assert followed == [1, 2, 0, 0]
    assert known[0] != "{}" and known == known[:1] * 4


def test_remarks_on_a_cluster_are_made_in_a_second_launch_too():
    """A tile that is not full: a part of a load is not used."""
    config, said = Config(tile_n=64, cta_group=2), []
    followed = []
    for check in (True, "all"):
        gpu = b200.install(check=check)
        for seed in (1, 2):
            data = inputs(gemm(512, 40, 512), seed)
            groups, _ = submission.unpack(data)
            submission.launch(submission.problem_of(data, groups), groups, config)
            followed.append(gpu.launches[-1].followed)
            said.append(list(map(str, gpu.launches[-1].findings or ())))
    assert followed == [1, 2, 0, 0]
    assert said[0] and said == said[:1] * 4


@pytest.mark.parametrize(
    "problem", [gemm(1, 1, 64), gemm(1, 300, 64, 2), dual(1, 1, 64), gemv(1, 64)]
)
def test_smallest_sizes(problem):
    verify(problem)


def test_a_gemm_with_one_column_is_no_gemv():
    """b has 1 row, not 128 of which one counts."""
    verify(gemm(1, 130, 256, l=2))


def test_a_gemm_with_128_rows_and_one_token():
    verify(gemm(128, 1, 256, l=2))


@pytest.mark.parametrize("count", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_many_groups(count):
    """More than the boards have, 8; more than a warp has lanes."""
    verify(group(*((8 + 8 * (g % 3), 128, 64 + 64 * (g % 2)) for g in range(count))))


@pytest.mark.parametrize("config", [Config(tile_n=8), Config(swap_ab=False)], ids=str)
def test_silu_of_small_and_of_large_gates(config):
    """One product of each sum is not 0. Gates are 0 to 192 of either sign, for powers up to 2^277,
    which fp32 does not have; float64 says what comes out, but for a rounding to fp16.
    """
    data = inputs(dual(128, 8, 256), seed=1)
    a, b1, b2, _, _, _, sfa, sfb1, sfb2, _ = data
    rows = torch.arange(128)
    for codes, first in ((a, 2), (b1, rows % 16), (b2, 7)):  # 1, all values of e2m1, 6
        codes.view(torch.uint8).zero_()[:, 0, 0] = first
    exponents = rows // 16 - 2
    for scales in (sfa, sfb1, sfb2):
        scales.view(torch.uint8).fill_(7 << 3)  # 1 in ue4m3
    first_blocks = ((exponents + 7) << 3).to(torch.uint8).view(4, 32).T
    sfb1.view(torch.uint8)[:, :, 0, 0, 0, 0] = first_blocks
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    gates = torch.cat([values, -values])[rows % 16] * 2.0**exponents
    expected = 6 * gates / (1 + torch.exp(-gates))
    found = run(data, config)[:, :, 0].double()
    allowed = expected.abs() * (2**-11 + (gates.abs() + 8) * 2**-23 + 2**-24) + 2**-25
    assert ((found - expected).abs() <= allowed).all()
