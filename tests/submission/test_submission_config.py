"""Host side of the kernel: memory plans, constraints, the choice of a configuration."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import inspect
import math
import random
import re
import struct

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import submission
import task
from submission import Config, Plan
from tests.submission.submission_support import (
    LEVERS,
    dual,
    gemm,
    gemv,
    group,
    inputs,
    legal_pair,
    random_config,
)

EPILOGUE = {"epilogue_tokens": 8, "wide_stores": False}

# A legal base, the change that makes it illegal, words of the reason.
ILLEGAL = [
    ({"cta_group": 3}, gemm(128, 64, 512), "one CTA or on a pair"),
    ({"cluster_m": 1, "cta_group": 2, "token_box": 32}, gemm(256, 64, 512), "whole CTA pairs"),
    ({"token_tile": 12, "token_box": 4, **EPILOGUE}, gemm(128, 8, 512), "multiple of 8"),
    ({"cta_group": 2, "cluster_m": 2, "token_tile": 24}, gemm(256, 24, 512), "of 16 in a pair"),
    ({"token_tile": 320, "mma_tokens": 320}, gemm(128, 320, 512), "at most 256"),
    ({"cta_group": 2, "cluster_m": 2, "token_tile": 384}, gemm(256, 384, 512), "halves"),
    ({"token_tile": 96, "token_box": 32}, gemm(128, 97, 512), "multiple of 64 tokens"),
    ({"token_tile": 48, "token_box": 48, "cluster_n": 2}, gemm(128, 48, 512), "multiple of 64"),
    ({"token_box": 12}, gemm(128, 64, 512), "swizzle atoms"),
    ({"token_box": 48}, gemm(128, 64, 512), "boxes fill"),
    ({"k_tile": 128}, gemm(128, 64, 512), "128 bytes"),
    ({"cluster_m": 4, "cluster_n": 4}, gemm(128, 64, 512), "at most 8 CTAs"),
    ({"k_tile": 2048}, gemm(128, 64, 4096), "two stages"),
    ({"token_tile": 256, "accumulators": 2, "schedule": "blocked"}, gemm(128, 256, 512), "columns"),
    ({"ctas_per_sm": 2, "token_tile": 256}, gemm(128, 256, 512), "256 columns"),
    ({"accumulators": 3, "schedule": "blocked"}, gemm(128, 64, 512), "two to overlap"),
    ({"accumulators": 2}, gemm(128, 64, 512), "second tile"),
    ({"schedule": "dynamic"}, gemm(128, 64, 512), "schedule"),
    ({"split_k": 2, "schedule": "blocked"}, gemm(128, 64, 512), "overlay the stages"),
    ({"split_k": 2, "token_tile": 256}, gemm(128, 256, 512), "hold the partial sums"),
    ({"split_k": 3}, gemm(128, 64, 512), "has a k-tile, of 2"),
    ({"split_k": 2}, group((8, 128, 512), (8, 128, 256)), "has a k-tile, of 1"),
    ({"split_k": 2, "gate_lead": 1}, dual(128, 64, 512), "no gate"),
    ({"gate_lead": 1}, gemm(128, 64, 512), "only a dual product"),
    ({"gate_lead": 3, "stages": 2}, dual(128, 64, 512), "stay in their stages"),
    ({"epilogue_tokens": 24}, gemm(128, 64, 512), "whole fragments"),
    ({"token_tile": 80, "token_box": 80}, gemm(128, 80, 512), "chunks fill the tile"),
    ({"token_tile": 128, "epilogue_tokens": 128}, dual(128, 128, 512), "at most 128"),
    ({"token_tile": 8, "token_box": 8, "epilogue_tokens": 8}, gemv(128, 512), "16 tokens"),
    ({}, gemm(136, 64, 512), "16 aligned rows"),
    ({"epilogue_registers": 100}, gemm(128, 64, 512), "multiples of 8"),
    ({"weights_policy": "evict_often"}, gemm(128, 64, 512), "cache policies"),
]


@pytest.mark.parametrize("change, problem, reason", ILLEGAL)
def test_an_illegal_configuration_is_refused_with_the_reason(change, problem, reason):
    with pytest.raises(ValueError, match=reason):
        submission.check(dataclasses.replace(Config(), **change), problem)


def test_every_constraint_has_an_illegal_example():
    body = ast.parse(inspect.getsource(submission.check))
    calls = [n for n in ast.walk(body) if isinstance(n, ast.Call) and ast.unparse(n.func) == "need"]
    reasons = [ast.unparse(call.args[1]) for call in calls]
    assert len(reasons) > 25
    tried = [reason for _, _, reason in ILLEGAL] + ["32-bit"]
    constant = [re.sub(r"\d+", "", words) for words in tried]  # numbers may be computed
    for reason in reasons:
        text = re.sub(r"\d+|{.*?}", "", reason)
        assert any(words in text for words in constant), reason


def test_tile_numbers_stay_32_bit():
    with pytest.raises(ValueError, match="32-bit"):
        submission.check(Config(), gemm(2**29, 64, 512))


@st.composite
def plans(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    config = random_config(rng, {})
    if config.token_tile % (8 * config.cta_group):
        config = dataclasses.replace(config, cta_group=1)
    return config, draw(st.sampled_from((1, 2)))


@given(plans())
@settings(max_examples=300, deadline=None)
def test_shared_memory_map(case):
    """Areas follow one another, operands on 1024 bytes (the period of the 128-byte swizzle)."""
    config, weights = case
    plan = Plan(config, weights)
    if plan.stages < 1:
        return
    k_bytes = config.k_tile // 2
    tokens = config.token_tile // config.cta_group * k_bytes
    atoms = weights + math.ceil(config.token_tile / 128)
    assert plan.stage_bytes == weights * 128 * k_bytes + tokens + atoms * config.k_tile // 64 * 512
    assert plan.tokens_at % 1024 == plan.weight_bytes % 1024 == plan.scales_at % 1024 == 0
    assert plan.stage_bytes % 1024 == 0
    barriers = [plan.full_at, plan.empty_at, plan.acc_full_at, plan.gate_at, plan.acc_empty_at]
    sizes = [plan.stages] * 2 + [config.accumulators] * 3
    for at, count, following in zip(barriers, sizes, [*barriers[1:], plan.partials_at]):
        assert at % 8 == 0 and at + 8 * count == following
    assert plan.smem_bytes <= 232_448
    assert config.ctas_per_sm * (plan.smem_bytes + 1024) <= 233_472


@given(plans())
@settings(max_examples=300, deadline=None)
def test_as_many_stages_as_fit(case):
    config, weights = case
    config = dataclasses.replace(config, stages=0)
    plan = Plan(config, weights)
    assume(plan.stages > 0)
    limit = min(232_448, 233_472 // config.ctas_per_sm - 1024)
    assert plan.smem_bytes <= limit < plan.smem_bytes + plan.stage_bytes + 16


@given(plans())
@settings(max_examples=300, deadline=None)
def test_tensor_memory_map(case):
    """Accumulators, then scale slots; the allocation is the power of two that holds them."""
    config, weights = case
    plan = Plan(config, weights)
    used = config.accumulators * weights * config.token_tile
    assert plan.scale_slots_at == used
    atoms = weights + math.ceil(config.token_tile / 128)
    used += (plan.stages if config.scales_per_stage else 1) * config.k_tile // 64 * atoms * 4
    assert plan.tmem_used == used
    assert plan.tmem_columns == max(32, 2 ** math.ceil(math.log2(used)))


sizes = st.integers(1, 700)


@given(st.lists(st.tuples(sizes, sizes, st.integers(1, 40)), min_size=1, max_size=6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_configuration_is_picked_for_any_shape(shapes, two):
    problem = group(*((m, n, 64 * k) for m, n, k in shapes))
    if two:
        problem = dual(shapes[0][1], shapes[0][0], 64 * shapes[0][2], batch=2)
    submission.check(submission.pick(problem), problem)


@given(sizes, st.integers(1, 300), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_a_configuration_is_picked_for_any_gemv(rows, k, batch):
    problem = gemv(rows, 64 * k, batch)
    config = submission.pick(problem)
    assert config.token_tile == 8
    submission.check(config, problem)


@pytest.mark.parametrize("problem", [p.name for p in task.PROBLEMS.values()])
def test_a_configuration_is_picked_for_every_official_case(problem):
    cases = task.PROBLEMS[problem]
    for args in [*cases.tests, *(b.args for b in cases.benchmarks)]:
        if cases.grouped:
            form = group(*zip(args["m"], args["n"], args["k"]))
        elif "n" not in args:
            form = gemv(args["m"], args["k"], args["l"])
        else:
            make = dual if cases.short == "dual" else gemm
            form = make(args["n"], args["m"], args["k"], args["l"])
        submission.check(submission.pick(form), form)


@given(sizes, sizes, st.integers(1, 3), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2)))
def test_tile_count_covers_the_output_once(rows, tokens, batch, cluster_m, cluster_n):
    config = Config(cluster_m=cluster_m, cluster_n=cluster_n)
    expected = 0
    for _ in range(batch):
        for _ in range(0, rows, 128 * cluster_m):
            expected += len(range(0, tokens, 64 * cluster_n))
    assert submission.tile_count(config, gemm(rows, tokens, 256, batch)) == expected


def test_most_lever_settings_are_legal_somewhere():
    """The covering set is not vacuous: each single setting has a legal configuration."""
    rng = random.Random(1)
    for name, values in LEVERS.items():
        for value in values:
            assert legal_pair({name: value}, rng), f"{name}={value}"


def test_arguments_hold_addresses_and_sizes_in_order():
    data = inputs(group((8, 128, 64), (16, 256, 128)), seed=1)
    arguments = submission.Arguments(submission.normal_form(data))
    arguments.read(submission.unpack(data)[0])
    (a0, b0, c0), (a1, b1, c1) = data[0]
    (sfa0, sfb0), (sfa1, sfb1) = data[2]
    operands = [a0, b0, c0, a1, b1, c1, sfa0, sfb0, sfa1, sfb1]
    pointers = arguments.__c_pointers__()
    found = [ctypes.c_uint64.from_address(p).value for p in pointers[:10]]
    assert found == [tensor.data_ptr() for tensor in operands]
    found = [ctypes.c_int32.from_address(p).value for p in pointers[10:]]
    assert found == [128, 8, 64, 1, 8, 256, 16, 128, 1, 16]
    with pytest.raises(struct.error):
        arguments.read(operands[:9])
