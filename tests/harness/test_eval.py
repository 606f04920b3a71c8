"""The command eval.py: set-up, arguments, processes, the runner's protocol, output."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import task
from b200.clock.constants import BY_NAME
from harness.evaluator import cases, dependencies, protocol
from harness.evaluator.case.job import Outcome
from task import PROBLEMS
from tests import ROOT
from tests.harness.sooner import eval_script

GEMV, GEMM, DUAL, GROUP = PROBLEMS.values()

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
TIMED = "b200._runtime.gpu.launch(PTX, None, (1, 1, 1), (32, 1, 1))"  # as eval.py has set it up


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["tset"], "no command is called 'tset': did you mean test?"),
        (["test", "gem"], "unknown problem 'gem': expected one of nvfp4_gemv (gemv)"),
        (["test", "gemm", "--case", "m: 1"], "n, k, l missing in 'm: 1': a case of"),
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
    while True: time.sleep(1)
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
    options = ("--json", "--timeout", "3", "--submission", submission, *EMULATED)
    done = run_eval("test", "gemm", "cases.txt", *options)
    assert done.status == 114
    assert [r["case"] for r in done.records] == lines
    expected = [
        ("pass", ""),
        ("error", "killed by SIGABRT (Aborted); it was at stand_in.py:17 in custom_kernel"),
        ("timeout", "no result after 3 s; it was at stand_in.py:19 in custom_kernel"),
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
        names = ["problem", "case", "device", "mode", "status", "message", "seconds"]
        ran = record["status"] in ("pass", "fail")  # what its launches were checked for is known
        assert list(record) == names + ["checked", "incomplete"] * ran
        assert (record["problem"], record["device"], record["mode"]) == (
            "nvfp4_gemm",
            "emulator",
            "test",
        )


@pytest.mark.parametrize("strict, status", [((), 0), (("--strict",), 112)])
def test_what_was_not_checked_fails_under_strict(run_eval, stand_in, strict, status):
    shape = ("--case", "m: 8; n: 40; k: 64; l: 1; seed: 1")
    submission = stand_in(f"{TIMED}; return ref_kernel(data)")
    asked = ("test", "gemm", *shape, "--json", *EMULATED, "--submission", submission)
    done = run_eval(*asked, "--no-check", *strict)
    (record,) = done.records
    assert (done.status, record["checked"]) == (status, "incomplete"), record
    assert record["incomplete"]
    assert ("ran without the checker" in record["message"]) == bool(strict)


def test_what_was_checked_in_all_orders_passes_under_strict(run_eval):
    shape = ("--case", "m: 128; n: 128; k: 256; l: 1; seed: 1")
    done = run_eval("test", "gemm", *shape, "--json", *EMULATED, "--schedule", "all", "--strict")
    (record,) = done.records
    assert (done.status, record["checked"], record["incomplete"]) == (0, "complete", []), record
    assert "all orders: deadlock-free" in record["message"]


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


LAST = """
import atexit, runpy, sys
atexit.register(print, "last", end="")
print("first", end=" ")
sys.argv = ["eval.py", "lint"]
runpy.run_path({command!r}, run_name="__main__")
"""


def test_all_that_was_printed_comes_out():
    """However short its way out is: what is not flushed yet, and what is done as Python ends."""
    source = LAST.format(command=str(ROOT / "eval.py"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (2, "first last"), done.stderr


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


@pytest.mark.parametrize("inputs, count", list(zip(task.INPUT_KINDS, (2, 1, 1), strict=True)))
def test_random_shapes_of_every_problem(run_eval, stand_in, inputs, count):
    options = ("--random", str(count), "--seed", "5", "--inputs", inputs, "--json", *EMULATED)
    submission = stand_in("launch(); return ref_kernel(data)")
    done = run_eval("test", *options, "--submission", submission)
    assert done.status == 0
    assert [r["problem"] for r in done.records] == [p for p in PROBLEMS for _ in range(count)]


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
@pytest.mark.parametrize("inputs, seed", zip(task.INPUT_KINDS, ("101", "24", "83")))
def test_the_submission_on_random_shapes(run_eval, inputs, seed):
    """Other shapes for each kind. Of the seeds to 120 these have the most pairs of settings among
    the configurations that are picked: 118, in nine kernels.
    """
    asked = ("--random", "2", "--seed", seed, "--inputs", inputs, "--json", *EMULATED)
    done = run_eval("test", *asked, limit=1200)
    wrong = [record for record in done.records if record["status"] != "pass"]
    assert len(done.records) == 8 and not wrong, wrong


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


def test_finished_cases_are_not_lost_when_interrupted(fork_server, stand_in, tmp_path):
    """The first case never ends; those after it are done when SIGINT comes."""
    submission = stand_in("while m == 1: time.sleep(1)\nlaunch(); return ref_kernel(data)")
    lines = [f"m: {m}; n: 40; k: 64; l: 1" for m in (1, 2, 3)]
    cases_given = [word for line in lines for word in ("--case", line)]
    options = ("--json", "--jobs", "2", "--submission", submission, *EMULATED)
    command = eval_script(tmp_path, "harness.evaluator.progress.QUIET", 1.0)
    asked = (command, "test", "gemm", *cases_given, *options)
    done = fork_server.run(*asked, cwd=tmp_path, signal_at=(signal.SIGINT, "[2/3 done]"))
    assert done.returncode == 130
    assert [json.loads(line)["case"] for line in done.stdout.splitlines()] == lines[1:]
    assert done.stderr.splitlines()[-1] == "eval.py: interrupted"
    assert "Traceback" not in done.stderr


UNREAD = """
import os, runpy
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
runpy.run_path({command!r}, run_name="__main__")
"""


def test_a_reader_that_goes_away(fork_server, stand_in, tmp_path):
    submission = stand_in("launch(); return ref_kernel(data)")
    code = UNREAD.format(command=str(ROOT / "eval.py"))
    asked = ("test", "gemm", "--case", "m: 8; n: 40; k: 64; l: 1", "--submission", submission)
    done = fork_server.run("-c", code, *asked, *EMULATED, cwd=tmp_path)
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


def test_a_table_on_a_terminal(fork_server, stand_in, tmp_path):
    """Through a pseudo-terminal: rich draws, and what is piped has no escapes (the other tests)."""
    submission = stand_in("launch(); return ref_kernel(data)")
    master, slave = pty.openpty()
    terminal = Path(os.ttyname(slave))
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while chunk := os.read(master, 4096):
                shown.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    done = fork_server.run(
        *(str(ROOT / "eval.py"), "test", "gemv", "--case", "m: 8; k: 64; l: 1"),
        *("--submission", submission, *EMULATED),
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
        files={1: terminal, 2: terminal},
    )
    os.close(slave)
    reader.join()
    os.close(master)
    assert done.returncode == 0
    text = b"".join(shown).decode()
    assert "1/1 done" in text and "\x1b[" in text and "─" in text
    assert "1 of 1 passed" in text and "m: 8; k: 64; l: 1" in text


@pytest.mark.parametrize("method, forked", [("fork", True), ("spawn", False)])
def test_a_case_gets_the_process_that_its_device_needs(fork_server, tmp_path, method, forked):
    """CUDA does not survive a fork: a spawned process knows nothing of what its parent did."""
    submission = tmp_path / "submission.py"
    submission.write_text("import sys\nraise OSError('only_there' in sys.modules)\n")
    code = f"""if True:
        import sys, types
        from harness.evaluator.pool import Pool
        from harness.evaluator.case.job import Job
        sys.modules["only_there"] = types.ModuleType("only_there")
        job = Job("test", "cuda", "nvfp4_gemm", {{}}, "official", {str(submission)!r}, 60.0)
        (outcome,) = Pool({method!r}, 1).run([job])
        print(outcome.message)
    """
    done = fork_server.run("-c", code)
    assert f"OSError: {forked}" in done.stdout, done.stderr


def test_constants_of_the_clock_from_a_file(run_eval, stand_in, tmp_path):
    """Ten microseconds more between two kernels are ten more a call."""
    file = tmp_path / "constants.json"
    file.write_text(json.dumps({"launch_gap_us": BY_NAME["launch_gap_us"].value + 10}))
    asked = ["benchmark", "gemm", "--case", "m: 8; n: 40; k: 64; l: 1", "--device", "emulator"]
    asked += ["--json", "--no-check", "--submission", stand_in(f"{TIMED}\nreturn c")]
    usual, slow = (run_eval(*asked, *more) for more in ([], ["--constants", str(file)]))
    assert slow.status == 0, slow.stderr
    gained = slow.records[0]["time_us"] - usual.records[0]["time_us"]
    assert gained == pytest.approx(10.0)


def test_a_file_of_no_constants_is_refused(run_eval):
    done = run_eval("benchmark", "gemm", "--device", "emulator", "--constants", "nothing.json")
    assert done.status == 2 and "--constants: nothing.json is not a file" in done.stderr


def test_the_smallest_cases_of_a_problem():
    for problem in PROBLEMS.values():
        every = cases.official(problem, "test")
        few = cases.official(problem, "test", smallest=3)
        left = [cases.bytes_needed(case) for case in every if case not in few]
        assert len(few) == 3 and max(map(cases.bytes_needed, few)) <= min(left)
        assert [case for case in every if case in few] == few
