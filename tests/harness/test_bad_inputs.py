"""What a user may get wrong on the command line: each is one line on stderr with the right exit
status, before anything runs, and leaves nothing after.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from harness.evaluator import arguments, command
from tests import ROOT

GEMM = "m: 1; n: 1; k: 64; l: 1"
# Command line (blanks part the arguments, _ stands for one inside), exit status, what is said.
BAD = [
    ("", 2, "a command is missing: one of test, benchmark"),
    ("tset", 2, "no command is called 'tset': did you mean test? there are test, benchmark"),
    ("test gem", 2, "unknown problem 'gem': expected one of nvfp4_gemv (gemv)"),
    ("test nowhere.txt", 2, "unknown problem 'nowhere.txt'"),
    ("test --problem gemmm", 2, "unknown problem 'gemmm'"),
    ("test --device gpu", 2, "invalid choice: 'gpu'"),
    ("test --inputs random", 2, "invalid choice: 'random'"),
    ("test mine.py", 2, "mine.py is a Python file: --submission mine.py"),
    ("gemm compare", 2, "no command is called 'gemm': a problem comes after the command: eval.py test gemm;"),
    ("mine.py gemm", 2, "'mine.py': a file is tested by eval.py test --submission mine.py; there are"),
    ("--quick compare", 2, "compare comes first, and has options of its own"),
    ("test --nosuch", 2, "unrecognized arguments: --nosuch"),
    ("test --rand 3", 2, "unrecognized arguments: --rand"),
    ("test --random 0", 2, "--random must be positive, got 0"),
    ("test --random -3", 2, "--random must be positive, got -3"),
    ("test --random 1000000", 2, "--random must be at most 10,000, got 1000000"),
    ("test --random x", 2, "invalid int value: 'x'"),
    ("test --jobs 0", 2, "--jobs must be positive, got 0"),
    ("test --jobs 100000", 2, "--jobs must be at most 256"),
    ("test --timeout nan", 2, "--timeout must be positive, got nan"),
    ("test --timeout inf", 2, "--timeout must be at most 1,000,000, got inf"),
    ("test --timeout -1", 2, "--timeout must be positive, got -1.0"),
    ("test --seed -1", 2, "--seed must not be negative, got -1"),
    ("test --schedule backwards", 2, "--schedule: a schedule is early, late, random:SEED, pdl or all"),
    ("test --submission nowhere.py", 2, "no submission at nowhere.py"),
    ("test --submission .", 2, "no submission at ."),
    ("test --trace t.json", 2, "--trace goes with profile"),
    ("test --plot p.png", 2, "--plot goes with profile, diff and tune"),
    ("profile gemm --trace nowhere/t.json", 2, "--trace: there is no folder"),
    ("profile gemm --trace .", 2, "--trace: . is a folder"),
    ("profile gemm --plot nowhere/p.png", 2, "--plot: there is no folder"),
    ("profile gemm --plot p.gif", 2, "a picture's name ends in one of .png"),
    ("test --cases nowhere.txt", 2, "cannot read the case file nowhere.txt"),
    ("test --cases .", 2, "cannot read the case file ."),
    ("test empty.txt", 2, "the case file empty.txt holds no case"),
    ("test binary.txt", 2, "cannot read the case file binary.txt"),
    ("test gemm bad.txt", 2, "'l' is not 'key: number'"),
    ("test gemm --case m=1", 2, "'m=1' is not 'key: number'"),
    ("test gemm --case m:_1", 2, "n, k, l missing in 'm: 1': a case of nvfp4_gemm has the keys m, n, k, l, seed"),
    ("test gemm --case m:_1;m:_2", 2, "m is given twice"),
    ("test gemm --case m:_1.5", 2, "'m: 1.5' is not 'key: number'"),
    ("test gemm --case m:_0;n:_1;k:_64;l:_1", 2, "m must be at least 1, got 0"),
    ("test gemm --case m:_1;n:_1;k:_65;l:_1", 2, "k must be a multiple of 64, got 65"),
    ("test gemm --case m:_[1,2];n:_1;k:_64;l:_1", 2, "m must be a number, got [1, 2]"),
    ("test gemm --case m:_1;n:_1;k:_64;l:_1;seed:_-5", 2, "seed must be in [0, 2^63), got -5"),
    ("test --case m:_1;k:_64", 2, "gemv has m, k, l, seed, l missing; gemm has m, n, k, l, seed, n, l missing;"),
    ("test --case m:_1;n:_1;k:_64;l:_1", 2, "name one of nvfp4_gemv"),
    ("test gemm dual --case m:_1;n:_1;k:_64;l:_1", 2, "cases belong to one problem"),
    ("test gemm --random 3 --case m:_1", 2, "cannot be combined with --case"),
    ("test gemm --case m:_10000000;n:_10000000;k:_64;l:_1", 2, "needs at least 372,530.5 GiB"),
    ("test gemv --case m:_1;k:_64;l:_" + "9" * 5000, 2, "a number of 5000 digits"),
    ("test group --case m:_[1,2];n:_[1];k:_[64,64];g:_2", 2, "n must be a list of g = 2 numbers"),
    ("test group --case m:_[1,,2];n:_[1,1];k:_[64,64];g:_2", 2, "'[1,,2]' is not a list of numbers"),
    ("test group --case m:_[1];n:_[1];k:_[64];g:_[1]", 2, "g must be a number of groups"),
    ("test group --case m:_5;n:_5;k:_64;g:_1", 2, "m must be a list of g = 1 numbers, got 5"),
    ("test group --case m:_[1,2];n:_[1,1];k:_[64,65];g:_2", 2, "group 1: k must be a multiple"),
    ("test group --case m:_[];n:_[];k:_[];g:_0", 2, "at least 1, got 0"),
    ("test gemv --case m:_\u0661;k:_64;l:_1", 2, "is not 'key: number'"),
]  # fmt: skip
# Environment, command line, exit status, what is said: as the leaderboards' runner calls it.
BAD_RUNNER = [
    ({"POPCORN_FD": "77"}, "test gemm", 111, "POPCORN_FD='77' is no open pipe"),
    ({"POPCORN_FD": "x"}, "test gemm", 111, "POPCORN_FD='x' is no open pipe"),
    ({"POPCORN_SEED": "x"}, "test gemm", 2, "POPCORN_SEED must be a number, got 'x'"),
    ({"POPCORN_SEED": "9" * 5000}, "test gemm", 2, "POPCORN_SEED must be a number"),
    ({"POPCORN_SEED": "\u00b2"}, "test gemm", 2, "POPCORN_SEED must be a number"),
    ({"NVFP4_PROBLEM": "x"}, "test bad.txt", 2, "unknown problem 'x'"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a user is in, on a machine without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "empty.txt").write_text("\n  \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00m")
    (tmp_path / "bad.txt").write_text("m: 128; k: 256; l; seed: 1\n")
    monkeypatch.chdir(tmp_path)
    for name in ("POPCORN_FD", "POPCORN_SEED", "NVFP4_PROBLEM"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def check(folder, capsys, line, status, words):
    before = names(folder)
    assert command.main([a.replace("_", " ") if ":_" in a else a for a in line.split()]) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("eval.py: ") and words in said.err
    assert said.err.count("\n") == 1 and len(said.err) < 500
    assert names(folder) == before


@pytest.mark.parametrize("line, status, words", BAD, ids=[row[0][:60] for row in BAD])
def test_bad_arguments(folder, capsys, line, status, words):
    check(folder, capsys, line, status, words)


@pytest.mark.parametrize("environment, line, status, words", BAD_RUNNER)
def test_bad_environment(folder, capsys, monkeypatch, environment, line, status, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check(folder, capsys, line, status, words)


def test_a_bad_case_file_of_the_runner(folder, capsys, monkeypatch):
    reader, writer = socket.socketpair()
    monkeypatch.setenv("POPCORN_FD", str(writer.detach()))
    check(folder, capsys, "test gemm bad.txt", 113, "'l' is not 'key: number'")
    reader.close()


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
CASE = ("gemv", "--case", "m: 128; k: 256; l: 1", "--no-check", "--device", "emulator")


@needs_full
@pytest.mark.parametrize("option", ["--trace", "--plot"])
def test_a_time_is_not_lost_with_its_picture(fork_server, tmp_path, option):
    path = tmp_path / "full.png"
    path.symlink_to(FULL)
    done = fork_server.run("eval.py", "profile", *CASE, option, str(path))
    said = [line.strip() for line in done.stdout.splitlines() if option in line]
    assert said == [f"{option}: {path} cannot be written: No space left on device"]
    assert done.returncode == 112 and "modelled" in done.stdout and "us is one call" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@needs_full
def test_a_full_disk_is_a_line(fork_server):
    done = fork_server.run("eval.py", "profile", *CASE, files={1: FULL})
    said = "eval.py: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (120, said)


LATIN = b"# caf\xe9\nfrom submission import *\n"


def test_a_submission_with_a_byte_of_another_encoding(fork_server, tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(LATIN)
    done = fork_server.run("eval.py", "test", *CASE, "--submission", str(path))
    assert done.returncode == 112 and f"{path}:1: byte 0xe9 is not utf-8" in done.stdout


def test_tune_says_what_it_needs(folder, capsys):
    (folder / "mine.py").write_text("def pick(problem): ...\ndef custom_kernel(data): ...\n")
    said = "mine.py has no legal_configs, estimate"
    check(folder, capsys, "tune gemm --submission mine.py", 2, said)


def test_the_usual_timeout_stands_where_users_look(capsys):
    with pytest.raises(SystemExit):
        arguments.parse(["--help"], "")
    told = " ".join(capsys.readouterr().out.split())
    assert f"(default: in the emulator {arguments.TIMEOUT_EMULATED:g};" in told
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert f"(in the emulator {arguments.TIMEOUT_EMULATED:g}, on a GPU" in page
