"""Slips in the commands of eval.py that have arguments of their own, each of which is tried: one
line on stderr with the name of the command, and status 2, before anything runs. `eval.py test` and
its like are in test_bad_inputs.py, `b200` is in tests/b200/test_command_line.py, `python -m lab` in
tests/lab/test_slips.py, wrong submissions are in test_bad_submissions.py.
"""

from __future__ import annotations

import pytest

import eval as eval_py

# Command line (_ after a colon is a blank), what is said. one.py and two.py exist.
EVAL = [
    ("foo", "no command is called 'foo': there are test, benchmark, leaderboard, profile, diff"),
    ("test one.py", "one.py is a Python file: --submission one.py"),
    ("tune gemm --submission one.py", "one.py has no legal_configs, estimate, pick"),
    ("compare", "compare: the following arguments are required: FILE.py|PROBLEM"),
    ("compare one.py", "expected two or more submissions (FILE.py), got 1; eval.py benchmark"),
    ("compare one.py two.py", "expected one problem (gemv, gemm, dual, group), got none"),
    ("compare one.py two.py gem", "unknown problem 'gem': expected one of"),
    ("compare one.py no.py gemm", "no.py is not a file"),
    ("compare one.py two.py gemm --case m:_1", "n, k, l missing in 'm: 1'"),
    ("compare one.py two.py gemm --nosuch", "unrecognized arguments: --nosuch"),
    ("ladder", "the following arguments are required: TIMES.csv, FOLDER, --out"),
    ("ladder no.csv . --out x.jsonl", "cannot read no.csv"),
    ("lint", "a file is missing; usage: eval.py lint FILE [PROBLEM]"),
    ("lint no.py", "no.py is no file"),
    ("lint .", ". is a folder"),
    ("lint one.py gem", "unknown problem 'gem'"),
    ("lint one.py two.py", "unknown problem 'two.py'"),
    ("official", "the following arguments are required: FOLDER"),
    ("official no", "no/task.yml is not a file"),
    ("official . tset", "invalid choice: 'tset'"),
    ("qualify extra", "unrecognized arguments: extra"),
    ("qualify --device", "argument --device: expected one argument"),
    ("qualify --device gpu", "invalid choice: 'gpu'"),
    ("qualify --minutes x", "invalid float value: 'x'"),
    ("qualify --device emulator --submission no.py", "no.py"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a user is in."""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("def custom_kernel(data):\n    return data[-1]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line, said", EVAL, ids=[row[0] for row in EVAL])
def test_eval(folder, capsys, line, said):
    before = sorted(folder.rglob("*"))
    try:
        status: object = eval_py.main([word.replace(":_", ": ") for word in line.split()])
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    command = line.split()[0]
    assert err.startswith(f"eval.py {command}: " if command in eval_py.COMMANDS else "eval.py")
    assert said in err and err.count("\n") == 1 and len(err) < 600
    assert sorted(folder.rglob("*")) == before
