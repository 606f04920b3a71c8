"""What somebody types who has not read the pages: each is one line on stderr that says what is
wrong, and a status that is not 0. The commands with arguments of their own; those of `eval.py` and
`b200` alone stand in test_bad_inputs.py and tests/b200/test_command_line.py.
"""

from __future__ import annotations

import sys

import pytest

import eval as eval_py
from harness import __main__ as harness

# Command line, what is said; the exit status is 2. mine.py and other.py exist.
EVAL = [
    ("foo", "no command is called 'foo': there are test, benchmark, leaderboard, profile, diff"),
    ("test mine.py", "mine.py is a Python file: --submission mine.py"),
    ("tune gemm --submission mine.py", "mine.py has no legal_configs, estimate, pick"),
    ("compare mine.py gemm", "expected two or more submissions (FILE.py), got 1"),
    ("compare mine.py other.py gemmm", "unknown problem 'gemmm'"),
    ("compare mine.py other.py gemm --nosuch", "unrecognized arguments: --nosuch"),
    ("lint", "eval.py lint: a file is missing"),
    ("lint nowhere.py", "nowhere.py"),
    ("lint mine.py gemmm", "gemmm"),
    ("official", "eval.py official: the following arguments are required: FOLDER"),
    ("official nowhere", "nowhere"),
    ("ladder", "eval.py ladder: the following arguments are required: TIMES.csv, FOLDER, --json"),
    ("qualify extra", "eval.py qualify: unrecognized arguments: extra"),
    ("qualify --minutes soon", "argument --minutes: invalid float value: 'soon'"),
    ("qualify --device gpu", "argument --device: invalid choice: 'gpu'"),
]
HARNESS = [
    ("figurs", "no command is called 'figurs': did you mean figures? there are choice, corpus"),
    (
        "figures --chek",
        "python -m harness figures: one of the arguments --write --check --commands is",
    ),
    ("picture extra", "python -m harness picture: unrecognized arguments: extra"),
    ("corpus", "python -m harness corpus: the following arguments are required: folder"),
]


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """said(program, line): (status, stderr) of a command in a folder with two submissions."""
    for name in ("mine.py", "other.py"):
        (tmp_path / name).write_text("def custom_kernel(data):\n    return data[-1]\n")
    monkeypatch.chdir(tmp_path)

    def call(program, line: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["command", *line.split()])
        try:
            status = program(line.split())
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        assert out == ""
        return status, err

    return call


def check(answer: tuple[object, str], words: str) -> None:
    status, err = answer
    assert status == 2 and words in err
    assert err.count("\n") == 1 and len(err) < 500


@pytest.mark.parametrize("line, words", EVAL, ids=[line for line, _ in EVAL])
def test_of_eval(said, line, words):
    check(said(eval_py.main, line), words)


@pytest.mark.filterwarnings("ignore:.* found in sys.modules")  # its module runs as a program again
@pytest.mark.parametrize("line, words", HARNESS, ids=[line for line, _ in HARNESS])
def test_of_harness(said, line, words):
    check(said(lambda _: harness.main(), line), words)
