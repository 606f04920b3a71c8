"""Every lever of the kernel, alone and in pairs, in the emulator under adversarial schedules."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import submission
from submission import Config
from tests.submission.submission_support import (
    LEVERS,
    covering_set,
    dual,
    gemm,
    gemv,
    group,
    inputs,
    legal_pair,
    run,
    verify,
)

SCHEDULES = (None, "early", "late", "random:1", "random:2")

# One case a lever: the structure it adds, on a shape with partial tiles in every direction.
CASES = {
    "pair": (Config(cta_group=2, cluster_m=2, token_box=32), gemm(400, 60, 576)),
    "wide pair": (Config(cta_group=2, cluster_m=2, token_tile=128), gemm(384, 200, 576)),
    "256 tokens": (Config(token_tile=256), gemm(144, 250, 512)),
    "two MMAs a step": (
        Config(token_tile=384, mma_tokens=192, scales_per_stage=False),
        gemm(128, 380, 320),
    ),
    "k-tile of 512": (Config(k_tile=512), gemm(256, 64, 1088)),
    "two accumulators": (Config(schedule="blocked", accumulators=2), gemm(384, 200, 512, 2)),
    "strided": (Config(schedule="strided"), gemm(384, 72, 512)),
    "scales by k-tile": (Config(interleave_scales=False), gemm(256, 100, 1088)),
    "shared tokens": (Config(cluster_m=2), gemm(384, 100, 1024)),
    "shared weights": (Config(cluster_n=2), gemm(272, 200, 1024)),
    "2 x 2 pairs": (
        Config(cta_group=2, cluster_m=4, cluster_n=2, token_box=32),
        gemm(640, 200, 512),
    ),
    "K split": (Config(split_k=4, token_tile=128), gemm(256, 100, 2112)),
    "K split of 3": (Config(split_k=3, wide_stores=False), gemm(258, 64, 2112)),
    "K split of pairs": (
        Config(cta_group=2, cluster_m=2, token_box=32, split_k=2),
        gemm(512, 128, 1024),
    ),
    "K split of a dual": (Config(split_k=2), dual(256, 128, 1024)),
    "gate first": (Config(gate_lead=2), dual(256, 70, 1024)),
    "gate of a short K": (Config(gate_lead=3, scales_per_stage=False), dual(256, 64, 512)),
    "registers": (Config(epilogue_registers=168), gemm(128, 64, 512)),
    "narrow stores": (Config(wide_stores=False), gemm(130, 37, 192, 3)),
    "groups": (
        Config(cta_group=2, cluster_m=2, token_tile=256, schedule="blocked"),
        group((40, 256, 256), (200, 384, 512), (130, 512, 768)),
    ),
    "vector": (
        Config(
            token_tile=8,
            token_box=8,
            wide_stores=False,
            epilogue_tokens=8,
            split_k=4,
            ctas_per_sm=2,
        ),
        gemv(300, 4096, 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lever(name):
    config, problem = CASES[name]
    order = SCHEDULES[list(CASES).index(name) % len(SCHEDULES)]
    verify(problem, config, schedule=order)


@pytest.fixture
def four_sms(monkeypatch):
    """A chip so small that every cluster of a persistent launch has several tiles."""
    clusters = tuple(4 // size for size in range(1, len(submission.CLUSTERS) + 1))
    monkeypatch.setattr(submission, "CLUSTERS", clusters)
    monkeypatch.setattr(submission.Launcher, "compiled", {})


@pytest.mark.parametrize("schedule", ["blocked", "strided"])
@pytest.mark.parametrize("accumulators", [1, 2])
@pytest.mark.parametrize("pair", [1, 2])
def test_a_persistent_cluster_walks_several_tiles(four_sms, schedule, accumulators, pair):
    """The pipelines' phases wrap, and a tile may be in another group than the one before."""
    config = Config(
        cta_group=pair,
        cluster_m=pair,
        token_box=64 // pair,
        schedule=schedule,
        accumulators=accumulators,
        stages=3,
    )
    problem = group((100, 384, 320), (64, 640, 1088))
    assert submission.waves_of(config, problem) >= 3
    verify(problem, config, schedule="random:7")


def test_a_persistent_cluster_shares_tokens_over_several_tiles(four_sms):
    config = Config(cluster_m=2, cluster_n=2, schedule="strided", stages=3)
    problem = gemm(640, 300, 832)
    assert submission.waves_of(config, problem) >= 3
    verify(problem, config, schedule="late")


def test_the_same_input_gives_the_same_bits():
    """A K split adds in a fixed order, whatever order the hardware takes."""
    data = inputs(dual(256, 64, 2048), seed=3, kind="quantized")
    config = Config(split_k=4)
    results = [run(data, config, order).clone() for order in SCHEDULES]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_k_split_changes_rounding_only():
    data = inputs(gemm(128, 64, 2048), seed=4, kind="quantized")
    whole, split = run(data, Config()).clone(), run(data, Config(split_k=4))
    torch.testing.assert_close(whole, split, rtol=2e-3, atol=1e-3)


def sampled_pairs(count: int) -> list[dict]:
    rng = random.Random(5)
    pairs = []
    while len(pairs) < count:
        a, b = rng.sample(list(LEVERS), 2)
        pairs.append({a: rng.choice(LEVERS[a]), b: rng.choice(LEVERS[b])})
    return pairs


@pytest.mark.parametrize("pair", sampled_pairs(12), ids=str)
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
    tile, box, chunk = get["token_tile"], get["token_box"], get["epilogue_tokens"]
    group, split = get["cta_group"], get["split_k"] or 1
    reasons = [
        tile and box and tile % box,
        tile and chunk and (tile % chunk or (chunk == 8) != (tile == 8)),
        tile == 8 and (group == 2 or get["wide_stores"] or get["cluster_n"] == 2),
        tile == 48 and get["cluster_n"] == 2,
        tile == 384 and group == 2,
        # 512 columns, 384 for one accumulator of one product; 227 KB, in two halves
        tile == 384 and (get["accumulators"] == 2 or get["gate_lead"] or get["ctas_per_sm"] == 2),
        tile == 384 and (get["k_tile"] == 512 or split > 1),
        chunk == 8
        and (box and box > 8 or group == 2 or get["wide_stores"] or get["cluster_n"] == 2),
        group == 2 and get["cluster_m"] == 1,
        get["accumulators"] == 2 and (split > 1 or get["schedule"] == "single"),
        split > 1 and (get["schedule"] in ("blocked", "strided") or get["gate_lead"]),
        split == 3 and get["cluster_m"] == 4,
    ]
    return any(reasons)


@pytest.mark.slow
def test_covering_set():
    """Each pair of lever settings occurs in a case, but for those that no shape allows."""
    cases, impossible = covering_set()
    assert all(excluded(pair) for pair in impossible), impossible
    for index, (config, problem) in enumerate(cases):
        verify(problem, config, schedule=SCHEDULES[index % len(SCHEDULES)])
