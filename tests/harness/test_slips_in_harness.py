"""Slips in the commands of eval.py that have arguments of their own, and in those of `python -m
harness`, each of which is tried: one line on stderr with the name of the command, and status 2,
before anything runs. `eval.py test` and its like are in test_bad_inputs.py, `b200` is in
tests/b200/test_command_line.py, wrong submissions are in test_bad_submissions.py.
"""

from __future__ import annotations

import pytest

import eval as eval_py
from harness.commands import COMMANDS

# Command line (_ after a colon is a blank), what is said. one.py and two.py exist.
EVAL = [
    ("compare", "compare: the following arguments are required: FILE.py|PROBLEM"),
    ("compare one.py", "expected two or more submissions (FILE.py), got 1; eval.py benchmark"),
    ("compare one.py two.py", "expected one problem (gemv, gemm, dual, group), got none"),
    ("compare one.py two.py gem", "unknown problem 'gem': expected one of"),
    ("compare one.py no.py gemm", "no.py is not a file"),
    ("compare one.py two.py gemm --case m:_1", "n, k, l missing in 'm: 1'"),
    ("compare one.py two.py gemm --nosuch", "unrecognized arguments: --nosuch"),
    ("ladder", "the following arguments are required: TIMES.csv, FOLDER, --json"),
    ("ladder no.csv . --json x.jsonl", "cannot read no.csv"),
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
# The same of `python -m harness`.
HARNESS = [
    ("figurs", "no command is called 'figurs': did you mean figures? there are choice, corpus"),
    ("figures", "one of the arguments --write --check --commands is required"),
    ("choice gem", "unknown problem 'gem'"),
    ("choice --device emulator gemm --case m:_1", "n, k, l missing in 'seed: 1111; m: 1'"),
    ("corpus", "the following arguments are required: folder"),
    ("corpus no", "there is no folder no"),
    ("emulation_speed gem", "unknown problem 'gem'"),
    ("evidence nosuch", "unrecognized arguments: nosuch"),
    ("host_path nosuch", "unrecognized arguments: nosuch"),
    ("packs", "a command is missing: the commands are make, run, pipeline"),
    ("packs mkae", "no command is called mkae: the commands are make"),
    ("packs make gem", "unknown problem 'gem'"),
    ("packs make gemm --submission no.py", "no submission at no.py"),
    ("picture nosuch", "unrecognized arguments: nosuch"),
    ("prose no.md", "no.md is not a file"),
    ("tuning nosuch", "argument what: invalid choice: 'nosuch'"),
    ("tuning floors nosuch", "unknown shapes ['nosuch']; there are"),
    ("verify nosuch", "expected names of"),
    ("h200 nosuch", "no rig is called nosuch: there are clusters, depth"),
]  # fmt: skip


def words(line: str) -> list[str]:
    return [word.replace(":_", ": ") for word in line.split()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a user is in."""
    (tmp_path / "one.py").write_text("")
    (tmp_path / "two.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(said: str, err: str, out: str, status: object, name: str) -> None:
    assert (status, out) == (2, ""), err
    assert err.startswith(name) and said in err
    assert err.count("\n") == 1 and len(err) < 600


@pytest.mark.parametrize("line, said", EVAL, ids=[row[0] for row in EVAL])
def test_eval(folder, capsys, line, said):
    before = sorted(folder.rglob("*"))
    try:
        status: object = eval_py.main(words(line))
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    check(said, err, out, status, f"eval.py {line.split()[0]}: ")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("line, said", HARNESS, ids=[row[0] for row in HARNESS])
def test_harness(fork_server, line, said):
    done = fork_server.run("-m", "harness", *words(line))
    check(said, done.stderr, done.stdout, done.returncode, "python -m harness")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_of_harness_takes_an_unknown_option(fork_server, name):
    done = fork_server.run("-m", "harness", name, "--nosuch")
    check("", done.stderr, done.stdout, done.returncode, f"python -m harness {name}: ")
