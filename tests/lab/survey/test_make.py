"""survey.py: which trials it has, and that boards take it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

import submission
import task
from harness.lint import rules
from harness.lint.submission import Submission
from lab.kernel_cases import gemm
from lab.survey import make, paste, plans, table
from lab.survey.said import Judged
from lab.tuning.shapes import form
from submission import Config

SOURCE = Path(submission.__file__).read_text()
PROBLEM = gemm(256, 40, 512)
CASE = "gemm m: 40; n: 256; k: 512; l: 1"


def judged(config, verdict="ok", problem=PROBLEM):
    return Judged(CASE, problem, config, verdict, None, None, "", "NVIDIA B200", "2026-11-28", "")


def configs(known=(), count=8):
    return [trial.config for trial in make.trials([(CASE, PROBLEM)], known, count)]


def test_the_plainest_comes_first_then_what_is_tried():
    found = configs()
    assert set(found) == set(plans.candidates(PROBLEM)) and found[0] == Config()
    trials = make.trials([(CASE, PROBLEM)], [], 8)
    assert [trial.number for trial in trials] == list(range(1, len(found) + 1))
    assert trials[0].name == f"{CASE} | the default"


def test_what_is_judged_is_left_out_but_the_plainest():
    first, one, other, *rest = configs()
    assert configs([judged(first), judged(one), judged(other)]) == [first, *rest]


@pytest.mark.parametrize("verdict", ["hung", "faulted", "failed", "differs"])
def test_what_ended_badly_does_not_come_back(verdict):
    first, one, *rest = configs()
    assert configs([judged(first), judged(one, verdict)]) == [first, *rest]
    left = configs([judged(first, verdict)])
    assert set(left) == {one, *rest}  # the next plain one is the first now


def test_where_all_is_judged_nothing_is_left():
    assert configs([judged(config) for config in configs()]) == []
    assert configs([judged(config, "hung") for config in configs()]) == []


def test_a_report_has_room_for_all_lines():
    many = [paste.Trial(n, 400 * "x", PROBLEM, Config()) for n in range(60)]
    fit = make.that_fit(many)
    assert 25 < len(fit) < 60 and fit == many[: len(fit)]
    for board in task.PROBLEMS.values():
        found = make.trials(make._shapes(board, None), [], plans.MAX_CANDIDATES)
        assert make.that_fit(found) == found


# ---- the file ------------------------------------------------------------------------------------


def survey_of(board):
    found = make.trials(make._shapes(board, None), [], plans.MAX_CANDIDATES)
    return make.compose(SOURCE, found, board), found


@pytest.mark.parametrize("name", ["gemm", "group"])
def test_boards_take_it(name):
    board = task.find_problem(name)
    text, found = survey_of(board)
    assert "stream" not in text.lower()
    assert {trial.problem for trial in found} == {form(board, b.args) for b in board.benchmarks}
    checked = Submission(Path("survey.py"), text.encode(), board.name)
    assert not [r for r in rules.remarks(checked) if r.refused]


def top_level(text):
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return names


def test_no_name_stands_for_two_things():
    assert top_level(SOURCE) & top_level(Path(paste.__file__).read_text()) == {"custom_kernel"}


def test_it_is_one_file(tmp_path):
    """What it imports and what it runs; importing it does nothing."""
    text, found = survey_of(task.find_problem("gemv"))
    path = tmp_path / "survey.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("survey", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["survey"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["survey"]
    listed = [(*trial[:3], vars(trial.config)) for trial in module.TRIALS]
    assert listed == [(*trial[:3], vars(trial.config)) for trial in found]
    assert module.DIGEST == table.digest(SOURCE)
    assert module.custom_kernel.__doc__ == paste.custom_kernel.__doc__
    modules = {n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in modules} & {"task", "submission", "lab"}


def test_the_command(tmp_path, capsys):
    out = tmp_path / "mine.py"
    given = ["gemm", "--case", CASE.removeprefix("gemm "), "--out", str(out)]
    assert make.main(given) == 0
    assert capsys.readouterr().out == f"{out}: {len(configs())} trials of nvfp4_gemm\n"
    digest = table.digest(SOURCE)
    said = (
        f"survey: begin: NVIDIA B200; 10.0; 2026-11-28; submission {digest}; DSL 4.5.2; 9 trials\n"
    )
    for n, config in enumerate(configs(), 1):
        said += f"survey: try {n} {CASE} | {' '.join(table.told(config)) or 'the default'}\n"
        said += f"survey: ok {n}: 5.0 us, plainest 5.0\n"
    (tmp_path / "out.txt").write_text(said)
    assert make.main([*given, "--after", str(tmp_path / "out.txt")]) == 0
    assert "nothing is left to try" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["gemm", "--case", "m: 40"], "missing"),
        (["conv"], "conv"),
        (["gemm", "--after", "nowhere.txt"], "nowhere.txt"),
        (["gemm", "--submission", __file__], "no table PICKS"),
    ],
)
def test_what_it_cannot_make_is_a_line(capsys, tmp_path, arguments, words):
    with pytest.raises(SystemExit) as ended:
        make.main([*arguments, "--out", str(tmp_path / "out.py")])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and words in said and said.count("\n") == 1
