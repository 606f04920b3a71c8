"""The problems: against each other and against a roofline computed here."""

from __future__ import annotations

import subprocess
import sys
from math import ceil

import pytest

from harness.evaluator import cases
from task import DUAL, PROBLEMS, find_problem, input_t, output_t
from tests import ROOT

ALL = list(PROBLEMS.values())
SMS, CLOCK_HZ, FLOP_PER_CLOCK, BYTES_PER_S = 148, 1.5e9, 2 * 16384, 8e12  # B200, dense NVFP4, HBM3e


def test_leaderboard_names_and_types():
    assert list(PROBLEMS) == ["nvfp4_gemv", "nvfp4_gemm", "nvfp4_dual_gemm", "nvfp4_group_gemm"]
    assert (input_t.__name__, output_t.__name__) == ("input_t", "output_t")


def test_importing_needs_the_standard_library_alone():
    code = "import sys; sys.modules['torch'] = None; from task import input_t, output_t"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_official_cases_are_legal(problem):
    assert len(problem.tests) == 10
    assert len(cases.official(problem, "test")) == 10
    assert len(cases.official(problem, "benchmark")) == (
        3 if problem.short in ("gemv", "gemm") else 4
    )


def _groups(args):
    if "g" in args:
        return [(m, n, k, 1) for m, n, k in zip(args["m"], args["n"], args["k"])]
    return [(args["m"], args.get("n", 1), args["k"], args["l"])]


def _roofline_us(problem, args):
    """The larger of memory and tensor-core time: 9/16 byte an element, 2 flop a product."""
    weights = 2 if problem is DUAL else 1
    memory = flop = 0.0
    for m, n, k, l in _groups(args):
        memory += l * ((m + weights * n) * k * (1 / 2 + 1 / 16) + 2 * m * n)
        flop += 2.0 * weights * l * m * n * k
    return 1e6 * max(memory / BYTES_PER_S, flop / (SMS * CLOCK_HZ * FLOP_PER_CLOCK))


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_speed_of_light_is_near_a_roofline(problem):
    for benchmark in problem.benchmarks:
        ratio = benchmark.sol_us / _roofline_us(problem, benchmark.args)
        assert 0.9 < ratio < 1.15, (benchmark.args, ratio)
        assert benchmark.best_us > benchmark.sol_us


def test_official_tokens_fill_whole_scale_atoms_or_groups():
    for problem in ALL:
        for args in (*problem.tests, *(b.args for b in problem.benchmarks)):
            for m, n, k, _ in _groups(args):
                assert k % 256 == 0
                assert problem.grouped or m == 128 * ceil(m / 128)
                assert n == 1 or n % 128 == 0


def test_find_problem():
    assert find_problem("gemv") is find_problem("nvfp4_gemv") is PROBLEMS["nvfp4_gemv"]
    with pytest.raises(ValueError, match=r"unknown problem 'gem'.*nvfp4_gemm \(gemm\)"):
        find_problem("gem")
