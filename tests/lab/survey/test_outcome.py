"""What a survey chooses, and --apply, which changes the table and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import submission
from lab.boards import measured
from lab.kernel_cases import gemm
from lab.survey import outcome, table
from lab.survey.said import Judged, SaidError
from submission import Config, Pick

PROBLEM = gemm(256, 40, 512)
CASE = "gemm m: 40; n: 256; k: 512; l: 1"
SOURCE = Path(submission.__file__)
PICK = submission.pick(PROBLEM)
PLAIN, SPLIT, PAIRS = Config(), Config(split_k=2), Config(cta_group=2)
BASIS = "NVIDIA B200, 2026-11-28"


def judged(config, us=None, verdict="ok", plain_us=10.0, **more):
    fields = dict(detail="", device="NVIDIA B200", day="2026-11-28", digest="")
    return Judged(CASE, PROBLEM, config, verdict, us, plain_us if us else None, **fields | more)


@pytest.mark.parametrize(
    "split, expected",
    [(9.7, SPLIT), (9.85, PICK)],
    ids=["3 % faster", "2 % are not enough"],
)
def test_the_fastest_takes_the_place_of_the_pick(split, expected):
    found = outcome.chosen([judged(PICK, 10.0), judged(PLAIN, 10.1), judged(SPLIT, split)])
    assert found == {PROBLEM: Pick(expected, BASIS)}


def test_runs_are_compared_by_the_plainest_of_each():
    """The second run was on a chip that is 10 % slower."""
    first = [judged(PICK, 10.0), judged(PAIRS, 9.6)]
    second = [judged(SPLIT, 10.2, plain_us=11.0, day="2026-11-29")]
    assert outcome.chosen(first + second) == {PROBLEM: Pick(SPLIT, "NVIDIA B200, 2026-11-29")}


@pytest.mark.parametrize("verdict", ["hung", "faulted", "failed", "differs"])
def test_a_pick_that_is_out_is_replaced(verdict):
    found = outcome.chosen([judged(PLAIN, 10.0), judged(PICK, None, verdict), judged(SPLIT, 12.0)])
    assert found == {PROBLEM: Pick(PLAIN, BASIS)}


def test_the_last_word_counts():
    found = outcome.chosen([judged(SPLIT, None, "hung"), judged(PICK, 10), judged(SPLIT, 5.0)])
    assert found[PROBLEM].config == SPLIT


def test_where_all_others_differ_nothing_is_chosen():
    ones = [judged(PLAIN, 10.0), judged(PICK, None, "differs"), judged(SPLIT, None, "differs")]
    assert outcome.chosen(ones) == {}
    assert "which is wrong?" in list(outcome.lines(ones, {}))[-1]


def test_times_of_two_kinds_are_not_compared():
    with pytest.raises(SaidError, match="times of a survey and of tune"):
        outcome.chosen([judged(PICK, 10.0), judged(SPLIT, 9.0, plain_us=None)])


# ---- the command ---------------------------------------------------------------------------------


def out(tmp_path, device="NVIDIA B200", digest=None):
    digest = digest or table.digest(SOURCE.read_text())
    rows = [
        f"survey: begin: {device}; 10.0; 2026-11-28; submission {digest}; DSL 4.5.2; 5 trials",
        f"survey: try 1 {CASE} | the default",
        "survey: ok 1: 10.0 us, plainest 10.0",
        f"survey: try 2 {CASE} | cta_group=2",
        "survey: hung 2: no end after 30 s",
        f"survey: try 3 {CASE} | split_k=2",
        "survey: ok 3: 8.0 us, plainest 10.0",
        f"survey: try 4 {CASE} | cluster_n=2",
        "survey: differs 4: 50 of 50 results",
    ]
    path = tmp_path / "out.txt"
    path.write_text("\n".join(rows))
    return path


@pytest.fixture
def copy(tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(SOURCE.read_bytes())
    return path


def test_without_apply_the_difference_is_shown(tmp_path, copy, capsys):
    assert measured.main([str(out(tmp_path)), "--submission", str(copy)]) == 0
    told = capsys.readouterr().out
    assert "      hung     cta_group=2: no end after 30 s" in told.splitlines()
    assert "   differs     cluster_n=2: 50 of 50 results" in told.splitlines()
    assert "  chosen: split_k=2" in told.splitlines()
    added = [line for line in told.splitlines() if line.startswith("+ ")]
    assert added == ["+" + table.row(PROBLEM, Pick(SPLIT, BASIS))]
    assert copy.read_bytes() == SOURCE.read_bytes()


def test_apply_changes_the_table_and_nothing_else(tmp_path, copy):
    assert measured.main([str(out(tmp_path)), "--apply", "--submission", str(copy)]) == 0
    row = table.row(PROBLEM, Pick(SPLIT, BASIS)) + "\n"
    text = copy.read_text()
    assert text.count(row) == 1 and text.replace(row, "") == SOURCE.read_text()
    assert measured.main([str(out(tmp_path)), "--apply", "--submission", str(copy)]) == 0
    assert copy.read_text() == text


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        measured.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA B200 in software"])
def test_only_a_b200_fills_the_table(tmp_path, copy, capsys, device):
    path = out(tmp_path, device)
    said = refused(capsys, path, "--apply", "--submission", copy)
    assert f"{device}, 2026-11-28: not measured on a B200" in said
    assert copy.read_bytes() == SOURCE.read_bytes()
    given = [str(path), "--apply", "--any-gpu", "--submission", str(copy)]
    assert measured.main(given) == 0 and f'"{device}, 2026-11-28"' in copy.read_text()


def test_a_survey_of_another_submission(tmp_path, copy, capsys):
    said = refused(capsys, out(tmp_path, digest="0123456789abcdef"), "--submission", copy)
    assert "is of another submission.py (0123456789abcdef, now " in said


def test_apply_is_of_surveys(tmp_path, capsys):
    path = tmp_path / "report.txt"
    path.write_text("nothing\n")
    assert "holds no survey" in refused(capsys, path, "--apply")
