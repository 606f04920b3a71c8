"""However a program ends, what was found is told once, is in the report, and the status says it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from b200.started.children import isolated
from tests import ROOT
from tests.b200.reports.support import LAUNCH, WITHOUT_TORCH

TOLD = "two CTAs write the same address"
# What a program does after a launch with a race -> its exit status, and how it ended in the report.
ENDS = {
    "as programs do": ("", 1, "exit status 0"),
    "with a status": ("sys.exit(3)", 3, "exit status 3"),
    "os._exit": ("os._exit(0)", 1, "exit status 0"),
    "os._exit with a status": ("os._exit(7)", 7, "exit status 7"),
    "SIGTERM": ("os.kill(os.getpid(), 15)", 143, "SIGTERM"),
    "SIGTERM that is caught": (
        "try: os.kill(os.getpid(), 15); time.sleep(9)\nexcept BaseException: os._exit(5)",
        5,
        "exit status 5",
    ),
    "Ctrl-C": ("os.kill(os.getpid(), 2)", 130, "SIGINT"),
    "abort": ("import ctypes; ctypes.CDLL(None).abort()", -signal.SIGABRT, "SIGABRT"),
    "a segmentation fault": ("import ctypes; ctypes.string_at(1)", -signal.SIGSEGV, "SIGSEGV"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", -signal.SIGKILL, "SIGKILL"),
    "another program": ("os.execv('/bin/true', ['true'])", 1, "exit status 0"),
    "an exception": ("raise OSError('mine')", 1, "exit status 1"),
}


@pytest.fixture
def run(tmp_path, fork_server):
    def call(script: str, *options: str, head: str = LAUNCH):
        (tmp_path / "script.py").write_text(head + script + "\n")
        report = tmp_path / "report.json"
        command = ["-m", "b200", "run", "--no-again", "--report", str(report), *options]
        done = fork_server.run(*command, str(tmp_path / "script.py"), cwd=ROOT)
        return done, json.loads(report.read_text())

    return call


@pytest.mark.parametrize("end, status, ended", ENDS.values(), ids=ENDS)
def test_a_race_is_told(run, end, status, ended):
    done, report = run(f"launch(CLEAN); launch(RACE)\n{end}")
    assert done.returncode == status, done.stderr
    assert done.stderr.count(TOLD) == 1
    (finding,) = report["findings"]
    assert (finding["kind"], finding["kernel"], finding["times"]) == ("global", "racy", 1)
    assert (report["ended"], report["launches"]) == (ended, 2)
    assert report["status"] == (status if status >= 0 else 128 - status)


def test_ctrl_c_shows_the_lines_of_the_program_alone(run):
    done, _ = run("def mine():\n    os.kill(os.getpid(), 2)\nlaunch(RACE)\nmine()")
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File")]
    assert len(files) == 2 and all(name.endswith("script.py") for name in files), done.stderr
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize("text, kind", [("FAULT", "fault"), ("DEADLOCK", "deadlock")])
@pytest.mark.parametrize("caught", (True, False))
def test_a_launch_that_fails(run, text, kind, caught):
    body = f"launch({text})"
    done, report = run(f"try: {body}\nexcept BaseException: print('caught')" if caught else body)
    assert done.returncode == 1 and done.stdout == "caught\n" * caught
    (finding,) = report["findings"]
    assert (finding["kind"], finding["severity"], finding["stopped"]) == (kind, "error", True)
    assert done.stderr.count(finding["text"].splitlines()[0].removeprefix(f"{kind}: ")) == 1
    assert report["launches"] == 1 and "no kernel was launched" not in done.stderr
    assert bool(report["failure"]) != caught


def test_a_fault_in_a_traceback_is_not_told_again(run):
    done, report = run("try: launch(FAULT)\nexcept Exception as e: raise OSError('mine') from e")
    assert done.returncode == 1 and len(report["findings"]) == 1
    assert done.stderr.count(report["findings"][0]["diagnosis"]) == 1


def test_what_is_not_modelled_is_incomplete(run):
    script = "text = CLEAN.replace('ret;', 'stackrestore.u32 %r1;\\nret;')\n"
    done, report = run(script + "try: launch(text)\nexcept b200.EmulatorError: pass")
    assert (done.returncode, report["findings"]) == (0, [])
    (row,) = report["incomplete"]
    assert row["kernel"] == "clean" and "stackrestore" in row["why"], row
    done, _ = run(script + "try: launch(text)\nexcept b200.EmulatorError: pass", "--strict")
    assert done.returncode == 1


def test_other_processes(run):
    """Forked and spawned ones, which end by themselves or by a signal."""
    script = """
import multiprocessing
def child(end):
    launch(RACE)
    if end: os.kill(os.getpid(), 9)
if __name__ == "__main__":
    for how, end in (("fork", 0), ("fork", 9), ("spawn", 9)):
        p = multiprocessing.get_context(how).Process(target=child, args=(end,))
        p.start(); p.join()
    launch(CLEAN)
"""
    done, report = run(script, head=WITHOUT_TORCH)
    assert done.returncode == 1 and done.stderr.count(TOLD) == 1, done.stderr
    (finding,) = report["findings"]
    assert finding["times"] == 3 and report["launches"] == 4
    assert done.stderr.count("in process") == 3


STARTED = """
import subprocess
for child in CHILDREN:
    subprocess.run([sys.executable, "-c", child])
"""


def test_python_programs_that_it_starts(run):
    """By subprocess: they have the B200 as soon as they import what needs a GPU (torch is below), and
    are in the report.
    """
    ends = f"import cuda.bindings{WITHOUT_TORCH}launch(RACE)\n"
    is_killed = f"{ends}os.kill(os.getpid(), 9)\n"
    done, report = run(f"CHILDREN = {[ends, is_killed]!r}" + STARTED)
    assert done.returncode == 1 and done.stderr.count(TOLD) == 1, done.stderr
    (finding,) = report["findings"]
    assert finding["times"] == 2 and report["launches"] == 2
    assert "no kernel was launched" not in done.stderr


@pytest.mark.parametrize(
    "how, has_one",
    [
        ("[sys.executable, '-c', CHILD], env={'PATH': os.environ['PATH']}", True),
        ("[sys.executable, '-I', '-c', CHILD]", False),
    ],
    ids=["an environment of its own", "-I"],
)
def test_a_program_that_is_started_apart(run, how, has_one):
    """Whoever does not look at PYTHONPATH is named."""
    child = "import sys, cuda.bindings; print('b200' in sys.modules)"
    ended, _ = run(f"CHILD = {child!r}\nimport os, subprocess, sys\nsubprocess.run({how})")
    assert str(has_one) in ended.stdout
    assert ("started with -I is not in the software B200" in ended.stderr) is not has_one


@pytest.mark.parametrize(
    "words, option",
    [
        ("-I -c pass", "-I"),
        ("-X dev -BE script.py", "-BE"),
        ("-Werror::ImportWarning -XShow script.py -I", ""),
        ("-c pass -I", ""),
        ("-Bm tests -E", ""),
        ("script.py -S", ""),
    ],
)
def test_an_option_of_python_is_told_from_what_stands_behind_it(words, option):
    """`python --help`: -W and -X take a word, behind -c and -m the program stands."""
    assert isolated(["/usr/bin/python3", *words.split()]) == option


def test_what_is_started_keeps_its_own_sitecustomize(run, tmp_path, monkeypatch):
    """The one that ours hides runs first; whether torch is there can be asked, and costs nothing. As
    soon as it is imported there is the B200, and what it runs is in the report.
    """
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 5\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = (
        "import importlib.util, sys; found = importlib.util.find_spec('torch'), 'b200' in sys.modules;"
        " import torch; print(mine, bool(found[0]), found[1], 'b200' in sys.modules,"
        " torch.cuda.get_device_name(), torch.__spec__.origin.endswith('__init__.py'))"
    )
    child += f"{LAUNCH}launch(RACE)\n"
    done, report = run(
        f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}])\nlaunch(CLEAN)"
    )
    assert done.stdout == "5 True False True NVIDIA B200 True\n", done.stderr
    (finding,) = report["findings"]
    assert finding["times"] == 1 and report["launches"] == 2
    assert done.returncode == 1 and done.stderr.count(TOLD) == 1, done.stderr


def test_sigterm_in_the_midst_of_a_launch(tmp_path):
    """To the process that was started, and it alone, as a job's time limit does."""
    (tmp_path / "script.py").write_text(
        WITHOUT_TORCH + "print('up', flush=True)\nlaunch(ENDLESS)\n"
    )
    report = tmp_path / "report.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "b200", "run", "--report", report, tmp_path / "script.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    until = time.monotonic() + 60
    while not json.loads(report.read_text())["findings"] and time.monotonic() < until:
        time.sleep(0.1)  # it is written as it grows
    assert json.loads(report.read_text())["ended"] == "under way"
    process.terminate()
    _, errors = process.communicate(timeout=60)
    found = json.loads(report.read_text())
    assert (process.returncode, found["status"], found["ended"]) == (143, 143, "SIGTERM")
    assert errors.count(TOLD) == 1 and [x["kernel"] for x in found["findings"]] == ["endless"]
    assert found["incomplete"], found


def test_a_suite_that_fails_runs_once(tmp_path, fork_server):
    (tmp_path / "test_it.py").write_text(
        "def test(): print('ran', file=open('log', 'a')); assert False\n"
    )
    suite = ("-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "test_it.py")
    done = fork_server.run("-m", "b200", "run", *suite, cwd=tmp_path)
    assert done.returncode == 1 and (tmp_path / "log").read_text() == "ran\n", done.stderr


def test_raw_ptx(run):
    """It needs no `install`."""
    script = """
import numpy
for _ in range(2): b200.run_ptx(RACE, None, 2, 32, args=[numpy.zeros(64, dtype=numpy.int32)])
"""
    done, report = run(script)
    assert done.returncode == 1 and done.stderr.count(TOLD) == 1
    assert report["launches"] == 2 and [x["times"] for x in report["findings"]] == [2]
