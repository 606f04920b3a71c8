"""Which findings of a run count: by filters and a baseline; and which kernels a gate has to see.

A baseline is a JSON file of what is known and accepted, each with its reason:

    {"schema": "b200-baseline/1", "accepted": [
        {"kind": "race", "rule": "race/...", "place": "gemm.py:75", "code": "tl.store(p, x)",
         "kernel": "gemm*", "reason": "issue 12: the last tile is written twice"}]}

`kind`, `place` and `reason` have to be there. Where `code` is given, the line may move: its text
decides, and the number does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from b200.checker.finding import KINDS
from b200.records import as_object
from b200.reports.records import WRONG, JsonRecord

SCHEMA = "b200-baseline/1"
REASON = "TO DO: why this is accepted"
REQUIRED, OPTIONAL = ("kind", "place", "reason"), ("rule", "code", "kernel")


@dataclass(frozen=True)
class Accepted:
    """An entry of a baseline. kind: of a finding, or "fault". place: FILE or FILE:LINE, its end is
    enough; "?" for any. reason: why it is accepted. rule, code, kernel: "" for any; kernel may
    have `*`.
    """

    kind: str
    place: str
    reason: str
    rule: str = ""
    code: str = ""
    kernel: str = ""

    def takes(self, finding: JsonRecord, kernel: str) -> bool:
        """Whether a finding is the one that is meant."""
        if finding["kind"] != self.kind or self.rule not in ("", finding["rule"]):
            return False
        if self.kernel and not fnmatchcase(kernel, self.kernel):
            return False
        place = finding["place"]
        if self.code:
            file = _without_line(self.place)
            return place["code"] == self.code and is_place(file, place)
        return self.place == "?" or is_place(self.place, place)

    def __str__(self) -> str:
        return f"{self.kind} at {self.place} ({self.reason})"


def is_place(wanted: str, place: JsonRecord) -> bool:
    """Whether a place is FILE, or FILE:LINE; the end of its path, from a folder on, is enough."""
    file = _without_line(wanted)
    if wanted != file and int(wanted[len(file) + 1 :]) != place["line"]:
        return False
    return file in ("", place["file"]) or place["file"].endswith(f"/{file}")


def _without_line(place: str) -> str:
    file, colon, line = place.rpartition(":")
    return file if colon and line.isdecimal() else place


def read_baseline(path: Path | str) -> list[Accepted]:
    """The entries of a baseline. ValueError says in a line what is wrong with it."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no baseline: {error}") from None
    baseline = as_object(found)
    if baseline.get("schema") != SCHEMA:
        raise ValueError(f'{path} is no baseline: expected "schema": "{SCHEMA}"')
    return [_accepted(path, i, entry) for i, entry in enumerate(baseline.get("accepted", ()))]


def _accepted(path: Path | str, number: int, found: Any) -> Accepted:
    where = f"{path}: entry {number}"
    if not isinstance(found, dict):
        raise ValueError(f"{where}: expected an object, got {found!r}")
    entry = as_object(found)
    for name, value in entry.items():
        if name not in REQUIRED + OPTIONAL or not isinstance(value, str):
            raise ValueError(f"{where}: {name}: expected {', '.join(REQUIRED + OPTIONAL)} as texts")
    if missing := [name for name in REQUIRED if not entry.get(name)]:
        raise ValueError(f"{where}: {missing[0]} is missing")
    if entry["kind"] not in (*KINDS, *WRONG):
        raise ValueError(f"{where}: kind: {entry['kind']!r} is none of {', '.join(KINDS)}, fault")
    return Accepted(**entry)


def of_marks(patterns: Iterable[str]) -> list[Accepted]:
    """What a test expects or allows: "KIND", "KIND/RULE", each with " at FILE:LINE" if so wanted.
    ValueError for a kind that is none.
    """
    found: list[Accepted] = []
    for pattern in patterns:
        rule, _, place = pattern.partition(" at ")
        kind, slash, _ = rule.partition("/")
        if kind not in (*KINDS, *WRONG):
            raise ValueError(f"{pattern!r}: expected one of {', '.join(KINDS)}, fault")
        found.append(Accepted(kind, place, "the test's mark", rule if slash else ""))
    return found


def baseline_of(findings: Iterable[JsonRecord], reason: str) -> str:
    entries: dict[str, dict[str, str]] = {}
    for finding in findings:
        place = finding["place"]
        file: str = place["file"]
        near = os.path.relpath(file) if file else ""
        file = file if near.startswith("..") else near
        entry = {"kind": finding["kind"], "rule": finding["rule"]}
        entry |= {"place": f"{file}:{place['line']}" if file else "?", "code": place["code"]}
        entry |= {"kernel": finding["kernel"], "reason": reason}
        entries[json.dumps(entry)] = entry
    return json.dumps({"schema": SCHEMA, "accepted": list(entries.values())}, indent=1) + "\n"


@dataclass(frozen=True)
class Choice:
    """What counts of a run. accepted: the baseline. kernels, sources: names with `*`, any one of
    which has to fit; launches: (first, last) numbers in a process. expected: names of kernels, each
    of which has to be launched. strict: remarks count, and so does what could not be checked.
    marks: what a test itself expects or allows, by its name.
    """

    accepted: Sequence[Accepted] = ()
    kernels: Sequence[str] = ()
    sources: Sequence[str] = ()
    launches: Sequence[tuple[int, int]] = ()
    expected: Sequence[str] = ()
    strict: bool = False
    marks: dict[str, list[Accepted]] = field(default_factory=dict[str, list[Accepted]])
    used: set[Accepted] = field(default_factory=set[Accepted])

    def why_not(self, finding: JsonRecord, launch: JsonRecord) -> str:
        """Why a finding does not count: "" if it does, "filter", or the reason of the baseline."""
        if not (self._is_chosen(launch) and self._is_source(finding)):
            return "filter"
        for each in self.marks.get(launch["test"], ()):
            if each.takes(finding, launch["kernel"]):
                return each.reason
        for each in self.accepted:
            if each.takes(finding, launch["kernel"]):
                self.used.add(each)
                return each.reason
        return ""

    def _is_chosen(self, launch: JsonRecord) -> bool:
        number = launch["launch"]
        is_number = not self.launches or any(a <= number <= b for a, b in self.launches)
        return is_number and (not self.kernels or _fits(launch, self.kernels))

    def _is_source(self, finding: JsonRecord) -> bool:
        file = finding["place"]["file"]
        return not self.sources or any(
            fnmatchcase(file, each) or fnmatchcase(file, f"*/{each}") for each in self.sources
        )

    def unseen(self, launches: Iterable[JsonRecord]) -> list[str]:
        """Expected kernels that were not launched."""
        launches = list(launches)
        return [x for x in self.expected if not any(_fits(launch, [x]) for launch in launches)]

    @property
    def stale(self) -> list[Accepted]:
        """Entries of the baseline that no finding has had so far."""
        return [each for each in self.accepted if each not in self.used]


def _fits(launch: JsonRecord, names: Sequence[str]) -> bool:
    given = (launch["kernel"], launch["symbol"])
    return any(fnmatchcase(name, each) for each in names for name in given)


def numbers(text: str) -> tuple[int, int]:
    """The launches that N or N-M names, counted from 0. ValueError for another text."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"expected the number of a launch, N or N-M, got {text!r}")
    return int(first), int(last) if dash else int(first)
