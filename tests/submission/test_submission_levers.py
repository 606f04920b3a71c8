"""Every lever of the kernel, alone and in pairs, in the emulator under adversarial schedules."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict

import pytest
import torch

import submission
from b200.checker.checked import Checker
from b200.chip.operations import TmaLoad
from lab.kernel_cases import (
    LEVER_CASES,
    LEVERS,
    covering_set,
    dual,
    gemm,
    group,
    inputs,
    legal_pair,
)
from submission import Config
from tests.submission.submission_support import run, verify, waves_of

SCHEDULES = (None, "early", "late", "random:1", "random:2")
# Tiles of 128, 192 and 256 tokens, which other cases have, too, with another lever.
AMONG_SWEEPS = {"wide pair", "192 tokens", "256 tokens", "K split"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in AMONG_SWEEPS else ())
        for name in LEVER_CASES
    ],
)
def test_lever(name):
    config, problem = LEVER_CASES[name]
    order = SCHEDULES[list(LEVER_CASES).index(name) % len(SCHEDULES)]
    verify(problem, config, schedule=order)


@pytest.mark.parametrize(
    "tile, accumulators, rows, pair",
    [
        (64, 2, 384, 2),
        (192, 2, 640, 1),
        (256, 1, 384, 2),
        pytest.param(64, 2, 384, 1, marks=pytest.mark.slow),
        pytest.param(192, 2, 640, 2, marks=pytest.mark.slow),
        pytest.param(256, 1, 384, 1, marks=pytest.mark.slow),
    ],
)
def test_a_persistent_cluster_walks_several_tiles(four_sms, tile, accumulators, rows, pair):
    """The pipelines' phases wrap, and a tile may be in another group than the one before."""
    config = Config(cta_group=pair, tile_n=tile, persistent=True)
    problem = group((100, 384, 320), (64, rows, 1088), (300, rows, 320))
    plan, waves = submission.Plan(config, problem), waves_of(config, problem)
    assert plan.num_acc_stages == accumulators
    assert waves > 2 * accumulators  # one is taken a third time, in the phase of the first
    assert 2 * waves > plan.num_stages  # a tile has two k-tiles or five
    verify(problem, config, schedule="random:7")


def test_a_persistent_cluster_shares_weights_over_several_tiles(four_sms):
    config = Config(cluster_n=2, persistent=True)
    problem = gemm(384, 300, 832)
    plan, waves = submission.Plan(config, problem), waves_of(config, problem)
    assert waves > 2 * plan.num_acc_stages and 4 * waves > plan.num_stages
    verify(problem, config, schedule="late")


def test_who_has_a_tile_less_fills_fewer_stages(four_sms, monkeypatch):
    """9 tiles for 4 CTAs: the one that has three fills all 5 stages, the others 5 * 2 / 3 and half
    a stage for the quarter of them that has a tile more, rounded down.
    """
    config, problem, filled = Config(persistent=True), gemm(9 * 128, 64, 2048), defaultdict(set)
    plan, issue = submission.Plan(config, problem), Checker.issued

    def watched(checker, operation, warp, apply):
        if isinstance(operation, TmaLoad):
            for place in operation.places:
                filled[place.cta.index].add(place.offset // plan.stage_bytes)
        return issue(checker, operation, warp, apply)

    monkeypatch.setattr(Checker, "issued", watched)
    verify(problem, config, schedule="random:3")
    assert plan.num_stages == 5
    assert [len(stages) for _, stages in sorted(filled.items())] == [3, 3, 3, 5]


def test_a_dual_without_a_last_tile_gets_by_with_one_stage(four_sms, monkeypatch):
    """6 tiles for 5 CTAs of three stages: 3 / 2 and 2 / 5 make one stage for those that have one
    tile.
    """
    monkeypatch.setattr(submission, "clusters_at_once", lambda size: 5 // size)
    monkeypatch.setattr(submission, "SMEM_BYTES", 168 * 1024)
    config, problem = Config(tile_n=64, persistent=True), dual(6 * 128, 64, 1024)
    assert submission.Plan(config, problem).num_stages == 3
    assert waves_of(config, problem) == 2
    verify(problem, config)


def test_the_same_input_gives_the_same_bits():
    """A K split adds in a fixed order, whatever order the hardware takes."""
    data = inputs(gemm(256, 64, 1024), seed=3, kind="quantized")
    config = Config(split_k=4)
    results = [run(data, config, order).clone() for order in SCHEDULES]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_k_split_changes_rounding_only():
    data = inputs(gemm(128, 64, 1280), seed=4, kind="quantized")
    whole, split = run(data, Config()).clone(), run(data, Config(split_k=4))
    torch.testing.assert_close(whole, split, rtol=2e-3, atol=1e-3)


def sampled_pairs(count: int) -> list[dict]:
    rng = random.Random(5)
    pairs = []
    while len(pairs) < count:
        a, b = rng.sample(list(LEVERS), 2)
        pairs.append({a: rng.choice(LEVERS[a]), b: rng.choice(LEVERS[b])})
    return pairs


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=str(pair), marks=pytest.mark.slow if number > 0 else ())
        for number, pair in enumerate(sampled_pairs(6))
    ],
)
def test_sampled_pair(pair):
    rng = random.Random(6)
    case = legal_pair(pair, rng)
    if case is None:
        assert excluded(pair), f"no legal configuration with {pair}"
        return
    verify(case[1], case[0], schedule=rng.choice(SCHEDULES))


def excluded(pair: dict) -> bool:
    """Pairs that the constraints exclude, stated a second time from the hardware's limits."""
    get = {field.name: None for field in dataclasses.fields(Config)} | pair
    tile, pairs, split = get["tile_n"], get["cta_group"] == 2, get["split_k"] or 1
    reasons = [
        tile == 8 and (pairs or get["cluster_n"] == 2),
        tile == 48 and get["cluster_n"] == 2,
        # 227 KB: two stages of 55 KB and, of each other CTA, 64 or 44 KB of partial sums
        tile == 256 and split > 1,
        split > 1 and get["persistent"],
    ]
    return any(reasons)


@pytest.mark.slow
def test_covering_set():
    """Each pair of lever settings occurs in a case, but for those that no shape allows."""
    cases, impossible = covering_set()
    assert all(excluded(pair) for pair in impossible), impossible
    for index, (config, problem) in enumerate(cases):
        verify(problem, config, schedule=SCHEDULES[index % len(SCHEDULES)])
