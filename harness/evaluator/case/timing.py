"""How the leaderboards time a kernel (gpu-mode/reference-kernels: eval.py, eval_better_bench.py and
eval_better_bench_grouped_gemm.py), apart from the GPU itself, which is a `Clock`.

| | gemv | gemm, dual | group |
|---|---|---|---|
| calls between a pair of events | 1 | 50, each on its own inputs | 15, each on its own inputs |
| written before, to clear L2 | 4 GiB | 62.5 GiB | 62.5 GiB |
| most repeats: benchmark, leaderboard | 200, 1000 | 200, 1000 | 100, 100 |
| a recheck (leaderboard) | new inputs (seed + 13) | the outputs | the outputs, every repeat |

A run stops early when the error of the mean is below 0.1 %, when the mean times the repeats exceeds
10 s (benchmark) or 30 s (leaderboard), or after 120 s. One thing differs: a case has a process of
its own, so it is warmed up by a short run of itself, and not of the first case (gemv, benchmark) or
of all cases (leaderboard).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from task import GEMV, GROUP

SECOND = 1_000_000_000  # ns
SEED_STEP_INPUTS, SEED_STEP_REPEATS = 42, 13
LEAST_WALL = SECOND // 10  # a run is not ended by its error before
MOST_WALL = 120 * SECOND
GOOD_ERROR = 0.001  # of the mean


@dataclass(frozen=True)
class Plan:
    """What a leaderboard does for one problem. max_timed in ns, clear_gib in GiB."""

    calls: int
    clear_gib: float
    fresh_inputs: bool  # a recheck makes new inputs for every repeat
    repeats: int
    max_timed: int
    recheck: bool


def plan(problem: str, mode: str, warmup: bool = False) -> Plan:
    """The plan of `mode`, "benchmark" or "leaderboard", or of the run that warms up for it."""
    gemv, group = problem == GEMV.name, problem == GROUP.name
    ranked = mode == "leaderboard"
    repeats = 100 if group else 1000 if ranked else 200
    max_timed = 30 * SECOND if ranked else 10 * SECOND
    if warmup:
        repeats = 50 if group and ranked else repeats
        max_timed = SECOND // 2 if ranked else SECOND // 10
    return Plan(
        calls=1 if gemv else 15 if group else 50,
        clear_gib=4 if gemv else 62.5,
        fresh_inputs=gemv,
        repeats=repeats,
        max_timed=max_timed,
        recheck=ranked and not warmup,
    )


@dataclass(frozen=True)
class Stats:
    """Times of one call in ns over `runs` repeats; err is the standard error of the mean."""

    runs: int
    mean: float
    std: float
    err: float
    best: float
    worst: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def statistics(durations: list[float]) -> Stats:
    """Stats of at least two durations in ns."""
    runs = len(durations)
    mean = sum(durations) / runs
    std = math.sqrt(sum((d - mean) ** 2 for d in durations) / (runs - 1))
    return Stats(runs, mean, std, std / math.sqrt(runs), min(durations), max(durations))


class Clock(Protocol):
    """Times work on a device."""

    def prepare(self, clear_gib: float) -> None:
        """Wait for the device, then clear its L2 cache."""

    def time(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Run `work`; (ns between an event before and one after it, what it returned)."""
        ...


class CudaClock:
    """CUDA events on the default queue."""

    def prepare(self, clear_gib: float) -> None:
        import torch

        import utils

        torch.cuda.synchronize()
        utils.clear_l2_cache(clear_gib)

    def time(self, work: Callable[[], Any]) -> tuple[float, Any]:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        result = work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e6, result


class WrongResult(Exception):
    """The kernel's output is wrong; str() is the mismatch report."""


@dataclass
class Bench:
    """A kernel, what makes and checks its inputs, and a clock.

    generate(seed) -> data; check(data, output) -> (right, message). note: on right results, "" for
    none.
    """

    kernel: Callable[[Any], Any]
    generate: Callable[[int], Any]
    check: Callable[[Any, Any], tuple[bool, str]]
    clock: Clock
    note: str = ""

    def measure(self, plan: Plan, seed: int) -> Stats:
        """Check once, then time as `plan` says. Raises WrongResult."""
        return statistics(self.run(plan, seed))

    def run(self, plan: Plan, seed: int) -> list[float]:
        """The durations of the repeats in ns. Raises WrongResult."""
        from utils import clone_data

        data, seed = self._inputs(plan, seed)
        copies = clone_data(data)
        self._verify(copies, [self.kernel(clone_data(item)) for item in data])
        durations: list[float] = []
        begin = time.perf_counter_ns()
        for _ in range(plan.repeats):
            if plan.recheck and plan.fresh_inputs:
                seed += SEED_STEP_REPEATS
                data = [self.generate(seed)]
                copies = clone_data(data)
            self.clock.prepare(plan.clear_gib)
            elapsed, outputs = self.clock.time(
                lambda data=data: [self.kernel(item) for item in data]
            )
            durations.append(elapsed / plan.calls)
            if plan.recheck:
                self._verify(copies, outputs)
            del outputs
            if _enough(durations, time.perf_counter_ns() - begin, plan):
                break
        return durations

    def _inputs(self, plan: Plan, seed: int) -> tuple[list[Any], int]:
        """The inputs of `plan.calls` calls, and the seed last used."""
        if plan.calls == 1:
            return [self.generate(seed)], seed
        seeds = [seed + SEED_STEP_INPUTS * (i + 1) for i in range(plan.calls)]
        return [self.generate(s) for s in seeds], seeds[-1]

    def _verify(self, copies: list[Any], outputs: list[Any]) -> None:
        for data, output in zip(copies, outputs):
            right, message = self.check(data, output)
            if not right:
                raise WrongResult(message)
            self.note = message


def _enough(durations: list[float], wall: int, plan: Plan) -> bool:
    """Whether the leaderboard would stop here. wall in ns."""
    if len(durations) < 3 or wall <= LEAST_WALL:
        return False
    stats = statistics(durations)
    return (
        stats.err / stats.mean < GOOD_ERROR
        or stats.mean * stats.runs > plan.max_timed
        or wall > MOST_WALL
    )
