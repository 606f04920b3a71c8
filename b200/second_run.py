"""A program that fails is run once more, with `--schedule late`: does timing decide?

In the usual order asynchronous operations complete at once. What goes wrong then may go right where
they complete as late as they may, and the reverse. The second run is checked. It is called right
only if the program ends with status 0, the checker has looked at all of it and found nothing, and
the output up to the failure is the same. Else what the checker found is shown, also where the
second run fails as well. A failure that the unchecked program does not have is the check's own, and
says nothing about timing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b200.checker.finding import NOTE
from b200.program.names import from_here

LATE = "late"
LONGEST = 300  # seconds of a run that is worth another
SHOWN = 3  # findings of the second run that are told


@dataclass(frozen=True)
class Outcome:
    """What a run did. failure: the program's own, "" if it ended with status 0. output: its stdout.
    findings: lines, without notes. incomplete: parts that no rule looked at.
    """

    failure: str
    output: str
    findings: tuple[str, ...]
    incomplete: tuple[str, ...]


def tell(
    options: argparse.Namespace, failure: str, stopped: bool, findings: Iterable[dict[str, Any]]
) -> None:
    """Run the program of `options` again and say on stderr what that shows. failure: what the first
    run ended with, a line. stopped: whether a launch of it came to no end. findings: of the first
    run, as a report has them.
    """
    if said := _said(options, failure, stopped, _lines(findings)):
        print(from_here(f"b200: {said}"), file=sys.stderr)


def _said(options: argparse.Namespace, failure: str, stopped: bool, known: Collection[str]) -> str:
    """What further runs show, "" if nothing. known: the findings of the first run."""
    late = _run(options, "--schedule", LATE)
    if late is None:
        return ""
    if late.failure:
        new = [line for line in late.findings if line not in known]
        both = f"{failure}; with --schedule {LATE} the program ends with {late.failure}"
        return f"{both}, and the checker finds in it:{_hazards(new)}" if new else ""
    usual = _run(options, "--no-check")
    if usual is None:
        return ""
    if not usual.failure:
        return (
            f"{failure}: without the checker the program ends with status 0. The failure is the"
            " check's own, or comes and goes; it says nothing about timing."
        )
    return _compared(failure, usual, late, stopped)


def _compared(failure: str, usual: Outcome, late: Outcome, stopped: bool) -> str:
    """What two runs say of a program that fails in the usual order and not in the other one."""
    both = (
        f"the usual order ends with {failure}; with --schedule {LATE}, where asynchronous"
        " operations complete as late as they may, the program ends with status 0"
    )
    if late.findings:
        return f"decided by timing: {both}, and the checker finds in it:{_hazards(late.findings)}"
    if stopped and not late.output.startswith(usual.output):
        return (
            f"decided by timing: {both}, and its output differs before that: {_where(usual, late)}"
        )
    if late.incomplete:
        return f"decided by timing: {both}. The check is incomplete: {late.incomplete[0]}"
    return (
        f"right by timing: {both}, and the checker finds nothing. A GPU's timing decides which of"
        f" the two it does.\n  hazard: {failure}: it holds only while what it does not wait for is"
        " slow"
    )


def _hazards(findings: Sequence[str]) -> str:
    return "".join(f"\n  hazard: {line}" for line in findings[:SHOWN])


def _lines(findings: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Findings of a report as lines, without notes."""
    graver = (f for f in findings if f["severity"] != NOTE)
    return tuple(f"{f['loc']}: {f['kind']}: {f['diagnosis']}" for f in graver)


def _where(usual: Outcome, late: Outcome) -> str:
    """The first line of output in which two runs differ."""
    lines = [*usual.output.splitlines(), ""], [*late.output.splitlines(), ""]
    one, other = next(pair for pair in zip(*lines) if pair[0] != pair[1])
    return f"{one!r} and {other!r}"


def _run(options: argparse.Namespace, *how: str) -> Outcome | None:
    """Run the program of `options` in a process of its own; None if that takes too long, or leaves
    no report.
    """
    program: Sequence[str] = ("-m", options.module) if options.module else (options.script,)
    sources = [word for source in options.sources for word in ("--with", str(source))]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "b200", "run", "--no-again", *how]
        command += ["--report", str(report), *sources, *program, "--", *options.arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * LONGEST,
            )
            found = json.loads(report.read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError):
            return None
    return Outcome(
        found["failure"],
        done.stdout,
        _lines(found["findings"]),
        tuple(row["why"] for row in found["incomplete"]),
    )
