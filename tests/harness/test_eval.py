"""The harness: cases, timing on a clock of our own, processes, protocol, and the command."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import statistics as library
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import task
from harness import cases, dependencies, protocol, timing
from harness.cases import CaseError
from harness.worker import Outcome
from task import PROBLEMS
from tests import ROOT

GEMV, GEMM, DUAL, GROUP = PROBLEMS.values()

# --- cases ---------------------------------------------------------------------------------------

numbers = st.integers(-(10**9), 10**9)
values = numbers | st.lists(numbers, min_size=1, max_size=5).map(tuple)


@given(st.dictionaries(st.text("abcmnkl_", min_size=1, max_size=6), values, min_size=1, max_size=6))
def test_a_case_reads_back(args):
    assert cases.parse(cases.format_args(args)) == args


def test_the_forms_of_a_case_file():
    assert cases.parse(" m: 128;k :  256 ; l: 1; seed: 1111;") == {
        "m": 128,
        "k": 256,
        "l": 1,
        "seed": 1111,
    }
    assert cases.parse("m: [96, 128]; k: (1,2)") == {"m": (96, 128), "k": (1, 2)}


@pytest.mark.parametrize(
    "text, words",
    [
        ("m=128", "'m=128' is not 'key: number'"),
        ("m: 1; m: 2", "m is given twice"),
        ("m: [1, x]", "is not a list of numbers"),
        ("m: 1.5", "'m: 1.5' is not"),
        ("", "expected something like"),
    ],
)
def test_malformed_cases(text, words):
    with pytest.raises(CaseError, match="malformed case") as raised:
        cases.parse(text)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "problem, text, words",
    [
        (GEMV, "m: 0; k: 64; l: 1", "m must be at least 1, got 0"),
        (GEMV, "m: 1; k: 96; l: 1", "k must be a multiple of 64, got 96"),
        (GEMV, "m: 1; k: 64; l: 1; seed: -1", "seed must be in [0, 2^63), got -1"),
        (GEMV, "m: [1, 2]; k: 64; l: 1", "m must be a number, got [1, 2]"),
        (GEMV, "m: 1; n: 2; k: 64; l: 1", "has the keys m, k, l, seed; got seed, m, n, k, l"),
        (GEMM, "m: 1; n: 2; k: 64", "has the keys m, n, k, l, seed"),
        (GROUP, "m: [1, 2]; n: [1]; k: [64, 64]; g: 2", "n must be a list of g = 2 numbers"),
        (
            GROUP,
            "m: [1, 2]; n: [1, 1]; k: [64, 65]; g: 2",
            "group 1: k must be a multiple of 64, got 65",
        ),
        (GROUP, "m: []; n: []; k: []; g: 0", "at least 1, got 0"),
    ],
)
def test_illegal_cases(problem, text, words):
    with pytest.raises(CaseError) as raised:
        cases.make_case(problem, cases.parse(text))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
def test_the_problem_of_official_cases_can_be_told(problem):
    for mode in ("test", "benchmark"):
        rows = [cases.parse(case.text) for case in cases.official(problem, mode)]
        assert cases.infer_problem(rows) is problem


def test_gemm_and_dual_are_not_guessed():
    with pytest.raises(CaseError, match="cannot tell the problem"):
        cases.infer_problem([cases.parse("m: 1; n: 2; k: 64; l: 1; seed: 5")])


def test_the_secret_seed_is_mixed_in_by_cantors_pairing():
    case = cases.make_case(GEMV, cases.parse("m: 1; k: 64; l: 1; seed: 3"))
    for secret, mixed in ((0, 9), (1, 13), (2, 18), (5, 39)):  # 3 + (0 + 1 + ... + (3 + secret))
        (changed,) = cases.with_secret([case], secret)
        assert mixed == 3 + sum(range(3 + secret + 1))
        assert changed.args["seed"] == mixed and changed.text == case.text
    assert cases.with_secret([case], None) == [case]


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
@given(seed=st.integers(0, 2**32))
def test_random_cases_are_legal_and_repeatable(problem, seed):
    first = cases.random_cases(problem, 3, seed)
    assert first == cases.random_cases(problem, 3, seed)
    for case in first:
        assert cases.make_case(problem, cases.parse(case.text)) == case


# --- timing --------------------------------------------------------------------------------------


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


@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=40))
def test_statistics(durations):
    stats = timing.statistics(durations)
    assert math.isclose(stats.mean, library.fmean(durations), rel_tol=1e-9)
    assert math.isclose(stats.std, library.stdev(durations), rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(stats.err, stats.std / math.sqrt(len(durations)), rel_tol=1e-9)
    assert (stats.best, stats.worst, stats.runs) == (min(durations), max(durations), len(durations))


# --- set-up --------------------------------------------------------------------------------------


def test_a_missing_dependency_is_named(monkeypatch):
    monkeypatch.setattr(
        dependencies.importlib.util,
        "find_spec",
        lambda name: None if name == "cutlass" else object(),
    )
    missing = dependencies.missing()
    assert missing.startswith("nvidia-cutlass-dsl is not installed") and "pip install" in missing


def test_missing_dependencies_are_one_line_before_numpy_is_imported(tmp_path):
    """In a Python without packages (-S leaves out site-packages)."""
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "eval.py"), "test"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "numpy, torch, nvidia-cutlass-dsl" in done.stderr and "are not installed" in done.stderr


@pytest.mark.parametrize(
    "outcomes, code",
    [
        ([Outcome("pass"), Outcome("pass")], 0),
        ([Outcome("pass"), Outcome("fail")], 112),
        ([Outcome("error"), Outcome("pass")], 112),
        ([Outcome("error"), Outcome("timeout")], 114),
        ([Outcome("timeout"), Outcome("error", cuda_error=True)], 110),
    ],
)
def test_exit_codes(outcomes, code):
    assert protocol.exit_code(outcomes) == code


# --- the command ---------------------------------------------------------------------------------

EMULATED = ("--device", "emulator")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["tset"], "invalid choice: 'tset'"),
        (["test", "gem"], "unknown problem 'gem': expected one of nvfp4_gemv (gemv)"),
        (["test", "gemm", "--case", "m: 1"], "has the keys m, n, k, l, seed; got seed, m"),
        (
            ["test", "gemm", "dual", "--case", "m: 1; n: 1; k: 64; l: 1"],
            "cases belong to one problem",
        ),
        (["test", "--case", "m: 1; n: 1; k: 64; l: 1"], "cannot tell the problem"),
        (["test", "--cases", "nowhere.txt"], "cannot read the case file nowhere.txt"),
        (["test", "--random", "0"], "--random must be positive, got 0"),
        (["test", "--submission", "nowhere.py"], "no submission at nowhere.py"),
        (["test", "--submission", __file__, "--device", "gpu"], "invalid choice: 'gpu'"),
    ],
)
def test_bad_arguments_are_one_line(run_eval, arguments, words):
    done = run_eval(*arguments)
    assert done.status == 2 and done.stdout == ""
    assert done.stderr.startswith("eval.py: ") and words in done.stderr
    assert done.stderr.count("\n") == 1


def test_each_case_stands_alone(run_eval, stand_in, tmp_path):
    """A crash, a hang, an exit, an unpicklable exception and a wrong result, between right ones."""
    submission = stand_in("""
if m == 2: os.abort()
if m == 3:
    while True: pass
if m == 4: os._exit(7)
if m == 5: raise Unpicklable('an odd thing')
if m == 6: raise ValueError('a must be float4_e2m1fn_x2, got uint8')
if m == 7: launch(); return c * 0 + 1000
if m == 8: raise SystemExit(3)
print('right')
launch()
return ref_kernel(data)
""")
    lines = [f"m: {m}; n: 40; k: 64; l: 1; seed: 1" for m in range(1, 10)]
    (tmp_path / "cases.txt").write_text("\n".join(lines) + "\n")
    options = ("--json", "--timeout", "5", "--submission", submission, *EMULATED)
    done = run_eval("test", "gemm", "cases.txt", *options)
    assert done.status == 114
    assert [r["case"] for r in done.records] == lines
    expected = [
        ("pass", ""),
        ("error", "killed by SIGABRT (Aborted); it was at stand_in.py:17 in custom_kernel"),
        ("timeout", "no result after 5 s; it was at stand_in.py:19 in custom_kernel"),
        ("error", "ended with exit status 7 and gave no result"),
        ("error", "Unpicklable: an odd thing (stand_in.py:21, in custom_kernel)"),
        (
            "error",
            "ValueError: a must be float4_e2m1fn_x2, got uint8 (stand_in.py:22, in custom_kernel)",
        ),
        ("fail", "280 of 280 elements differ"),
        ("error", "SystemExit: 3 (stand_in.py:24, in custom_kernel)"),
        ("pass", ""),
    ]
    for record, (status, words) in zip(done.records, expected):
        assert record["status"] == status and words in record["message"], record
        assert list(record) == ["problem", "case", "device", "mode", "status", "message", "seconds"]
        assert (record["problem"], record["device"], record["mode"]) == (
            "nvfp4_gemm",
            "emulator",
            "test",
        )


def test_the_runners_protocol(run_eval, stand_in, tmp_path):
    submission = stand_in("launch(); return ref_kernel(data) if m != 384 else c")
    lines = [case.text for case in cases.official(GEMV, "test")]
    (tmp_path / "cases.txt").write_text("\n".join([lines[0], lines[6]]) + "\n")
    options = ("--submission", submission, *EMULATED)
    done = run_eval("test", "cases.txt", *options, popcorn=True, env={"POPCORN_SEED": "12345"})
    keys = [key for key, _ in done.popcorn]
    got = dict(done.popcorn)
    assert done.status == 112
    assert keys[:2] == ["test-count", "test.0.spec"] and keys[-1] == "check"
    assert (got["test-count"], got["test.0.spec"], got["test.0.status"]) == ("2", lines[0], "pass")
    assert (got["test.1.spec"], got["test.1.status"], got["check"]) == (lines[6], "fail", "fail")
    assert "of 768 elements differ" in got["test.1.error"]


def test_the_runners_exit_codes(run_eval, stand_in, tmp_path):
    options = ("--submission", stand_in("launch(); return ref_kernel(data)"), *EMULATED)
    (tmp_path / "bad.txt").write_text("m: 128; k: 256; l; seed: 1\n")
    assert run_eval("test", "bad.txt", *options, popcorn=True).status == 113
    assert run_eval("test", "bad.txt", *options).status == 2
    assert run_eval("test", "gemv", *options, env={"POPCORN_FD": "77"}).status == 111
    ambiguous = "m: 3; n: 5; k: 64; l: 1; seed: 1\n"
    (tmp_path / "cases.txt").write_text(ambiguous)
    assert run_eval("test", "cases.txt", *options, popcorn=True).status == 113
    done = run_eval(
        "test", "cases.txt", *options, popcorn=True, env={"NVFP4_PROBLEM": "nvfp4_dual_gemm"}
    )
    assert done.status == 0 and dict(done.popcorn)["check"] == "pass"


def test_what_launches_nothing_fails_and_has_no_time(run_eval, stand_in):
    shape = "m: 40; n: 24; k: 64; l: 1; seed: 1"
    options = ("--case", shape, "--submission", stand_in("return ref_kernel(data)"), *EMULATED)
    for mode in ("test", "diff", "benchmark", "leaderboard", "profile"):
        done = run_eval(mode, "dual", *options, "--json", popcorn=True)
        (record,) = done.records
        assert done.status == 112 and record["status"] == "fail"
        assert "custom_kernel launched nothing in the emulator" in record["message"]
        assert not any(key.endswith("_us") or key == "kind" for key in record)
        assert not {"benchmark.0.mean", "benchmark.0.best"} & {key for key, _ in done.popcorn}
        assert ("check", "fail") in done.popcorn


@pytest.mark.parametrize("inputs", task.INPUT_KINDS)
def test_random_shapes_of_every_problem(run_eval, stand_in, inputs):
    options = ("--random", "2", "--seed", "5", "--inputs", inputs, "--json", *EMULATED)
    submission = stand_in("launch(); return ref_kernel(data)")
    done = run_eval("test", *options, "--submission", submission)
    assert done.status == 0
    assert [r["problem"] for r in done.records] == [name for name in PROBLEMS for _ in range(2)]


def test_text_for_a_person(run_eval, stand_in):
    submission = stand_in("print('shown'); launch(); c[:] = 0; return c")
    done = run_eval(
        "test", "gemv", "--case", "m: 200; k: 64; l: 1", "--submission", submission, *EMULATED
    )
    assert done.status == 112
    assert "on emulator" in done.stdout and "0 of 1 passed" in done.stdout
    assert "  FAIL" in done.stdout and "are zero" in done.stdout
    assert "printed by the case | shown" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("inputs", task.INPUT_KINDS)
def test_the_submission_on_random_shapes(run_eval, inputs):
    done = run_eval("test", "--random", "12", "--inputs", inputs, "--json", *EMULATED, limit=1200)
    wrong = [record for record in done.records if record["status"] != "pass"]
    assert len(done.records) == 48 and not wrong, wrong


@pytest.mark.cuda
def test_a_gpu_is_timed_as_on_the_leaderboard(run_eval, stand_in):
    shape = "m: 128; n: 4096; k: 7168; l: 1; seed: 1111"
    submission = stand_in("return ref_kernel(data)")
    done = run_eval(
        "benchmark",
        "gemm",
        "--case",
        shape,
        "--json",
        "--device",
        "cuda",
        "--submission",
        submission,
    )
    (record,) = done.records
    assert done.status == 0 and record["kind"] == "measured"
    assert record["low_us"] <= record["time_us"] <= record["high_us"]
    assert (record["sol_us"], record["best_known_us"]) == (2.354, 10.3)
    assert json.dumps(record["device"]) != '"emulator"'


def test_finished_cases_are_not_lost_when_interrupted(stand_in, tmp_path):
    """The first case never ends; those behind it are done when SIGINT comes."""
    submission = stand_in("while m == 1: pass\nlaunch(); return ref_kernel(data)")
    lines = [f"m: {m}; n: 40; k: 64; l: 1" for m in (1, 2, 3)]
    cases_given = [word for line in lines for word in ("--case", line)]
    options = ("--json", "--jobs", "2", "--submission", submission, *EMULATED)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "eval.py"), "test", "gemm", *cases_given, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    for line in process.stderr:  # a line of progress comes when the others are long done
        if "[2/3 done]" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [json.loads(line)["case"] for line in out.splitlines()] == lines[1:]
    assert err.splitlines()[-1] == "eval.py: interrupted" and "Traceback" not in err


def test_a_reader_that_goes_away(stand_in, tmp_path):
    submission = stand_in("launch(); return ref_kernel(data)")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "eval.py"),
            "test",
            "gemm",
            "--submission",
            submission,
            *EMULATED,
        ],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == "eval.py: stopped, since nobody reads the output any more\n"


def test_error_rows_have_no_time(run_eval, stand_in):
    """Neither seconds nor peak memory stand under "modelled us"."""
    submission = stand_in("raise ValueError('bad')")
    case = "m: 128; n: 7168; k: 16384; l: 1"
    done = run_eval("benchmark", "gemm", "--case", case, "--submission", submission, *EMULATED)
    heading, row = done.stdout.splitlines()[3:5]
    assert "modelled us" in heading and row.split()[0] == "ERROR"
    assert row[heading.index("modelled us") - 1 : heading.index("SoL us")].strip() == ""
    assert row[: heading.index("SoL us") + 6].split()[-1] == "8.994"


def test_the_output_of_passing_cases_on_demand(run_eval, stand_in):
    submission = stand_in("print('hello', flush=True); launch(); return ref_kernel(data)")
    given = ("test", "gemv", "--case", "m: 8; k: 64; l: 1", "--submission", submission, *EMULATED)
    assert "hello" not in run_eval(*given).stderr
    assert "printed by the case | hello" in run_eval(*given, "--output").stderr


def test_a_table_on_a_terminal(stand_in, tmp_path):
    """Through a pseudo-terminal: rich draws, and what is piped has no escapes (the other tests)."""
    submission = stand_in("launch(); return ref_kernel(data)")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "eval.py"), "test", "gemv", "--case", "m: 8; k: 64; l: 1"]
        + ["--submission", submission, *EMULATED],
        stdout=slave,
        stderr=slave,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:  # the end of a pseudo-terminal
        pass
    assert process.wait() == 0
    text = shown.decode()
    assert "1/1 done" in text and "\x1b[" in text and "─" in text
    assert "1 of 1 passed" in text and "m: 8; k: 64; l: 1" in text
