"""What the choice on the chip rests on: candidates, copies of the data, times, and where it is."""

from __future__ import annotations

import math
import os
import random
import statistics
from types import SimpleNamespace

import pytest
import torch

import b200
import submission
from lab.kernel_cases import dual, gemm, gemv, inputs
from lab.tuning.shapes import benchmarks
from submission import Config

PROBLEM = gemm(256, 128, 512)


def test_copies_with_other_data_differ_in_each_byte():
    groups, _ = submission.unpack(inputs(PROBLEM, seed=1))
    for given, copy in zip(groups, submission.with_other_data(groups)):
        for key in given.keys() - {"c"}:
            before, after = given[key].view(torch.uint8), copy[key].view(torch.uint8)
            assert (before != after).all() and before.stride() == after.stride()
            if key[0] == "s":
                assert copy[key].float().isfinite().all()


def test_large_tensors_are_timed_in_fewer_calls(monkeypatch):
    groups, _ = submission.unpack(inputs(PROBLEM, seed=1))
    size = sum(tensor.nbytes for tensor in groups[0].values())
    assert submission.calls_timed(PROBLEM, groups) == submission.CALLS
    for room, calls in ((7 * size, 7), (size // 2, 1)):
        monkeypatch.setattr(submission, "WORK_BYTES", room)
        assert submission.calls_timed(PROBLEM, groups) == calls


@pytest.mark.parametrize(
    "variable, expected",
    [
        ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", True),
        ("NV_NSIGHT_INJECTION_PORT_BASE", True),
        ("NV_TPS_LAUNCH_TOKEN", True),
        ("CUDA_INJECTION64_PATH", True),
        # Images of containers set it, for whoever may call the profiler later.
        ("NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT", False),
    ],
)
def test_a_profiler_is_known_by_its_variables(monkeypatch, variable, expected):
    for name in os.environ:
        if name.startswith(submission.PROFILERS):
            monkeypatch.delenv(name)
    assert not submission.is_profiled()
    monkeypatch.setenv(variable, "1")
    assert submission.is_profiled() == expected


@pytest.mark.parametrize("step, most", [(0.0, 0.3), (2.048, 0.6)])
def test_what_measuring_loses(monkeypatch, step, most):
    """Mean regret in percent, 300 sets of six candidates up to 10 % apart, 1 % noise; the events of
    a single call tick in steps of so many us."""
    rng, regrets = random.Random(3), []
    monkeypatch.setattr(submission, "L2_CLEAR_BYTES", 16)
    for _ in range(300):
        base = rng.uniform(7.5, 12)
        times = [base * (1 + rng.uniform(0, 0.1)) for _ in range(6)]
        order: list[int] = []

        class Event:
            def __init__(self, enable_timing):
                pass

            def record(self):
                pass

            def synchronize(self):
                pass

            def elapsed_time(self, end, order=order, times=times):
                time = times[order.pop()]
                time += abs(rng.gauss(0, 0.01 * time))
                if step:
                    at = rng.random() * step
                    time = (math.floor((at + time) / step) - math.floor(at / step)) * step
                return time / 1000

        monkeypatch.setattr(torch.cuda, "Event", Event)
        trials = [
            submission.Trial(Config(), [torch.zeros(1)], [lambda i=i, order=order: order.append(i)])
            for i in range(6)
        ]
        submission.measure(trials)
        best = min(trials, key=lambda trial: trial.time)
        first = trials[0]
        chosen = best if best.time < submission.FASTER * first.time else first
        regrets.append(100 * (times[trials.index(chosen)] / min(times) - 1))
    assert statistics.fmean(regrets) <= most


@pytest.mark.parametrize(
    "is_cuda, devices, capability, expected",
    [
        (True, 1, (10, 0), True),
        (True, 1, (9, 0), False),
        (True, 0, (10, 0), False),  # the software B200 on a torch with CUDA and without a GPU
        (True, None, (10, 0), False),  # on a torch without CUDA
        (False, 1, (10, 0), False),  # the emulator beside a real one
    ],
)
def test_a_b200_is_real(monkeypatch, is_cuda, devices, capability, expected):
    count = None if devices is None else lambda: devices
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", count, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert submission.is_b200([{"c": SimpleNamespace(is_cuda=is_cuda)}]) == expected


@pytest.mark.parametrize("problem", [gemv(4096, 7168, 8), dual(3072, 256, 4096), PROBLEM])
def test_candidates(problem):
    """The pick, then what can repair a wrong estimate, then others in order."""
    found = submission.candidates(problem)
    assert found[0] == submission.pick(problem) and submission.plainest(problem) in found[:2]
    assert len(found) == len(set(found)) <= submission.MAX_CANDIDATES
    used = submission.mechanisms(found[0])
    legal = submission.legal_configs(problem)

    def best(accepted):
        of_them = filter(accepted, legal)
        return min(of_them, key=lambda c: submission.estimate(c, problem), default=found[0])

    assert best(lambda c: c.cluster == 1 and submission.mechanisms(c)) in found
    assert best(lambda c: not submission.mechanisms(c)) in found
    assert best(lambda c: submission.mechanisms(c) == used and c != found[0]) in found
    for config in found:
        submission.check(config, problem)


# In the second another candidate is more than 2 % faster than the pick. Other shapes:
# `python -m lab choice --device emulator`.
SHAPES = {"gemm 3": benchmarks()["gemm 3"], "gemm 40 x 512 x 1024": gemm(512, 40, 1024)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_by_modelled_events_the_best_candidate_is_taken(monkeypatch, name):
    """The same code, on the emulator's events."""
    problem, times = SHAPES[name], {}
    gpu = b200.install(check=False, timing=True)
    for name in ("PROBLEM_SECONDS", "PROCESS_SECONDS"):
        monkeypatch.setattr(submission, name, 1e6)  # of the emulator's
    monkeypatch.setattr(submission, "CHOICES", submission.Choices())
    monkeypatch.setattr(submission, "is_b200", lambda groups: True)
    monkeypatch.setattr(submission, "CALLS", 1)
    monkeypatch.setattr(submission, "ROUNDS", 2)
    monkeypatch.setattr(submission, "MAX_CLEARS", 1)
    measure = submission.measure

    def kept(trials, end):
        measure(trials, end)
        times.update({trial.config: trial.time for trial in trials})

    monkeypatch.setattr(submission, "measure", kept)
    submission.custom_kernel(inputs(problem, seed=2))
    assert len(times) >= 3 and gpu.launches
    best, first = min(times.values()), times[submission.pick(problem)]
    chosen = times[submission.CHOICES.configs[problem]]
    assert chosen == (best if best < 0.98 * first else first)
