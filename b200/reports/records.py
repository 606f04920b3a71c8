"""What a record of the journal consists of, and a finding in it: plain values, for JSON.

docs/reference/report.md has the fields of a finding as they stand in the report.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from b200.checker.finding import ERROR, Finding
from b200.errors import EmulatorError
from b200.program.names import readable
from b200.reports import rules

if TYPE_CHECKING:
    from b200.chip.launch import Launch

JsonRecord = dict[str, Any]
# Kinds of records. A launch that has ended, one that has failed, findings so far of one that is
# under way, later findings of one that has ended; how the program ended.
LAUNCH, FAILED, SO_FAR, MORE, END = "launch", "failed", "so far", "more", "end"
MARK = "mark"  # what a test expects and allows
REFUSED = "refused"  # a call of a compiled program that is not modelled
USUAL = "usual"  # the order of a launch, where no --schedule says another
WRONG = ("fault", "deadlock")  # kinds of EmulatorError that say that the program is wrong
_PLACE = r"[^\s:]+:\d+"
_ACCESS = re.compile(
    rf"(?P<role>[a-z][a-z ]*): (?P<loc>{_PLACE})"
    r"(?:: (?P<what>.*?))?(?:,? by (?P<who>.* of CTA .*))?"
)
_CTA = re.compile(r"CTA \((\d+), (\d+), (\d+)\)")
_WARP = re.compile(r"warp (\d+)")
_FIRST_PLACE = re.compile(rf"({_PLACE})(?: \(|: )")
_LIBRARIES = re.compile(r"(?:site|dist)-packages/|/(?:cutlass|triton|torch|cuda)/|/include/")


def of_launch(launch: Launch) -> JsonRecord:
    """What a report says of a launch, its findings and number aside."""
    return {
        "kernel": readable(launch.kernel),
        "symbol": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "time_us": None if launch.time is None else launch.time.time_us,
        "orders": None if launch.orders is None else str(launch.orders),
        "checked": launch.findings is not None,
        "incomplete": list(launch.incomplete),
    }


def of_arguments(kernel: str, shape: Sequence[Any]) -> JsonRecord:
    """The same of a launch that did not end. shape: grid, block and, where it is known, cluster."""
    given = [list(size) for size in shape[:3]]
    grid, block, cluster = given + [[1, 1, 1]] * (3 - len(given))
    return {
        **{"kernel": readable(kernel), "symbol": kernel, "grid": grid, "block": block},
        **{"cluster": cluster, "time_us": None, "orders": None, "checked": True, "incomplete": []},
    }


def of_finding(finding: Finding) -> JsonRecord:
    """A finding of the checker. Details that need the whole run are left out before its end."""
    told = [detail for detail in finding.details if not callable(detail)]  # Findings.tell
    details = sorted(told, key=lambda line: not line.startswith("missing:"))
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "rule": rules.of(finding.kind, finding.diagnosis),
        "diagnosis": finding.diagnosis,
        "details": details,
        "loc": finding.loc,
        "other": finding.other,
        "place": place(finding.loc, details),
        "accesses": accesses(details),
        "cta": cta_of(details),
        "stopped": False,
        "text": replace(finding, details=tuple(details)).message,
    }


def of_error(error: EmulatorError) -> JsonRecord:
    """The fault or deadlock that has ended a launch."""
    first, *details = str(error).splitlines()
    details = [line.strip() for line in details]
    at = _FIRST_PLACE.match(first)
    if at is None:  # a deadlock: where the first warp waits
        at = next(filter(None, (_FIRST_PLACE.match(line) for line in details)), None)
    loc = at[1] if at else ""
    diagnosis = first.removeprefix(f"{loc}: ").removeprefix(f"{error.kind}: ")
    return {
        **{"severity": ERROR, "kind": error.kind, "diagnosis": diagnosis},
        "rule": rules.of(error.kind, str(error)),
        **{"details": details, "loc": loc, "other": "", "place": place(loc, [first, *details])},
        **{"accesses": [], "cta": cta_of(details), "stopped": True},
        "text": error.told(),
    }


def place(loc: str, details: Iterable[str]) -> JsonRecord:
    """The line of the user's own file: `loc`, or where that is in a library, the line that called
    it. `code` is the text of the line, "" where there is no such file.
    """
    chosen = loc
    if _LIBRARIES.search(loc):
        called = (line for line in details if loc in line)
        callers = (
            found
            for line in called
            for found in re.findall(rf"(?: at |^)({_PLACE})", line)
            if not _LIBRARIES.search(found)
        )
        chosen = next(callers, loc)
    file, _, line = chosen.rpartition(":")
    if not line.isdecimal():
        return {"file": "", "line": 0, "code": ""}
    return {"file": file, "line": int(line), "code": linecache.getline(file, int(line)).strip()}


def accesses(details: Iterable[str]) -> list[JsonRecord]:
    """The accesses that details name: this one, and what it conflicts with."""
    found = (_ACCESS.fullmatch(line) for line in details if not line.startswith("missing:"))
    return [
        {
            "role": match["role"],
            "loc": match["loc"],
            "what": match["what"] or "",
            "cta": cta_of([match["who"] or ""]),
            "warp": int(warp[1]) if (warp := _WARP.search(match["who"] or "")) else None,
        }
        for match in found
        if match is not None
    ]


def cta_of(lines: Iterable[str]) -> list[int] | None:
    """The first CTA that lines name."""
    for line in lines:
        if found := _CTA.search(line):
            return [int(found[i]) for i in (1, 2, 3)]
    return None


def test_under_way() -> str:
    """The test that pytest is running in this process or started this one, "" if none."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
