"""The part of a survey that runs on a board, on a stand-in for a B200."""

from __future__ import annotations

import math
import random
import statistics
import time
from types import SimpleNamespace

import pytest
import torch

import submission
from lab.kernel_cases import dual, gemm, gemv, group
from lab.survey import paste
from submission import Config

PROBLEM = gemm(256, 128, 512)
PLAIN, PAIRS, SPLIT, WIDE = Config(), Config(cta_group=2), Config(split_k=2), Config(tile_n=128)
CPU = torch.device("cpu")


def trials(*configs, problem=PROBLEM):
    return [paste.Trial(n, f"trial {n}", problem, config) for n, config in enumerate(configs, 1)]


class Chip:
    """Each configuration writes a value and takes a time, both given."""

    def __init__(self, monkeypatch, milliseconds, values=None, failing=(), faulting=()):
        self.milliseconds, self.values, self.failing = milliseconds, values or {}, failing
        self.faulting, self.lost = faulting, False
        self.now, self.calls = 0.0, []
        chip = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = chip.now

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
        monkeypatch.setattr(paste, "BEGIN", time.monotonic())
        for name, value in {"CALLS": 2, "ROUNDS": 3, "CLEAR_BYTES": 16, "MAX_CLEARS": 1}.items():
            monkeypatch.setattr(paste, name, value)
        monkeypatch.setattr(paste, "bind", self.bind)

    def synchronize(self):
        """Raises once a fault has happened, and ever after, as CUDA does."""
        if self.calls and self.calls[-1] in self.faulting:
            self.lost = True
        if self.lost:
            raise RuntimeError("an illegal memory access was encountered\nmore words")

    def bind(self, problem, groups, config):
        if config in self.failing:
            raise ValueError("ptxas has no registers left")

        def call():
            self.calls.append(config)
            self.now += self.milliseconds[config]
            for tensors in groups:
                tensors["c"].fill_(self.values.get(config, 1.0))

        return call


def surveyed(monkeypatch, capsys, *configs, problem=PROBLEM):
    monkeypatch.setattr(paste, "TRIALS", trials(*configs, problem=problem))
    is_done = paste.survey(CPU)
    begin, *lines = capsys.readouterr().err.splitlines()
    assert begin.startswith("survey: begin: NVIDIA B200; 10.0; 20")
    return is_done, [line.removeprefix("survey: ") for line in lines]


def test_each_trial_is_named_judged_and_timed_by_turns_with_the_plainest(monkeypatch, capsys):
    chip = Chip(monkeypatch, {PLAIN: 0.012, SPLIT: 0.009})
    is_done, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT)
    assert is_done and lines == [
        "try 1 trial 1",
        "ok 1: 12.000 us, plainest 12.000",
        "try 2 trial 2",
        "ok 2: 9.000 us, plainest 12.000",
        "end: all tried",
    ]
    timed = chip.calls[-2 - 3 * 4 : -2]  # two calls a run
    assert timed == 3 * [PLAIN, PLAIN, SPLIT, SPLIT] and chip.calls[-2:] == [SPLIT, SPLIT]


def test_it_is_named_before_it_runs(monkeypatch):
    chip, told = Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0}), []
    monkeypatch.setattr(paste, "say", lambda text: told.append((text, SPLIT in chip.calls)))
    monkeypatch.setattr(paste, "TRIALS", trials(PLAIN, SPLIT))
    paste.survey(CPU)
    assert ("try 2 trial 2", False) in told


def test_wrong_sums_cost_a_line(monkeypatch, capsys):
    Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0, WIDE: 1.0}, {SPLIT: 1.5})
    _, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT, WIDE)
    assert "differs 2: 2 of 2 results" in lines and lines[-2].startswith("ok 3:")


def test_what_is_not_written_differs(monkeypatch, capsys):
    chip = Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0})
    whole = chip.bind
    nothing = lambda: None  # noqa: E731
    monkeypatch.setattr(paste, "bind", lambda *a: nothing if a[2] == SPLIT else whole(*a))
    _, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT)
    assert "differs 2: 2 of 2 results" in lines


def test_what_the_call_before_made_differs(monkeypatch, capsys):
    """One that computes from the inputs of the call before, as one that reads too early does."""
    chip, seen, of_inputs = Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0}), [], {}

    def bind(problem, groups, config):
        def call():
            value = of_inputs.setdefault(groups[0]["a"].data_ptr(), float(len(of_inputs)))
            seen.append(value)
            stale = seen[-2] if config == SPLIT else value
            groups[0]["c"].fill_(stale)

        return call

    monkeypatch.setattr(paste, "bind", bind)
    _, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT)
    assert not chip.lost and "differs 2: 2 of 2 results" in lines


def test_results_that_differ_after_the_timing(monkeypatch, capsys):
    chip = Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0})
    whole = chip.bind

    def bind(problem, groups, config):
        call = whole(problem, groups, config)

        def late():
            call()
            if config == SPLIT and chip.calls.count(SPLIT) > 8:
                groups[0]["c"].fill_(3.0)

        return late

    monkeypatch.setattr(paste, "bind", bind)
    _, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT)
    assert "differs 2: 2 of 2 results after the timing" in lines


def test_one_that_raises_costs_a_line(monkeypatch, capsys):
    Chip(monkeypatch, {PLAIN: 1.0, WIDE: 1.0}, failing=[SPLIT])
    _, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT, WIDE)
    assert "failed 2: ValueError: ptxas has no registers left" in lines
    assert lines[-2].startswith("ok 3:")


def test_without_the_plainest_nothing_of_its_problem_is_judged(monkeypatch, capsys):
    Chip(monkeypatch, {SPLIT: 1.0}, failing=[PLAIN])
    is_done, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT)
    assert is_done and lines[-2] == "skipped 2: nothing to hold it against"


def test_a_fault_ends_the_run_and_is_blamed_on_the_one_that_ran(monkeypatch, capsys):
    Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0, WIDE: 1.0}, faulting=[SPLIT])
    monkeypatch.setattr(paste, "TRIALS", trials(PLAIN, SPLIT, WIDE))
    with pytest.raises(RuntimeError, match="the GPU is lost since this ran: trial 2"):
        paste.survey(CPU)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "survey: faulted 2: an illegal memory access was encountered"
    assert "survey: try 3 trial 3" not in said


def test_it_ends_before_the_board_ends_it(monkeypatch, capsys):
    """Each look at the clock takes 50 s."""
    Chip(monkeypatch, {PLAIN: 1.0, SPLIT: 1.0, WIDE: 1.0})
    clock = iter(range(0, 10_000, 50))
    fake = SimpleNamespace(**{**vars(time), "monotonic": lambda: float(next(clock))})
    monkeypatch.setattr(paste, "time", fake)
    monkeypatch.setattr(paste, "BEGIN", 0.0)
    is_done, lines = surveyed(monkeypatch, capsys, PLAIN, SPLIT, WIDE, PAIRS)
    assert not is_done and lines[-1] == "end: out of time, 1 left"


HANGS = """
import time, torch
from lab.survey import paste
from tests.lab.survey.test_paste import PLAIN, SPLIT, trials

paste.begin = lambda device: None
paste.TRIAL_SECONDS, paste.CALLS = 2.0, 1
paste.bind = lambda problem, groups, config: lambda: time.sleep(60 * (config == SPLIT))
paste.Work.times = lambda *_: (1.0, 1.0)
paste.Work.wrong = lambda self, call: call()
torch.cuda.synchronize = lambda: None
paste.TRIALS = trials(PLAIN, SPLIT, PLAIN)
paste.survey(torch.device("cpu"))
"""


def test_one_that_hangs_ends_the_run_by_a_line(fork_server):
    done = fork_server.run("-c", HANGS, limit=50)
    assert done.returncode == paste.HUNG
    assert done.stderr.splitlines()[-2:] == [
        "survey: try 2 trial 2",
        "survey: hung 2: no end after 2 s",
    ]


# ---- going on ------------------------------------------------------------------------------------


def test_it_goes_on_behind_what_was_said(monkeypatch):
    monkeypatch.setattr(paste, "TRIALS", trials(PLAIN, SPLIT, WIDE, PAIRS))
    said = "survey: try 1 trial 1\nsurvey: ok 1: 1.0 us, plainest 1.0\nsurvey: try 2 trial 2\n"
    numbers = lambda text: [trial.number for trial in paste.go_on(text)]  # noqa: E731
    assert numbers("") == [1, 2, 3, 4]
    assert numbers(said) == [1, 3, 4]  # 2 hangs
    assert numbers(said + "survey: try 3 x\nsurvey: try 4 x\n") == []
    assert numbers("survey: try 1 trial 1\n") == []  # the plainest hangs


# ---- data and times ------------------------------------------------------------------------------


def as_a_board_hands_it(problem, groups):
    """The tensors of each group as what custom_kernel takes."""
    if len(groups) > 1:
        abc = [tuple(tensors[key] for key in "abc") for tensors in groups]
        scales = [(tensors["sfa_permuted"], tensors["sfb_permuted"]) for tensors in groups]
        return abc, scales, scales, [tuple(shape) for shape in problem.groups]
    names = "a b _ _ sfa_permuted sfb_permuted c"
    if problem.num_products == 2:
        names = "a b1 b2 _ _ _ sfa_permuted sfb1_permuted sfb2_permuted c"
    return tuple(groups[0].get(name) for name in names.split())


@pytest.mark.parametrize(
    "problem",
    [PROBLEM, gemv(256, 512, 2), dual(256, 40, 512), group((40, 256, 512), (72, 128, 256))],
    ids=["gemm", "gemv", "dual", "group"],
)
def test_operands_are_what_the_kernel_takes(problem):
    groups = paste.random_operands(problem, CPU)
    data = as_a_board_hands_it(problem, groups)
    unpacked, _ = submission.unpack(data)
    assert submission.problem_of(data, unpacked) == problem
    assert [tensors.keys() for tensors in groups] == [tensors.keys() for tensors in unpacked]
    for tensors in groups:
        for key, tensor in tensors.items():
            if key.startswith("sf"):
                assert set(tensor.float().unique().tolist()) == {0.125, 0.25, 0.5, 1.0}
            elif key != "c":
                codes = tensor.view(torch.uint8)
                assert set(torch.cat([codes & 7, codes >> 4 & 7]).unique().tolist()) == {0, 1, 2, 3}


def test_large_tensors_are_timed_in_fewer_calls():
    of_groups = group((40, 256, 512), (72, 128, 256))
    assert paste.calls_of(PROBLEM, 1) == 50 and paste.calls_of(of_groups, 1) == 15
    assert paste.calls_of(gemv(256, 512, 2), 1) == 1
    assert paste.calls_of(PROBLEM, paste.WORK_BYTES // 7) == 7
    assert paste.calls_of(PROBLEM, 2 * paste.WORK_BYTES) == 1


@pytest.mark.parametrize("step, most", [(0.0, 0.05), (2.048, 0.4)])
def test_what_measuring_loses(monkeypatch, step, most):
    """Mean regret in percent, 150 sets of six candidates up to 10 % apart, 1 % noise; the events of
    a single call tick in steps of so many us.
    """
    rng, regrets = random.Random(3), []
    monkeypatch.setattr(paste, "CLEAR_BYTES", 16)
    for _ in range(150):
        base = rng.uniform(7.5, 12)
        of_config = [base * (1 + rng.uniform(0, 0.1)) for _ in range(6)]
        order: list[float] = []

        class Event:
            def __init__(self, enable_timing):
                pass

            def record(self):
                pass

            def synchronize(self):
                pass

            def elapsed_time(self, end, order=order):
                time = order.pop()
                time += abs(rng.gauss(0, 0.01 * time))
                if step:
                    at = rng.random() * step
                    time = (math.floor((at + time) / step) - math.floor(at / step)) * step
                return time / 1000

        monkeypatch.setattr(torch.cuda, "Event", Event)
        work = paste.Work(PROBLEM, CPU)
        work.inputs = [[]]
        calls = [lambda us=us, order=order: order.append(us) for us in of_config]
        pairs = [work.times(call, calls[0]) for call in calls]
        scores = [us / plain_us for us, plain_us in pairs]
        regrets.append(100 * (of_config[scores.index(min(scores))] / min(of_config) - 1))
    assert statistics.fmean(regrets) <= most
