"""What is known of a test that was run, and how many tests ended in which way."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PASSED, SKIPPED, XFAILED = "passed", "skipped", "xfailed"
REFUSED, TIME = "refused", "time"
FINDING, FAULT, WRONG, RAW, OWN = "finding", "fault", "wrong", "raw", "own"
OUTCOMES = {  # as the table's columns; what each says stands in docs/suites.md
    PASSED: "passed",
    FINDING: "right, with an error found",
    REFUSED: "refused by name",
    TIME: "out of time",
    FAULT: "stopped by a finding",
    WRONG: "wrong",
    RAW: "raw",
    OWN: "of the test itself",
    SKIPPED: "skip themselves",
    XFAILED: "expected to fail",
}
ENDED = (PASSED, FINDING, REFUSED, FAULT, WRONG, RAW)  # a test that ran, and ended in time
# What differs between tests that end in the same way: addresses, and places in the source.
_OWN = re.compile(r"0x[0-9a-f]{6,}|\S+\.(?:py|cu):\d+: |/\S*/")
_PATH = re.compile(r"(?<=\[)/\S*/")  # of this machine, where it is a parameter
LONGEST = 300  # characters of what a test says


@dataclass(frozen=True)
class Row:
    """A test that was run. test: the id that pytest gives it. outcome: one of OUTCOMES.

    launches: of all its processes. seconds: of CPU time. said: the error's first line, or why
    a test skips itself. findings: texts of the checker's errors.
    """

    test: str
    outcome: str
    launches: int = 0
    seconds: float = 0.0
    said: str = ""
    findings: tuple[str, ...] = ()

    def line(self) -> str:
        return json.dumps(asdict(self))


def short(text: str) -> str:
    """The first line that says something, cut."""
    lines = (line.strip() for line in text.splitlines())
    return next(filter(None, lines), "")[:LONGEST]


def read(paths: Iterable[Path]) -> dict[str, Row]:
    """Rows of these files by test; of a test that has several, the last. A line that a process was
    killed in the midst of is left out.
    """
    found = {}
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if "outcome" in fields:
                found[fields["test"]] = Row(**{**fields, "findings": tuple(fields["findings"])})
    return found


def function_of(test: str) -> str:
    """The test function of an id, its parameters left out."""
    return test.partition("[")[0]


def share(rows: Iterable[Row]) -> tuple[int, int]:
    """Tests that passed, and all that launched and ended in time."""
    ended = [row for row in rows if row.outcome in ENDED and row.launches]
    return sum(row.outcome in (PASSED, FINDING) for row in ended), len(ended)


def summary(rows: Sequence[Row]) -> Mapping[str, int]:
    """How many rows have each outcome, in the order of OUTCOMES."""
    counted = Counter(row.outcome for row in rows)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def kinds(rows: Iterable[Row]) -> list[tuple[str, str, int, str]]:
    """Rows that did not pass by outcome and what they say: outcome, text, how many, one of them."""
    counted: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.outcome not in (PASSED, SKIPPED, XFAILED):
            text = row.findings[0] if row.outcome == FINDING else row.said
            kind = (row.outcome, _OWN.sub("", text))
            counted[kind] += 1
            first.setdefault(kind, _PATH.sub("", row.test))
    return [(*kind, many, first[kind]) for kind, many in counted.most_common()]
