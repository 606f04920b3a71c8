"""eval.py qualify: the plan, the watchdog, going on after a kill, and what the report says."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest

from eval import COMMANDS
from harness.evaluator import arguments
from harness.qualify import page, plots, run
from harness.qualify.plan import EVAL, QUICK, REHEARSED, STEPS, Command, Scope, plan
from harness.qualify.state import Given, State, StateError
from harness.qualify.summary import not_run, summary
from task import PROBLEMS
from tests import ROOT

GEMM = {"problem": "nvfp4_gemm", "case": "m: 128; n: 4096; k: 7168; l: 1", "status": "pass"}
OK = {"problem": "nvfp4_gemm", "case": "m: 1", "status": "pass", "message": ""}
ROWS = {
    "machine": [{"fact": "SMs", "value": 148, "assumed": 148}],
    "right": [{**OK, "mode": "test"}],
    "fast": [
        {**GEMM, "mode": "benchmark", "kind": "measured", "time_us": 9.5, "best_known_us": 10.0},
        {
            **GEMM,
            "mode": "tune",
            "kind": "measured",
            "config": "split=1",
            "best": "split=1",
            "time_us": 9.4,
            "best_us": 9.4,
            "loss": 0.0,
            "tried": [{"config": {"split": 1}, "time_us": 9.4}, {"config": {}, "time_us": None}],
        },
    ],
    "true": [
        {"probe": "p", "constant": "dsmem", "table": 190.0, "fitted": 191.0, "unit": "clk"},
        {
            **GEMM,
            "mode": "clock",
            "config": {},
            "measured_us": 9.5,
            "before_us": 9.0,
            "after_us": 9.4,
        },
    ],
}


def printing(step: str, number: int, rows: list[dict], status: int = 0) -> Command:
    """A command that prints rows and ends with a status."""
    code = f'printf "%s\\n" "$@"; exit {status}'
    argv = ("sh", "-c", code, "sh", *map(json.dumps, rows))
    return Command(f"{step}.{number}", step, f"{step} {number}", argv, 60)


@pytest.fixture
def commands(monkeypatch):
    """Six quick commands in place of the plan; the list may be changed."""
    made = [printing(step, i, ROWS[step]) for i, step in enumerate([*STEPS, "right", "fast"])]
    for module in (run, page, sys.modules["harness.qualify.summary"]):
        monkeypatch.setattr(module, "plan", lambda scope: made)
    return made


@pytest.fixture
def rows_for_pictures(monkeypatch):
    """The rows that a report's pictures are drawn of, in their place: rendering takes longer."""
    drawn = lambda rows: [(title, json.dumps(rows)) for title in plots.PICTURES]  # noqa: E731
    monkeypatch.setattr(plots, "drawn", drawn)


@pytest.fixture
def not_rendered(monkeypatch):
    """Pictures are drawn, and not rendered."""
    monkeypatch.setattr(plots.pictures, "svg", lambda figure: f"<p>{figure}</p>")


def qualify(folder, *more: str) -> int:
    submission = str(ROOT / "submission.py")
    return run.main(
        ["--device", "emulator", "--submission", submission, "--out", str(folder), *more]
    )


def test_every_official_shape_is_in_the_plan(tmp_path):
    scope = Scope("emulator", ROOT / "submission.py", tmp_path)
    keys = [command.key for command in plan(scope)]
    assert len(keys) == len(set(keys))
    names = [f"{p.short}.{i + 1}" for p in PROBLEMS.values() for i in range(len(p.benchmarks))]
    assert len(names) == 14
    assert {f"{mode}.{name}" for name in names for mode in ("fast", "tune")} <= set(keys)


@pytest.mark.parametrize(
    "device, more",
    [
        *((device, more) for device in ("cuda", "hopper", "emulator") for more in ({}, QUICK)),
        *((device, REHEARSED) for device in ("hopper", "emulator")),
    ],
)
def test_every_command_is_understood_by_its_program(tmp_path, device, more):
    """None is refused for its arguments, which only the machine that it is for would show."""
    chip = ("dsmem=240",) if device == "emulator" else ()
    for command in plan(Scope(device, ROOT / "submission.py", tmp_path, chip, **more)):
        program, *rest = command.argv[1:]
        if program == str(EVAL) and rest[0] not in COMMANDS:
            arguments.parse(rest, None)
            continue
        assert program in ("-m", str(EVAL))
        name, *rest = rest
        module = name if program == "-m" else COMMANDS[name]
        known = options_of(module)
        assert {word for word in rest if word.startswith("--")} <= known, command.key


@functools.cache
def options_of(module: str) -> set[str]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit):
        importlib.import_module(module).main(["--help"])
    return set(re.findall(r"--[a-z]+", text.getvalue()))


def test_nothing_wrong(commands, tmp_path, capsys):
    assert qualify(tmp_path / "q") == 0
    assert "nothing is wrong" in capsys.readouterr().out


class _Links(HTMLParser):
    """Tags and outside resources of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        where = ("src", "href", "data", "xlink:href")
        self.outside += [v for k, v in attrs if k in where and not v.startswith("#")]


def test_the_page_needs_nothing_from_outside(commands, tmp_path):
    qualify(tmp_path / "q")
    parser = _Links()
    parser.feed((tmp_path / "q" / "report.html").read_text())
    assert parser.tags.count("h2") == 1 + len(STEPS) and not parser.outside
    assert parser.tags.count("svg") == 4  # times, choices, constants, the clock's error


@pytest.mark.parametrize("ended_at", range(5))
def test_a_run_that_was_ended_goes_on_with_the_same_report(
    commands, rows_for_pictures, tmp_path, monkeypatch, ended_at
):
    qualify(tmp_path / "whole")
    calls, whole = [], run.run

    def ending(command):
        if len(calls) == ended_at:
            raise KeyboardInterrupt
        calls.append(command.key)
        return whole(command)

    monkeypatch.setattr(run, "run", ending)
    with pytest.raises(KeyboardInterrupt):
        qualify(tmp_path / "cut")
    monkeypatch.setattr(run, "run", lambda command: calls.append(command.key) or whole(command))
    assert qualify(tmp_path / "cut", "--resume") == 0
    assert len(calls) == len(set(calls)) == len(commands)
    report = "report.html"
    assert (tmp_path / "cut" / report).read_text() == (tmp_path / "whole" / report).read_text()


def test_a_killed_process_leaves_a_whole_state(tmp_path):
    """SIGKILL while results are being written, again and again."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom harness.qualify.state import Given, State\n"
        f"state = State(Path({str(tmp_path)!r}), {{}}, True)\nprint('on', flush=True)\n"
        "for i in range(10**6): state.add(str(i % 50), Given(0, [{'row': i}] * 20))"
    )
    for _ in range(3):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
        )
        process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert State(tmp_path, {}, True).given


def test_a_command_that_hangs_is_stopped_with_its_children_and_the_rest_goes_on(
    commands, not_rendered, tmp_path, capsys
):
    sleeper = "import subprocess; subprocess.run(['sleep', '987654'])"
    commands[1] = Command("right.1", "right", "sleeper", (sys.executable, "-c", sleeper), 1.0)
    assert qualify(tmp_path / "q") == 112
    assert "sleeper: did not end and was stopped" in capsys.readouterr().out
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 987654" not in running
    state = json.loads((tmp_path / "q" / "state.json").read_text())
    assert len(state["given"]) == len(commands)


@pytest.mark.parametrize(
    "step, row, status, said",
    [
        ("right", {**OK, "status": "fail", "message": "1 of 2 differ\nmore"}, 112, "1 of 2 differ"),
        ("right", {**OK, "status": "timeout", "message": "hangs"}, 114, "timeout: hangs"),
        ("fast", {**OK, "loss": 0.08, "best": "split 2"}, 0, "the pick loses 8.0% to split 2"),
        ("machine", {"fact": "SMs", "value": 132, "assumed": 148}, 0, "SMs is 132, assumed is 148"),
        (
            "true",
            {**ROWS["true"][0], "fitted": None, "measured": 41.5, "before": 500.0},
            0,
            "constant dsmem: no value explains its probe, 41.5 clk, 500 by the clock",
        ),
        ("true", {**ROWS["true"][0], "fitted": 240.0}, 0, "constant dsmem is 240 by its probe"),
    ],
)
def test_what_is_wrong_is_said(commands, not_rendered, tmp_path, capsys, step, row, status, said):
    commands.append(printing(step, 9, [row], status))
    assert qualify(tmp_path / "q") == 112
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "q" / "report.html").read_text()


def test_a_command_that_fails_is_said_with_its_last_words():
    scope = Scope("emulator", ROOT / "submission.py", ROOT)
    given = {command.key: Given(0) for command in plan(scope)}
    given["machine"] = Given(1, [], "Traceback\nValueError: no driver\n")
    assert summary(scope, given) == ["this machine: ended with status 1: ValueError: no driver"]


def test_nothing_begins_when_the_minutes_are_over(commands, tmp_path, capsys):
    assert qualify(tmp_path / "q", "--minutes", "0") == 112
    said = capsys.readouterr().out
    assert "6 of 6 parts not run for want of time (--minutes): machine 0; right 1; fast 2" in said
    assert "- nothing was run" in said
    assert not (tmp_path / "q" / "state.json").exists()


def test_what_found_no_time_is_not_wrong(tmp_path):
    scope = Scope("emulator", ROOT / "submission.py", ROOT)
    given = {"machine": Given(0)}
    assert summary(scope, given) == []
    left = not_run(scope, given)
    count = len(list(plan(scope)))
    said = f"{count - 1} of {count} parts not run for want of time (--minutes): official cases; "
    assert left.startswith(said)
    shown = page.page(scope, given, [], left)
    assert f"<h2>What is wrong</h2><p>Nothing.</p><p>{said}" in shown
    assert not_run(scope, {command.key: Given(0) for command in plan(scope)}) == ""


@pytest.mark.parametrize(
    "device, more, said",
    [
        ("cuda", ["--rehearse"], "this is a B200"),
        ("hopper", ["--chip", "dsmem=240"], "it needs --device emulator"),
        ("emulator", ["--chip", "speed=9"], "'speed' is not a constant of the clock"),
        ("emulator", ["--submission", "nothing.py"], "no submission at"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, monkeypatch, capsys, device, more, said):
    from harness.evaluator.devices import Device

    monkeypatch.setattr(
        "harness.evaluator.devices.resolve", lambda name: Device(device, name, name)
    )
    assert run.main(["--out", str(tmp_path), *more]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_rehearsal(fork_server, monkeypatch, tmp_path, capsys):
    """The whole command: three mistakes and 24 altered constants are found, and nothing else. A
    command whose program has run before is forked: it imports nothing anew.
    """
    whole, known = run.run, set()

    def sooner(command: Command) -> Given:
        program = command.argv[1:3]
        if program not in known:
            known.add(program)
            return whole(command)
        done = fork_server.run(*command.argv[1:], limit=command.limit)
        return run.given(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(run, "run", sooner)
    status = run.main(["--rehearse", "--device", "emulator", "--out", str(tmp_path / "q")])
    said = capsys.readouterr().out
    assert status == 0, said
    assert said.endswith("rehearsal: found what was planted, and nothing else\n")
    parser = _Links()
    parser.feed((tmp_path / "q" / "report.html").read_text())
    assert parser.tags.count("svg") == 4 and not parser.outside


def test_a_folder_of_another_run_is_refused(commands, not_rendered, tmp_path, capsys):
    qualify(tmp_path / "q")
    assert qualify(tmp_path / "q") == 2
    assert "--resume goes on with it" in capsys.readouterr().err
    assert qualify(tmp_path / "q", "--resume", "--chip", "dsmem=240") == 2
    assert "other arguments: chip" in capsys.readouterr().err
    (tmp_path / "q" / "state.json").write_text("{")
    with pytest.raises(StateError, match="cannot be read"):
        State(tmp_path / "q", {}, True)
