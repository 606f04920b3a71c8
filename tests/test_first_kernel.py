"""docs/first-kernel.md: every command says what the page says that it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.b200.host.cuda.support import needs_nvcc

PAGE = ROOT / "docs" / "first-kernel.md"
SOURCE = ROOT / "docs" / "results" / "first-kernel.jsonl"  # of its table of steps
CASE = "m: 128; n: 4096; k: 7168; l: 1"  # of that
BLOCK = re.compile(r"^```\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```", re.DOTALL | re.MULTILINE)
CASES = [(found["command"], found["output"]) for found in BLOCK.finditer(PAGE.read_text())]
LEFT_OUT = "..."
# Commands that run with the sweeps. The first three model kernels at full size; what compare and profile
# say is in tests/harness and tests/b200/clock, too. The last two stand beside the same of another step.
LONG = (
    "eval.py profile gemm",
    "compare submission.py docs/examples/gemm_mended.py",
    "compare submission.py docs/examples/gemm_fast.py",
    "run --time docs/examples/steps/gemm_1.cu",
    "run --time docs/examples/gemm_fast.cu",
)
STEPS = ("gemm_mended.py", "steps/gemm_1.py", "steps/gemm_2.py", "steps/gemm_3.py", "gemm_fast.py")
VERSIONS_APART = 0.03  # of a modelled time, between the PTX of two versions of the CuTe DSL


def marks(command: str) -> list[pytest.MarkDecorator]:
    found = [needs_nvcc] if ".cu" in command else []
    return found + [pytest.mark.slow] * any(part in command for part in LONG)


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: times, addresses, versions, folders."""
    text = text.replace(f"{ROOT}/", "")
    text = re.sub(r"torch [\w.+]+, nvidia-cutlass-dsl [\w.]+", "VERSIONS", text)
    text = re.sub(r"0x[0-9a-f]+", "0x#", text)
    text = re.sub(r"in \d+ s ", "in # s ", text)
    return [" ".join(re.sub(r"\d+\.\d+", "#", line).split()) for line in text.splitlines()]


def pattern(shown: str) -> str:
    """What the output must match: a line `...` stands for any lines, at a line's end for the rest
    of the line.
    """
    lines = []
    for line in plain(shown):
        if line == LEFT_OUT:
            lines.append(r"(?:[^\n]*\n)*?")
        elif line.endswith(f" {LEFT_OUT}"):
            lines.append(re.escape(line.removesuffix(LEFT_OUT)) + r"[^\n]*\n")
        else:
            lines.append(re.escape(line) + r"\n")
    return "".join(lines)


@pytest.mark.parametrize(
    "command, shown",
    [
        pytest.param(command, shown, marks=marks(command), id=command[:60])
        for command, shown in CASES
    ],
)
def test_the_output_is_what_the_page_shows(command, shown, fork_server):
    program, *arguments = shlex.split(command)
    if program == "python":
        done = fork_server.run(*arguments, limit=600)
    else:
        words = [program, *arguments]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    said = "\n".join(plain(done.stdout + done.stderr)) + "\n"
    assert re.fullmatch(pattern(shown), said), f"{said}\nshould be\n{pattern(shown)}"
    times = printed_times(done.stdout + done.stderr)
    assert times == pytest.approx(times | printed_times(shown), rel=VERSIONS_APART)
    if "compare" in command and CASE in command:
        then = {name: row["time_us"] for name, row in records(SOURCE.read_text()).items()}
        assert len(times) == 2
        assert times == pytest.approx({name: then[name] for name in times}, rel=VERSIONS_APART)


def test_the_page_shows_both_kinds_and_both_mends():
    commands = "".join(command for command, _ in CASES)
    for kind in ("py", "cu"):
        for name in (f"examples/gemm.{kind}", f"examples/gemm_mended.{kind}"):
            assert name in commands
    assert len(CASES) >= 7
    assert sum(part in command for command, _ in CASES for part in LONG) == len(LONG)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "steps/" in name else ()) for name in STEPS],
)
def test_each_step_is_right_in_another_order_and_on_all_codes(name, fork_server):
    """On more than one tile of rows, and on more k-tiles than any has stages, 8."""
    right(name, "m: 256; n: 128; k: 2304; l: 1", fork_server)


@pytest.mark.slow
@pytest.mark.parametrize("name", [STEPS[0], STEPS[-1]])
def test_the_first_and_the_last_are_right_at_full_depth(name, fork_server):
    right(name, "m: 128; n: 256; k: 7168; l: 1", fork_server)


def right(name, case, fork_server):
    command = ["eval.py", "test", "gemm", "--case", case]
    command += ["--inputs", "full", "--schedule", "random:1", "--device", "emulator"]
    done = fork_server.run(*command, "--submission", f"docs/examples/{name}", limit=300)
    assert done.returncode == 0, done.stdout + done.stderr


def records(text: str) -> dict[str, dict]:
    """JSON lines of compare by the submission's name."""
    return {record["submission"]: record for record in map(json.loads, text.splitlines())}


def test_the_steps_lead_from_the_template_to_near_our_kernel():
    """Each step's modelled time is below the one before, in the table's source, which is of today's
    files and clock (tests/lab/results); of our kernel, the first step and the last the page shows
    what it has.
    """
    times = {name: record["time_us"] for name, record in records(SOURCE.read_text()).items()}
    names = ["submission.py", *(Path(name).name for name in STEPS)]
    assert list(times) == names
    shown = {}
    for command, output in CASES:
        shown |= printed_times(output) if "eval.py compare" in command and CASE in command else {}
    assert set(shown) == {names[0], names[1], names[-1]}  # test_the_output runs these commands
    assert shown == pytest.approx({name: times[name] for name in shown}, rel=VERSIONS_APART)
    ours, *steps = (times[name] for name in names)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 2 * ours and steps[-1] < 1.3 * ours


@pytest.mark.slow
def test_the_steps_are_right_and_take_what_the_table_has(fork_server):
    """Of the first and the last the page compares the times; the test above has the results."""
    files = [f"docs/examples/{name}" for name in STEPS[1:-1]]
    command = ["eval.py", "compare", *files, "gemm", "--case", CASE, "--json"]
    done = fork_server.run(*command, "--device", "emulator", limit=600)
    now, then = records(done.stdout), records(SOURCE.read_text())
    assert set(now) == {Path(name).name for name in files}, done.stderr
    for name, record in now.items():
        assert record["status"] == then[name]["status"] == "pass"
        assert record["time_us"] == pytest.approx(then[name]["time_us"], rel=VERSIONS_APART)


def printed_times(text: str) -> dict[str, float]:
    """Modelled us by file, from a table of compare or a line of `b200 run --time`."""
    rows = re.findall(r"^  (\S+) +(?:timed|pass) +(\d+\.\d+) ", text, re.MULTILINE)
    rows += re.findall(r"^b200: (\S+), .* modelled (\d+\.\d+) us", text, re.MULTILINE)
    return {name: float(time) for name, time in rows}


def test_what_is_left_out_is_left_out_and_nothing_else():
    said = "a 1.5\nb\nc d\n"
    said = "\n".join(plain(said)) + "\n"
    assert re.fullmatch(pattern("a 7.25\n...\nc ...\n"), said)
    assert not re.fullmatch(pattern("a 7.25\n...\nd\n"), said)
