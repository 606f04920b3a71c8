"""eval.py lint as a command, and as the last step of leaderboard and official."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import pytest

from harness.lint import command, guard
from harness.lint.rules import RULES
from harness.lint.submission import Submission
from tests import ROOT

ENTRY = "def custom_kernel(data):\n    return data[-1]\n"
PAGE = ROOT / "docs" / "reference" / "lint.md"


@pytest.fixture
def forbidden(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"# a stream\n# another stream\nimport b200\n{ENTRY}")
    return path


def test_a_remark_is_one_line_with_its_source_and_the_status_is_112(forbidden, capsys):
    assert command.main([str(forbidden)]) == 112
    lines = capsys.readouterr().out.splitlines()
    word, ours = [line for line in lines if line.startswith("refused: ")]
    assert word.startswith(f'refused: {forbidden}:1: the letters "stream"')
    assert "(also 2) [word: gpu-mode/kernelbot@4bdd839 src/kernelbot/api/api_utils.py]" in word
    assert ours.startswith(f"refused: {forbidden}:3: import b200") and "[ours: " in ours
    assert lines[-1] == f"{forbidden}: refused, for 2 reasons"


def test_json_is_an_object_a_remark(forbidden, capsys):
    assert command.main([str(forbidden), "gemm", "--json"]) == 112
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    word = next(record for record in records if record["rule"] == "word")
    assert word["lines"] == [1, 2] and word["grade"] == "refused"
    assert any("nvfp4_gemm" in record["message"] for record in records)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "a file is missing; usage: eval.py lint FILE [PROBLEM]"),
        (["nowhere.py"], "nowhere.py is no file"),
        ([str(ROOT)], "is a folder"),
        ([__file__, "gem"], "unknown problem 'gem'"),
        ([__file__, "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_a_slip_is_one_line_and_status_2(arguments, words, capsys):
    assert command.main(arguments) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out


def test_it_is_a_command_of_eval_py(forbidden):
    done = subprocess.run(
        [sys.executable, str(ROOT / "eval.py"), "lint", str(forbidden)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 112 and "refused: " in done.stdout and not done.stderr


def test_the_page_lists_every_rule_with_its_source():
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name: (says, source) for name, says, source in rows}
    wanted = {r.name: (r.says, f"{r.source.repository}, {r.source.file}") for r in RULES}
    assert listed == wanted
    for repository, commit in {(r.source.repository, r.source.commit[:7]) for r in RULES}:
        assert f"{repository} at {commit}" in PAGE.read_text()


def test_rules_are_listed(capsys):
    assert command.main(["--rules"]) == 0
    assert capsys.readouterr().out.count("\n") == len(RULES)


def test_the_last_step_names_the_board_only_where_it_is_one(forbidden):
    for names, board in (
        (["nvfp4_gemv"], "nvfp4_gemv"),
        (["nvfp4_gemv", "nvfp4_gemm"], "BOARD"),
        (["a folder of mine"], "BOARD"),
    ):
        out = io.StringIO()
        assert command.last_step(forbidden, names, out) == 112
        assert f"#!POPCORN leaderboard {board} and" in out.getvalue()
        assert "180 s each" in out.getvalue()


def test_leaderboard_ends_with_lint_and_its_status(run_eval, tmp_path):
    """A right kernel with the forbidden word passes its case, and is refused."""
    path = tmp_path / "mine.py"
    path.write_text((ROOT / "docs/examples/gemm_mended.py").read_text() + "# no stream\n")
    case = ("--case", "m: 128; n: 128; k: 256; l: 1", "--submission", str(path))
    done = run_eval("leaderboard", "gemm", *case, "--device", "emulator")
    assert done.status == 112 and "1 of 1 passed" in done.stdout
    assert "mine.py: refused, for 1 reason" in done.stdout


def test_kernelguard_where_it_is_not_installed_or_gives_no_answer(tmp_path, monkeypatch):
    submission = Submission(tmp_path / "mine.py", ENTRY.encode())
    monkeypatch.setattr(guard, "_command", lambda: [])
    (found,) = guard.verdict(submission)
    assert found.grade == "offer" and "pip install kernelguard" in found.text
    for program in ("print(3)", "print()", "raise SystemExit(3)"):
        answered = [sys.executable, "-c", program]
        monkeypatch.setattr(guard, "_command", lambda answered=answered: answered)
        (found,) = guard.verdict(submission)
        assert found.grade == "note" and "gave no answer" in found.text


def test_kernelguard_calls_a_file_suspicious(tmp_path, monkeypatch):
    answer = {
        "classification": "suspicious",
        "should_filter": False,
        "matched_patterns": [{"pattern": "P"}],
    }
    monkeypatch.setattr(
        guard, "_command", lambda: [sys.executable, "-c", f"print('{json.dumps(answer)}')"]
    )
    (found,) = guard.verdict(Submission(tmp_path / "mine.py", ENTRY.encode()))
    assert found.grade == "note" and found.text.endswith("suspicious, and lets it pass (P)")
