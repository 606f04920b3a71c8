"""Host side of the kernel: memory plans, constraints, the choice of a configuration."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import inspect
import itertools
import math
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import submission
import task
from lab.kernel_cases import LEVERS, dual, gemm, gemv, group, inputs, legal_pair, random_config
from submission import Config, Plan
from tests.submission.submission_support import epilogue_warps, waves_of

# A legal base, the change that makes it illegal, words of the reason.
ILLEGAL = [
    ({"cta_group": 3}, gemm(128, 64, 512), "one CTA or on a pair"),
    ({"tile_n": 12}, gemm(128, 8, 512), "8 to 256 by 8"),
    ({"cta_group": 2, "tile_n": 24}, gemm(256, 24, 512), "in a pair by 16"),
    ({"tile_n": 320}, gemm(128, 320, 512), "8 to 256"),
    ({"tile_n": 96}, gemm(128, 97, 512), "multiple of 64 columns"),
    ({"swap_ab": False}, gemv(128, 512), "the vector of a gemv"),
    ({"tile_n": 48, "cluster_n": 2}, gemm(128, 48, 512), "multiple of 64"),
    ({"cluster_n": 4, "split_k": 4}, gemm(128, 64, 1024), "1, 2, 4 or 8 CTAs"),
    ({"split_k": 3}, gemm(128, 64, 1024), "1, 2, 4 or 8 CTAs"),
    ({"tile_n": 256, "split_k": 8}, gemm(128, 256, 2048), "two stages"),
    ({"tile_n": 256}, dual(128, 256, 512), "512 columns"),
    ({"split_k": 2, "persistent": True}, gemm(128, 64, 512), "the partial sums of one tile"),
    ({"split_k": 4}, gemm(128, 64, 512), "has a k-tile, of 2"),
    ({"split_k": 2}, group((8, 128, 512), (8, 128, 256)), "has a k-tile, of 1"),
]


@pytest.mark.parametrize("change, problem, reason", ILLEGAL)
def test_an_illegal_configuration_is_refused_with_the_reason(change, problem, reason):
    with pytest.raises(ValueError, match=reason):
        submission.check(dataclasses.replace(Config(), **change), problem)


def test_every_constraint_has_an_illegal_example():
    body = ast.parse(inspect.getsource(submission.check))
    calls = [n for n in ast.walk(body) if isinstance(n, ast.Call) and ast.unparse(n.func) == "need"]
    reasons = [ast.unparse(call.args[1]) for call in calls]
    assert len(reasons) >= 10
    tried = [reason for _, _, reason in ILLEGAL] + ["have 32 bits"]
    constant = [re.sub(r"\d+", "", words) for words in tried]  # numbers may be computed
    for reason in reasons:
        text = re.sub(r"\d+|{.*?}", "", reason)
        assert any(words in text for words in constant), reason


def test_tile_numbers_stay_32_bit():
    with pytest.raises(ValueError, match="have 32 bits"):
        submission.check(Config(), gemm(2**29, 64, 512))


def operands(config, problem):
    """How many A and B operands the MMA has."""
    return (problem.num_products, 1) if config.swap_ab else (1, problem.num_products)


@st.composite
def plans(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    config = random_config(rng, {})
    if config.tile_n % (8 * config.cta_group):
        config = dataclasses.replace(config, cta_group=1)
    form = draw(st.sampled_from((gemm, dual)))
    return config, form(draw(st.sampled_from((128, 256, 258))), config.tile_n, 1024)


@given(plans())
@settings(max_examples=300, deadline=None)
def test_shared_memory_map(case):
    """Areas follow one another, operands on 1024 bytes (the period of the 128-byte swizzle)."""
    config, problem = case
    plan = Plan(config, problem)
    if plan.num_stages < 1:
        return
    cta_n = config.tile_n // config.cta_group
    assert cta_n % plan.box_n == 0 and plan.box_n <= 256
    num_a, num_b = operands(config, problem)
    atoms = num_a + num_b * math.ceil(config.tile_n / 128)
    assert plan.stage_bytes == num_a * 128 * 128 + num_b * cta_n * 128 + atoms * 4 * 512
    assert plan.stage_bytes % 1024 == 0
    # A, B, SFA, SFB, each operand behind the one before it.
    sizes = [128 * 128] * num_a + [cta_n * 128] * num_b
    scale_sizes = [4 * 512] * num_a + [math.ceil(config.tile_n / 128) * 4 * 512] * num_b
    at = itertools.accumulate(sizes + scale_sizes, initial=0)
    assert [operand.is_a for operand in plan.operands] == [True] * num_a + [False] * num_b
    assert [operand.number for operand in plan.operands] == list(range(num_a + num_b))
    places = [o.codes for o in plan.operands] + [o.scales for o in plan.operands]
    assert places == list(at)[:-1] and not any(place % 1024 for place in places)
    # A transposition of 1 KB a warp, and fp32 sums of 128 rows from the other CTAs of a split.
    via_smem = plan.wide_stores and config.swap_ab
    transposition = 1024 * epilogue_warps(config, problem) if via_smem else 0
    owned = math.ceil(config.tile_n / plan.epi_n / config.split_k) * plan.epi_n
    received = (config.split_k - 1) * owned * problem.num_products * 128 * 4
    assert plan.partials == plan.num_stages * plan.stage_bytes + transposition
    assert plan.full == plan.partials + received
    barriers = [plan.full, plan.empty, plan.acc_full, plan.acc_empty]
    sizes = [plan.num_stages * problem.num_products] * 2 + [plan.num_acc_stages] * 2
    for at, count, following in zip(barriers, sizes, [*barriers[1:], plan.partials_full]):
        assert at % 8 == 0 and at + 8 * count == following
    assert plan.smem_bytes <= 232_448
    assert 232_448 < plan.smem_bytes + plan.stage_bytes + 16 * problem.num_products


@given(plans())
@settings(max_examples=300, deadline=None)
def test_tensor_memory_map(case):
    """Accumulators, then the scales of a k-tile; the allocation is the power of two that holds them.
    A second accumulator is there where it fits.
    """
    config, problem = case
    plan = Plan(config, problem)
    one = problem.num_products * config.tile_n
    num_a, num_b = operands(config, problem)
    scales = 16 * (num_a + num_b * math.ceil(config.tile_n / 128))
    two = config.persistent and 2 * one + scales <= 512
    assert plan.num_acc_stages == 1 + two
    columns = [16] * num_a + [16 * math.ceil(config.tile_n / 128)] * num_b
    at = itertools.accumulate(columns, initial=plan.num_acc_stages * one)
    assert [operand.scales_tmem for operand in plan.operands] == list(at)[:-1]
    used = plan.num_acc_stages * one + scales
    assert plan.tmem_allocated == max(32, 2 ** math.ceil(math.log2(used)))


def test_problems_with_equal_plans_share_a_kernel():
    """M and K are run-time values; what a plan takes for granted is not."""
    plan = Plan(Config(), gemm(256, 64, 512))
    same = Plan(Config(), gemm(512, 40, 1088))
    assert plan == same and hash(plan) == hash(same)
    for other in (gemm(258, 64, 512), gemm(256, 65, 512), dual(256, 64, 512)):
        assert plan != Plan(Config(), other)
    assert plan != Plan(Config(cluster_n=2), gemm(256, 64, 512))


@pytest.mark.parametrize(
    "tokens, tile, box",
    [
        ((80, 176, 128, 72, 64, 248, 96, 160), 256, 16),  # 64: 384 rows in vain, 32: 192, 16: 64
        ((40, 76, 168, 72, 164, 148, 196, 160), 224, 16),  # 56: 432, 16: 160; a sixth is 170
        ((192, 320), 128, 32),  # tiles of 64 tokens: 32 rows a CTA
        ((64, 66), 128, 8),  # half of a tile: 32 and 33 rows
    ],
)
def test_boxes_of_groups_bring_few_rows_that_nobody_uses(tokens, tile, box):
    problem = group(*((m, 256, 512) for m in tokens))
    assert Plan(Config(cta_group=2, tile_n=tile), problem).box_n == box


def test_a_problem_alone_has_boxes_of_its_tile():
    """What its tokens are is known at run time only."""
    assert Plan(Config(), gemm(256, 3, 512)).box_n == 64


sizes = st.integers(1, 700)


@given(st.lists(st.tuples(sizes, sizes, st.integers(1, 40)), min_size=1, max_size=6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_configuration_is_picked_for_any_shape(shapes, two):
    problem = group(*((m, n, 64 * k) for m, n, k in shapes))
    if two:
        problem = dual(shapes[0][1], shapes[0][0], 64 * shapes[0][2], l=2)
    submission.check(submission.pick(problem), problem)


@given(sizes, st.integers(1, 300), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_a_configuration_is_picked_for_any_gemv(rows, k, batch):
    problem = gemv(rows, 64 * k, batch)
    config = submission.pick(problem)
    assert config.tile_n == 8
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


@given(sizes, sizes, st.integers(1, 3), st.sampled_from((1, 2)), st.sampled_from((1, 2)))
def test_tile_count_covers_the_output_once(rows, tokens, batch, pair, sharing):
    config = Config(cta_group=pair, cluster_n=sharing)
    expected = 0
    for _ in range(batch):
        for _ in range(0, rows, 128 * pair):
            expected += len(range(0, tokens, 64 * sharing))
    assert submission.tile_count(config, gemm(rows, tokens, 256, batch)) == expected


class Driver:
    """Stands in for HardwareInfo: a chip that holds so many clusters of each size."""

    asked: list[int] = []

    def __init__(self, device: int):
        assert device == 0

    def get_max_active_clusters(self, size: int) -> int:
        Driver.asked.append(size)
        return {4: 30}.get(size, submission.CLUSTERS[size])


@pytest.fixture
def no_answers_yet():
    for known in (submission.clusters_at_once, submission.pick):
        known.cache_clear()
    yield
    for known in (submission.clusters_at_once, submission.pick):
        known.cache_clear()


def test_without_a_gpu_the_table_says_how_many_clusters_fit(monkeypatch, no_answers_yet):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = {size: submission.clusters_at_once(size) for size in submission.CLUSTERS}
    assert found == submission.CLUSTERS


def test_the_driver_says_how_many_clusters_fit(monkeypatch, no_answers_yet):
    """A grid of 32 clusters of 4 is one wave by the table, and two on a chip that holds 30."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    problem = gemm(4096, 128, 7168)
    config = Config(split_k=2, cluster_n=2)
    assert config.cluster == 4 and submission.tile_count(config, problem) == 32
    assert waves_of(config, problem) == 1
    submission.clusters_at_once.cache_clear()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (10, 0))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr(submission, "HardwareInfo", Driver)
    Driver.asked.clear()
    assert waves_of(config, problem) == 2
    assert waves_of(submission.pick(problem), problem) == 1
    assert len(Driver.asked) == len(set(Driver.asked))


def unanswered(_: object, size: int) -> int:
    raise RuntimeError(f"cudaErrorInvalidClusterSize: {size}")


@pytest.mark.parametrize(
    "answer", [unanswered, lambda _, size: 0, lambda _, size: -1, lambda _, size: 10_000]
)
def test_without_a_plausible_answer_the_table_says_how_many_clusters_fit(
    monkeypatch, no_answers_yet, answer
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (10, 0))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr(submission, "HardwareInfo", Driver)
    monkeypatch.setattr(Driver, "get_max_active_clusters", answer)
    found = {size: submission.clusters_at_once(size) for size in submission.CLUSTERS}
    assert found == submission.CLUSTERS


def test_one_tile_more_than_fits_costs_a_wave():
    """Bytes alone would make it half a percent more. Persistent clusters leave the one that has a
    tile more their bandwidth; else it starts anew.
    """
    ratios = {}
    for persistent in (False, True):
        config = Config(cta_group=2, persistent=persistent)
        tiles = 2 * submission.CLUSTERS[2]
        full, more = (
            submission.estimate(config, gemm(256 * n, 64, 8192)) for n in (tiles, tiles + 1)
        )
        ratios[persistent] = more / full
    assert ratios[False] > 1.04
    assert 1.0 < ratios[True] < 1.01


def test_partial_sums_of_one_chunk_have_one_owner():
    """Modelled, 1152 x 8 x 2304: a split by 4 takes 2.89 us, one by 8 takes 3.21."""
    by_4, by_8 = (
        submission.estimate(Config(tile_n=8, split_k=parts), gemm(1152, 8, 2304))
        for parts in (4, 8)
    )
    assert by_8 > by_4


def test_of_close_estimates_the_fewest_ctas_a_cluster_and_mechanisms_win(monkeypatch):
    """Estimates by hand: 1.4 % decide nothing, 2 % do."""
    cycles = {
        Config(): 102,
        Config(cta_group=2, cluster_n=2): 100,
        Config(cluster_n=2, persistent=True): 100.5,
        Config(cluster_n=2): 101.4,
    }
    monkeypatch.setattr(submission, "legal_configs", lambda problem: list(cycles))
    monkeypatch.setattr(submission, "estimate", lambda config, problem: cycles[config])
    assert submission.by_estimate(gemm(256, 128, 512)) == Config(cluster_n=2)
    cycles[Config()] = 101.4
    assert submission.by_estimate(gemm(256, 128, 512)) == Config()
    cycles[Config(persistent=True)] = 100  # another mechanism
    assert submission.by_estimate(gemm(256, 128, 512)) == Config()


def test_another_gpu_is_not_asked(monkeypatch, no_answers_yet):
    """On a Hopper GPU that stands in for a B200 the number of its own clusters means nothing."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    assert submission.clusters_at_once(4) == submission.CLUSTERS[4]


def test_the_dsl_still_answers_for_the_driver():
    parameters = list(inspect.signature(submission.HardwareInfo).parameters.values())
    assert [parameter.name for parameter in parameters] == ["device_id"]
    assert callable(submission.HardwareInfo.get_max_active_clusters)


def test_most_lever_settings_are_legal_somewhere():
    """The covering set is not vacuous: each single setting has a legal configuration."""
    rng = random.Random(1)
    for name, values in LEVERS.items():
        for value in values:
            assert legal_pair({name: value}, rng), f"{name}={value}"


def words_of_calls(monkeypatch) -> list:
    """What compiled functions are called with from now on; none is compiled."""
    calls: list = []

    def kernel_for(problem, config):
        return calls.append, submission.words_of(problem, config)

    monkeypatch.setattr(submission, "kernel_for", kernel_for)
    return calls


def words_in(argument) -> list[int]:
    """As a compiled function reads them."""
    (pointer,) = argument.__c_pointers__()
    return list((ctypes.c_int64 * len(argument.memory)).from_address(pointer))


def test_words_hold_addresses_and_sizes_the_longest_tiles_first(monkeypatch):
    data = inputs(group((8, 128, 64), (16, 256, 128)), seed=1)
    calls = words_of_calls(monkeypatch)
    assert submission.custom_kernel(data) == [data[0][0][2], data[0][1][2]]
    (argument,) = calls
    first, second = (
        [tensor.data_ptr() for tensor in (b, sfb, a, sfa, c)]
        for (a, b, c), (sfa, sfb) in zip(data[0], data[2])
    )
    assert words_in(argument) == [*second, 256, 16, 128, 1, 16, *first, 128, 8, 64, 1, 8]


def test_without_swap_ab_words_hold_tokens_first(monkeypatch):
    a, b1, b2, _, _, _, sfa, sfb1, sfb2, c = data = inputs(dual(256, 40, 128, 2), seed=1)
    calls = words_of_calls(monkeypatch)
    groups, _ = submission.unpack(data)
    submission.launch(submission.problem_of(data, groups), groups, Config(swap_ab=False))
    addresses = [t.data_ptr() for t in (a, sfa, b1, sfb1, b2, sfb2, c)]
    assert words_in(calls[0]) == [*addresses, 40, 256, 128, 2, 256]


def test_a_gemv_has_the_matrix_as_weights(monkeypatch):
    a, b, _, _, sfa, sfb, c = data = inputs(gemv(256, 64, 2), seed=1)
    calls = words_of_calls(monkeypatch)
    submission.custom_kernel(data)
    assert words_in(calls[0]) == [*(t.data_ptr() for t in (a, sfa, b, sfb, c)), 256, 1, 64, 2, 128]
