"""The corpus of public programs: its file, its verdicts, and what is said where it is not at hand."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

import pytest

from lab import corpus
from tests import ROOT
from tests.b200.test_run import CLEAN, RACE, launching

RACE_FOUND = {"severity": "error", "kind": "race", "loc": "/there/a.py:7", "diagnosis": "d"}
REMARK = {**RACE_FOUND, "severity": "portability", "kind": "protocol"}
NOTE = {**RACE_FOUND, "severity": "note"}


def report(*findings: dict, status: int = 0, failure: str = "") -> dict:
    return {"status": status, "failure": failure, "launches": 1, "findings": list(findings)}


@pytest.mark.parametrize(
    "found, errors, verdict, said",
    [
        (report(), "", "clean", ""),
        (report(NOTE), "", "clean", ""),
        (report(REMARK), "", "portability", ""),
        (report(RACE_FOUND, REMARK, status=1), "", "errors", ""),
        (report(status=1, failure="ValueError: no"), "b200: k\n", "fails", "ValueError: no"),
        (report(status=1), "b200 run: wmma is not modelled\n", "refused", "b200 run: wmma"),
        (None, "Fatal Python error: abort\n", "fails", "Fatal Python error"),
    ],
)
def test_verdicts(found, errors, verdict, said):
    outcome = corpus.judge(found, errors, 1.0)
    assert outcome.verdict == verdict and outcome.said.startswith(said)
    lines = {line for _, _, line in outcome.findings}
    assert lines == ({"a.py:7"} if verdict in ("portability", "errors") else set())


@pytest.mark.parametrize("launches", [0, 3])
def test_who_has_launched_nothing_is_known(launches):
    assert corpus.judge(report() | {"launches": launches}, "", 1.0).launched is bool(launches)


def record(status: str, *lines: str) -> str:
    return json.dumps({"status": status, "message": "\n".join(lines)})


CHECKED = "the checker found 1 error(s) and 2 remark(s):"
IN_A_KERNEL = "/there/a.py:7: race: st.shared writes shared memory"
ASIDE = "/there/b.py:9: protocol (portability): 4 bytes at 0x10"
BY_THE_WAY = "/there/b.py:3: order (note): floating-point sums"


@pytest.mark.parametrize(
    "said, verdict, findings",
    [
        (record("pass"), "clean", set()),
        (record("pass", CHECKED, BY_THE_WAY), "clean", set()),
        (record("pass", CHECKED, ASIDE), "portability", {("portability", "protocol", "b.py:9")}),
        (
            record("fail", "3 of 9 elements differ", CHECKED, IN_A_KERNEL, ASIDE),
            "errors",
            {("error", "race", "a.py:7"), ("portability", "protocol", "b.py:9")},
        ),
        (record("fail", "3 of 9 elements differ"), "fails", set()),
        (record("error", "deadlock: no warp can proceed in k"), "fails", set()),
        ("eval.py: a text", "fails", set()),
    ],
)
def test_verdicts_of_submissions(said, verdict, findings):
    outcome = corpus.judge_submission(said, "no kernel\n", 1.0)
    assert (outcome.verdict, outcome.findings) == (verdict, frozenset(findings))
    last = "no kernel" if said.startswith("eval") else json.loads(said)["message"]
    assert outcome.said == ("" if '"pass"' in said else last.partition("\n")[0])


def test_what_is_new_and_what_is_gone_is_shown():
    expected = frozenset({("error", "race", "a.py:7"), ("error", "proxy", "a.py:9")})
    program = corpus.Program("o/r", "a.py", expected="errors", findings=expected)
    outcome = corpus.Outcome(
        "errors", frozenset({("error", "race", "a.py:7"), ("error", "order", "b")})
    )
    assert list(corpus.differences(program, outcome)) == [
        "found: order (error) at b",
        "missing: proxy (error) at a.py:9",
    ]


def test_the_file():
    """Each error has a line and what was read there; no program stands there twice."""
    commits, programs = corpus.read(corpus.CORPUS)
    assert all(len(commit) == 40 for commit in commits.values())
    names = [(p.repository, p.file, p.arguments) for p in programs]
    assert len(set(names)) == len(names)
    for program in programs:
        errors = [finding for finding in program.findings if finding[0] == "error"]
        assert bool(errors) == (program.expected == "errors"), program
        assert not errors or program.note, program
        assert all(":" in line for _, _, line in program.findings), program


def test_the_table_of_the_page():
    page = (ROOT / "docs" / "programs.md").read_text()
    _, programs = corpus.read(corpus.CORPUS)
    for verdict, count in Counter(program.expected for program in programs).items():
        assert re.search(rf"^\\| {verdict}\\b.* \\| {count} \\|$", page, re.M), (verdict, count)


def test_nothing_at_hand(tmp_path, capsys):
    assert corpus.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"NVIDIA/cutlass is not in {tmp_path}" in said and "nothing to run" in said


def test_what_cannot_run_here(tmp_path):
    folder = tmp_path / "o+r"
    folder.mkdir()
    (folder / "a.py").touch()

    def missing(**options) -> str:
        program = corpus.Program("o/r", **{"file": "a.py", **options})
        return corpus._missing(program, tmp_path, "4.5.2", frozenset({"einops"}))

    assert missing() == missing(needs="4.5") == missing(below="4.6") == ""
    assert "need nvidia-cutlass-dsl 4.8, here is 4.5.2" in missing(needs="4.8")
    assert "for nvidia-cutlass-dsl below 4.5" in missing(below="4.5")
    assert "import einops, which is not installed" in missing(packages=("einops", "torch"))
    assert f"p/q is not in {tmp_path}" == missing(beside=("p/q",))
    assert "o/r has no b.py" == missing(file="b.py")


TESTS = """
def test_right():
    {launches}
def test_other():
    assert 0
"""


def test_tests_are_run_by_pytest(tmp_path):
    folder = tmp_path / "o+r"
    folder.mkdir()
    body = launching(RACE).replace("\n", "\n    ").replace("b200._runtime.gpu", "b200.install()")
    (folder / "test_k.py").write_text(TESTS.format(launches=body))
    program = corpus.Program("o/r", "test_k.py", ("-k", "right"), by="pytest")
    outcome = corpus.run(program, tmp_path, sys.executable, 60)
    assert (outcome.verdict, len(outcome.findings)) == ("errors", 1), outcome
    program = corpus.Program("o/r", "test_k.py", ("-k", "other"), by="pytest")
    assert corpus.run(program, tmp_path, sys.executable, 60).verdict == "fails"


def test_programs_are_run(tmp_path, capsys, monkeypatch):
    scripts = {"race.py": RACE, "other.py": CLEAN}
    folder = tmp_path / "owner+name"
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(launching(text))
    race = {"severity": "error", "kind": "race", "line": "kernel.py:1"}
    expected = {"repository": "owner/name", "expected": "errors", "findings": [race]}
    entries = [expected | {"file": name} for name in scripts]
    file = tmp_path / "corpus.json"
    file.write_text(json.dumps({"commits": {"owner/name": "0" * 40}, "programs": entries}))
    monkeypatch.setattr(corpus, "CORPUS", file)
    assert corpus.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 as expected" in out
    assert "expected errors, found clean" in out and "missing: race (error) at kernel.py:1" in out
