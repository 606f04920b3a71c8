"""The leaderboards' timing protocol, on a clock of our own."""

from __future__ import annotations

import math
import statistics as library

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evaluator.case import timing
from task import PROBLEMS

GEMV, GEMM, DUAL, GROUP = PROBLEMS.values()


class Watch:
    """A clock that hands out the given times and writes down what happens."""

    def __init__(self, times):
        self.times, self.events = iter(times), []

    def prepare(self, clear_gib):
        self.events.append(("clear", clear_gib))

    def time(self, work):
        self.events.append("start")
        result = work()
        self.events.append("end")
        return next(self.times), result


def bench(watch, right=lambda data, output: (True, "")):
    seeds = []

    def generate(seed):
        seeds.append(seed)
        return [seed]

    def kernel(data):
        watch.events.append(("call", data[0]))
        return data[0]

    return timing.Bench(kernel, generate, right, watch), seeds


def never(plan):
    """The plan with few repeats, none of which is enough."""
    return timing.Plan(**{**vars(plan), "repeats": 3})


@pytest.mark.parametrize(
    "problem, calls, gib", [(GEMV, 1, 4), (GEMM, 50, 62.5), (DUAL, 50, 62.5), (GROUP, 15, 62.5)]
)
def test_calls_between_two_events_and_the_clear_before(problem, calls, gib):
    watch = Watch([100.0 * calls] * 3)
    subject, seeds = bench(watch)
    stats = subject.measure(never(timing.plan(problem.name, "benchmark")), seed=1111)
    inputs = [1111] if calls == 1 else [1111 + 42 * i for i in range(1, calls + 1)]
    assert seeds == inputs
    checked, repeats = watch.events[:calls], watch.events[calls:]
    assert checked == [("call", seed) for seed in inputs]
    one = [("clear", gib), "start", *(("call", seed) for seed in inputs), "end"]
    assert repeats == one * 3
    assert (stats.runs, stats.mean, stats.err) == (3, 100.0, 0.0)


def test_a_recheck_of_gemv_has_new_inputs_every_repeat():
    subject, seeds = bench(Watch([1.0] * 3))
    subject.measure(never(timing.plan(GEMV.name, "leaderboard")), seed=1111)
    assert seeds == [1111, 1124, 1137, 1150]


@pytest.mark.parametrize("problem", [GEMV, GEMM, GROUP], ids=lambda p: p.name)
def test_a_recheck_finds_a_kernel_that_turns_wrong(problem):
    calls = timing.plan(problem.name, "leaderboard").calls
    checks = []

    def right(data, output):
        checks.append(output)
        return len(checks) <= 2 * calls, "wrong now"

    subject, _ = bench(Watch([1.0] * 3), right)
    subject.measure(never(timing.plan(problem.name, "benchmark")), seed=1)
    assert len(checks) == calls
    checks.clear()
    subject, _ = bench(Watch([1.0] * 3), right)
    with pytest.raises(timing.WrongResult, match="wrong now"):
        subject.measure(never(timing.plan(problem.name, "leaderboard")), seed=1)


def test_repeats_and_limits_of_each_mode():
    for problem, mode, repeats, seconds in (
        (GEMV, "benchmark", 200, 10),
        (DUAL, "leaderboard", 1000, 30),
        (GROUP, "benchmark", 100, 10),
        (GROUP, "leaderboard", 100, 30),
    ):
        plan = timing.plan(problem.name, mode)
        assert (plan.repeats, plan.max_timed) == (repeats, seconds * 10**9)
    for problem, mode, repeats, seconds in (
        (GROUP, "leaderboard", 50, 0.5),
        (GEMM, "leaderboard", 1000, 0.5),
        (GROUP, "benchmark", 100, 0.1),
        (GEMV, "benchmark", 200, 0.1),
    ):
        plan = timing.plan(problem.name, mode, warmup=True)
        assert (plan.repeats, plan.max_timed, plan.recheck) == (repeats, seconds * 10**9, False)


@pytest.mark.parametrize(
    "durations, wall_s, enough",
    [
        ([1e6, 1e6], 1, False),  # two runs never are
        ([1e6, 1e6, 1e6], 0.05, False),  # nor is a tenth of a second
        ([1e6, 1e6, 1e6], 0.2, True),  # no error
        ([1e6, 1.01e6, 1e6], 0.2, False),  # an error of 0.3 %
        ([1e6, 1.01e6, 1e6], 121, True),  # two minutes
        ([4e9, 4.1e9, 4e9], 13, True),  # ten seconds of kernel
    ],
)
def test_when_a_run_ends(durations, wall_s, enough):
    assert (
        timing._enough(durations, int(wall_s * 1e9), timing.plan(GEMV.name, "benchmark")) is enough
    )


@settings(deadline=None)  # a busy machine has failed it
@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=40))
def test_statistics(durations):
    stats = timing.statistics(durations)
    assert math.isclose(stats.mean, library.fmean(durations), rel_tol=1e-9)
    assert math.isclose(stats.std, library.stdev(durations), rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(stats.err, stats.std / math.sqrt(len(durations)), rel_tol=1e-9)
    assert (stats.best, stats.worst, stats.runs) == (min(durations), max(durations), len(durations))
