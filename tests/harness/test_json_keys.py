"""Every key that a command prints with --json stands in docs/reference/cli.md."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

import pytest

from b200.clock.call_time import Reported
from harness.evaluator import cases, report, trials
from harness.evaluator.case.job import Outcome
from harness.evaluator.compare.command import Result
from harness.evaluator.devices import Device
from harness.evaluator.ladder.command import _record
from harness.evaluator.ladder.points import Point
from harness.lint import command as lint
from harness.lint.rules import RULES, Remark
from harness.lint.submission import Found
from harness.measure.fit import Fitted
from task import PROBLEMS
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
CASE = cases.make_case(PROBLEMS["nvfp4_gemm"], cases.parse("m: 128; n: 256; k: 256; l: 1"))
EMULATOR = Device("emulator", "emulator", "the emulator")
MODELLED = {f.name: None for f in dataclasses.fields(Reported)}
MODELLED |= {name: None for name in ("phases", "dram_bytes", "l2_bytes", "unwritten")}


def explained() -> set[str]:
    """The keys of the page's tables, of what a trial of `tried` has, and of a ladder's point."""
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    said = re.findall(r"\| `tried` \|[^\n]*|`ladder --out`.*?`lint", PAGE, re.DOTALL)
    return set(re.findall(r"`(\w+)`", " ".join([*rows, *said])))


def of_case(outcome: Outcome) -> set[str]:
    return set(report.record(CASE, outcome, EMULATOR, "test", dict))


def of_eval() -> set[str]:
    wrong = Outcome("fail", "wrong", report="where", incomplete=["a part"])
    measured = Outcome("pass", stats={"mean": 1e3, "best": 1e3, "worst": 1e3})
    return of_case(wrong) | of_case(measured) | of_case(Outcome("pass", modelled=MODELLED))


def of_tune() -> set[str]:
    found = trials.Tuned(CASE, Outcome("pass", ranked=[({"a": 1}, 1.0)]))
    found.trials[0].outcome = Outcome("pass", stats={"mean": 1e3})
    fields = found.record(EMULATOR)
    return set(fields) | set(fields["tried"][0])


def of_compare() -> set[str]:
    result = Result("a.py", CASE, [{"status": "pass", "time_us": 1.0, "low_us": 1, "high_us": 1}])
    return set(result.fields(result))


def of_ladder() -> set[str]:
    point = Point("gemm", "ours", 1, 7.0, "")
    with tempfile.TemporaryDirectory() as there:
        file = point.file(Path(there))
        file.parent.mkdir()
        file.touch()
        return set(_record(point, Path(there), Outcome("pass", modelled=MODELLED)))


def of_lint() -> set[str]:
    return set(lint.record(Path("a.py"), Remark(RULES[0], Found("no", (1,)))))


PRINTED = {
    "eval.py": of_eval,
    "tune": of_tune,
    "compare": of_compare,
    "ladder": of_ladder,
    "lint": of_lint,
    "measure": lambda: {f.name for f in dataclasses.fields(Fitted)},
}


@pytest.mark.parametrize("command", PRINTED)
def test_every_key_is_explained(command):
    printed = PRINTED[command]()
    assert len(printed) > 5 and printed - explained() == set()
