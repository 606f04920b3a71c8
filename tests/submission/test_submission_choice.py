"""The choice that is made on the chip: what is named, what is left out, and budgets."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import submission
from lab.kernel_cases import gemm, inputs
from submission import Config

ROOT = Path(submission.__file__).parent
PAIRS, SPLIT = Config(cta_group=2), Config(split_k=2)


class Chip:
    """Stands in for a B200: each configuration writes a value and takes a time, both given."""

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
        monkeypatch.setattr(submission, "CALLS", 2)
        monkeypatch.setattr(submission, "L2_CLEAR_BYTES", 16)
        monkeypatch.setattr(submission, "is_b200", lambda groups: True)
        monkeypatch.setattr(submission, "CHOICES", submission.Choices())
        monkeypatch.setattr(submission, "pick", lambda problem, _=None: next(iter(milliseconds)))
        monkeypatch.setattr(submission, "candidates", lambda problem: list(milliseconds))
        monkeypatch.setattr(submission, "bind", self.bind)

    def synchronize(self):
        """Raises once a fault has happened, and ever after, as CUDA does."""
        if self.calls and self.calls[-1] in self.faulting:
            self.lost = True
        if self.lost:
            raise RuntimeError("an illegal instruction was encountered")

    def bind(self, problem, groups, config):
        if config in self.failing:
            raise RuntimeError("ptxas has no registers left")

        def call():
            self.calls.append(config)
            self.now += self.milliseconds[config]
            for tensors in groups:
                tensors["c"].fill_(self.values.get(config, 1.0))

        return call


PROBLEM = gemm(256, 128, 512)


def choose():
    data = inputs(PROBLEM, seed=1)
    submission.custom_kernel(data)
    return submission.CHOICES.configs[PROBLEM], data[-1]


def test_the_fastest_candidate_replaces_the_pick(monkeypatch):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.9})
    assert choose()[0] == SPLIT


def test_two_percent_are_not_enough(monkeypatch):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.985})
    assert choose()[0] == PAIRS


def test_each_candidate_is_named_before_it_runs(monkeypatch, capsys):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.9})
    told = []
    monkeypatch.setattr(submission, "report", lambda text: told.append((text, len(chip.calls))))
    choose()
    assert told[:3] == [(f"trying {PAIRS}", 0), (f"trying {Config()}", 2), (f"trying {SPLIT}", 4)]
    assert told[3][0] == "timing 3 that agree"
    assert told[4][0].startswith(f"chose {SPLIT} of 3 that agree: ")


def test_a_fault_is_blamed_on_the_one_that_ran(monkeypatch, capsys):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.9}, faulting=[Config()])
    with pytest.raises(RuntimeError, match=re.escape(f"since this ran: {Config()}")):
        choose()
    told = capsys.readouterr().err
    assert f"{Config()} is left out: RuntimeError: an illegal instruction" in told
    assert f"trying {SPLIT}" not in told


def test_stale_data_differs(monkeypatch, capsys):
    """One that returns what the launch before it would have: other data's result."""
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    seen = []

    def bind(problem, groups, config):
        def call():
            value = float(groups[0]["a"].view(torch.uint8)[0, 0, 0])
            seen.append(value)
            stale = seen[-2] if config == SPLIT and len(seen) > 1 else value
            groups[0]["c"].fill_(stale)
            chip.now += chip.milliseconds[config]

        return call

    monkeypatch.setattr(submission, "bind", bind)
    assert choose()[0] == PAIRS
    assert f"{SPLIT} is left out: its c differs from that of" in capsys.readouterr().err


def test_results_that_differ_after_the_timing(monkeypatch, capsys):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    whole = chip.bind

    def bind(problem, groups, config):
        call = whole(problem, groups, config)

        def late():
            call()
            if config == SPLIT and chip.calls.count(SPLIT) > 20:
                groups[0]["c"].fill_(3.0)

        return late

    monkeypatch.setattr(submission, "bind", bind)
    assert choose()[0] == PAIRS
    assert f"{SPLIT} is left out: its c differs after the timing" in capsys.readouterr().err


def test_a_fault_in_the_timing_is_blamed_on_the_one_that_ran(monkeypatch):
    """It ran well before, with other data and with the caller's."""
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.9})

    class Event(torch.cuda.Event):
        def synchronize(self):
            if chip.calls[-1] == SPLIT:
                raise RuntimeError("an illegal instruction was encountered")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    with pytest.raises(RuntimeError, match=re.escape(f"while it was timed: {SPLIT}")):
        choose()


HANGS = """
import time, torch, submission
from tests.submission.test_submission_choice import PROBLEM, PAIRS, SPLIT
from lab.kernel_cases import inputs

def bind(problem, groups, config):
    return lambda: time.sleep(600 if config == SPLIT else 0)

submission.bind = bind
submission.is_b200 = lambda groups: True
submission.candidates = lambda problem: [PAIRS, SPLIT, submission.plainest(problem)]
torch.cuda.synchronize = lambda: None
submission.custom_kernel(inputs(PROBLEM, seed=1))
"""


def test_a_time_limit_names_one_that_hangs():
    """The last line, of a process that is ended from outside with its lines in a pipe."""
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "split_k=2" in line:
            break
    time.sleep(0.5)
    process.kill()
    rest = process.stderr.read()
    assert (lines + rest.splitlines())[-1] == f"submission.py: trying {SPLIT}\n"
    assert process.wait() != 0


def test_each_choice_is_a_line(monkeypatch, capsys):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2}, failing=[Config()])
    choose()
    assert f"chose {PAIRS}, the only one left" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["profiler", "off"])
def test_without_measuring_the_first_candidate_is_taken(monkeypatch, capsys, how):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    if how == "off":
        monkeypatch.setattr(submission, "MEASURES", False)
    else:
        monkeypatch.setenv("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "/opt/ncu")
    assert choose()[0] == PAIRS and chip.calls == [PAIRS]
    assert "without measuring" in capsys.readouterr().err


def test_a_candidate_that_differs_is_left_out_and_named(monkeypatch, capsys):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5}, {SPLIT: 1.5})
    config, c = choose()
    assert config == PAIRS and torch.all(c == 1)
    told = capsys.readouterr().err
    assert f"{SPLIT} is left out: its c differs from that of {PAIRS}" in told
    assert told.count("left out") == 1


def test_what_a_candidate_does_not_write_differs(monkeypatch, capsys):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    whole = chip.bind
    nothing = lambda: None  # noqa: E731
    monkeypatch.setattr(submission, "bind", lambda *a: nothing if a[2] == SPLIT else whole(*a))
    assert choose()[0] == PAIRS
    assert f"{SPLIT} is left out: its c differs" in capsys.readouterr().err


def test_a_pick_that_differs_is_left_out(monkeypatch, capsys):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 1.1}, {PAIRS: 7.0})
    assert choose()[0] == SPLIT
    assert f"{PAIRS} is left out" in capsys.readouterr().err


def test_a_plainest_one_that_alone_differs_is_left_out(monkeypatch, capsys):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5}, {Config(): 7.0})
    assert choose()[0] == SPLIT
    assert f"{Config()} is left out: its c differs from that of {PAIRS}" in capsys.readouterr().err


def test_a_candidate_that_raises_is_skipped(monkeypatch, capsys):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5}, failing=[SPLIT])
    assert choose()[0] == PAIRS
    assert "RuntimeError: ptxas has no registers left" in capsys.readouterr().err


def test_a_pick_that_raises_is_replaced(monkeypatch):
    Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 1.5}, failing=[PAIRS])
    assert choose()[0] == Config()


def test_a_spent_budget_tries_no_more(monkeypatch):
    """Each candidate takes 10 s to compile, a problem may take 15."""
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5, Config(split_k=4): 0.4})
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert choose()[0] == PAIRS
    assert set(chip.calls) == {PAIRS, Config()}


def test_a_process_that_has_spent_its_budget_measures_nothing(monkeypatch):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    submission.CHOICES.seconds_left = 0.0
    assert choose()[0] == PAIRS
    assert chip.calls == [PAIRS]


def test_a_wrong_tensor_is_an_error_before_anything_is_tried(monkeypatch):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    data = inputs(PROBLEM, seed=1)
    with pytest.raises(TypeError, match="c: expected dtype torch.float16, found torch.bfloat16"):
        submission.custom_kernel((*data[:-1], data[-1].bfloat16()))
    assert not chip.calls and not submission.CHOICES.configs


def test_a_second_call_measures_nothing(monkeypatch):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    choose()
    chip.calls.clear()
    choose()
    assert chip.calls == [SPLIT]


def test_without_a_b200_the_estimate_decides(monkeypatch):
    chip = Chip(monkeypatch, {PAIRS: 1.0, Config(): 1.2, SPLIT: 0.5})
    monkeypatch.setattr(submission, "is_b200", lambda groups: False)
    assert choose()[0] == PAIRS
    assert chip.calls == [PAIRS]
