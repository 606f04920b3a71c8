"""The report of a run: one JSON document, of the records of all its processes.

docs/reference/report.md says what its fields mean. A document says of itself which schema it has;
another number behind the slash means that a field is gone or means something else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from b200.checker.finding import ERROR, SEVERITIES
from b200.reports import records
from b200.reports.choice import Choice
from b200.reports.records import JsonRecord

SCHEMA = "b200-report/1"
UNDER_WAY = "under way"
_OF_LAUNCH = ("kernel", "symbol", "grid", "block", "cluster", "launch", "process", "test")
_SAME = ("severity", "kind", "rule", "loc", "other", "diagnosis", "symbol", "test", "schedule")


@dataclass
class ReportedRun:
    """The records of a run, in order, and how it ended. version: of b200. program: its command.
    status: None until it has ended. ended: in words, as "exit status 1" or "SIGTERM". failure: what
    went wrong in the program, in a line.
    """

    version: str
    program: list[str]
    status: int | None = None
    ended: str = UNDER_WAY
    failure: str = ""
    records: list[JsonRecord] = field(default_factory=list[JsonRecord])

    def add(self, new: Iterable[JsonRecord]) -> None:
        self.records += new

    @property
    def launches(self) -> list[JsonRecord]:
        """A record a launch that has ended, or has failed, or was under way to the last."""
        return [record for record in self.reported() if record["record"] != records.MORE]

    def reported(self) -> list[JsonRecord]:
        """Records of launches, and of findings that came after them; those of findings so far only
        where nothing came after.
        """
        known = {_key(x) for x in self.records if x["record"] in (records.LAUNCH, records.FAILED)}
        found: list[JsonRecord] = []
        so_far: dict[Any, JsonRecord] = {}
        for record in self.records:
            if record["record"] in (records.LAUNCH, records.FAILED, records.MORE):
                found.append(record)
            elif record["record"] == records.SO_FAR and _key(record) not in known:
                if (before := so_far.get(_key(record))) is None:
                    before = so_far[_key(record)] = record | {"findings": []}
                    found.append(before)
                before["findings"] += record["findings"]
        return found

    @property
    def end(self) -> JsonRecord:
        """What the program itself has said at its end; {} where it could not."""
        return next((x for x in reversed(self.records) if x["record"] == records.END), JsonRecord())

    def document(self, choice: Choice) -> dict[str, Any]:
        findings, accepted, filtered = self._judged(choice)
        launches = self.launches
        kernels = Counter((x["kernel"], x["symbol"]) for x in launches)
        return {
            "schema": SCHEMA,
            "tool": {"name": "b200", "version": self.version},
            "program": self.program,
            "status": self.status,
            "ended": self.ended,
            "failure": self.failure,
            "launches": len(launches),
            "kernels": _rows(kernels),
            "findings": findings,
            "accepted": accepted,
            "filtered": filtered,
            "incomplete": _incomplete(launches, choice),
            "stale": [str(each) for each in choice.stale],
            "unseen": choice.unseen(launches),
        }

    def _judged(self, choice: Choice) -> tuple[list[JsonRecord], list[JsonRecord], int]:
        """Findings that count and those that a baseline accepts, each once; how many others."""
        findings: dict[str, JsonRecord] = {}
        accepted: dict[str, JsonRecord] = {}
        filtered = 0
        for launch in self.reported():
            for finding in launch["findings"]:
                why = choice.why_not(finding, launch)
                if why == "filter":
                    filtered += 1
                    continue
                whole = finding | {name: launch[name] for name in _OF_LAUNCH}
                whole |= {"schedule": launch["schedule"], "times": 0}
                known = (accepted if why else findings).setdefault(
                    json.dumps([whole[name] for name in _SAME]), whole
                )
                known["times"] += 1
                if why:
                    known["reason"] = why
        order = (*SEVERITIES, "")
        counted = sorted(findings.values(), key=lambda x: order.index(x["severity"]))
        return counted, list(accepted.values()), filtered


def merged(documents: Sequence[dict[str, Any]], choice: Choice) -> dict[str, Any]:
    """One report of several: of the parts of a run, each of which may have run elsewhere. Its
    status is the highest.
    """
    findings: list[JsonRecord] = []
    accepted = [x for each in documents for x in each["accepted"]]
    filtered = sum(each["filtered"] for each in documents)
    for finding in (x for each in documents for x in each["findings"]):
        why = choice.why_not(finding, finding)
        filtered += why == "filter"
        if why != "filter":
            (accepted if why else findings).append(finding | ({"reason": why} if why else {}))
    kernels: Counter[tuple[str, str]] = Counter()
    for row in (x for each in documents for x in each["kernels"]):
        kernels[row["kernel"], row["symbol"]] += row["launches"]
    statuses = [each["status"] for each in documents]
    rows = _rows(kernels)
    return {
        "schema": SCHEMA,
        "tool": documents[0]["tool"],
        "program": [word for each in documents for word in each["program"]],
        "status": None if None in statuses else max(statuses),
        "ended": "; ".join(dict.fromkeys(each["ended"] for each in documents)),
        "failure": "\n".join(filter(None, (each["failure"] for each in documents))),
        "launches": sum(each["launches"] for each in documents),
        "kernels": rows,
        "findings": findings,
        "accepted": accepted,
        "filtered": filtered,
        "incomplete": [x for each in documents for x in each["incomplete"]],
        "stale": [str(each) for each in choice.stale],
        "unseen": choice.unseen(rows),
    }


def is_bad(document: dict[str, Any], choice: Choice) -> bool:
    """Whether a run fails for what a report says. With `strict` for remarks, too, for what could
    not be checked, for a stale entry of the baseline and for a run without a launch.
    """
    found = document["findings"]
    bad = document["unseen"] or any(x["severity"] == ERROR for x in found)
    if choice.strict:
        bad = bad or found or document["incomplete"] or document["stale"]
        bad = bad or not document["launches"]
    return bool(bad)


def _rows(kernels: Counter[tuple[str, str]]) -> list[JsonRecord]:
    return [{"kernel": x, "symbol": y, "launches": count} for (x, y), count in kernels.items()]


def _key(record: JsonRecord) -> tuple[int, int]:
    return record["process"], record["launch"]


def _incomplete(launches: Iterable[JsonRecord], choice: Choice) -> list[JsonRecord]:
    """What of the launches was not looked at, a row for each reason."""
    found: dict[str, JsonRecord] = {}
    for launch in launches:
        reasons = [*launch["incomplete"]]
        if choice.strict and not launch["checked"]:
            reasons.append("the launch was not checked")
        for why in reasons:
            row = {"why": why} | {name: launch[name] for name in ("kernel", "launch", "test")}
            key = json.dumps([why, launch["symbol"], launch["test"]])
            known = found.setdefault(key, row | {"process": launch["process"], "times": 0})
            known["times"] += 1
    return list(found.values())
