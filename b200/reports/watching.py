"""The process that stays while a program runs: it writes the report as that grows, and tells all
that was found when the program has ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator

from b200.command_line import UNWRITTEN, USAGE, cannot_write
from b200.reports import choice, document, options, records, words
from b200.reports.document import ReportedRun
from b200.reports.journal import Journal
from b200.supervised import Ended

TERMINATED = 143  # the status of a run that SIGTERM has ended


class Watching:
    """given: the options of the run. kept: its journal."""

    name = "b200 run"

    def __init__(self, given: argparse.Namespace, kept: Journal, version: str):
        self.options, self.journal = given, kept
        self.choice, self.outputs = options.choice_of(given), options.outputs_of(given)
        self.run = ReportedRun(version, self._program())
        self._read = 0
        self._not_before = 0.0  # when the report is written next

    def _program(self) -> list[str]:
        given = self.options
        program = ["-m", given.module] if given.module else [given.script]
        return [*program, *given.arguments]

    def _end(self) -> records.JsonRecord:
        return self.run.end

    def look(self) -> None:
        """Take what the program has found since then, and write the report if it is new."""
        is_first = not self._not_before
        grown = self.journal.size > self._read
        if not self.outputs.can_be_rewritten or not (grown or is_first):
            return
        now = time.monotonic()
        if now >= self._not_before:
            self._take()
            list(self.outputs.write(self.run.document(self.choice)))  # told at the end
            after = time.monotonic()
            self._not_before = after + 10 * (after - now)

    def _take(self) -> None:
        new, self._read = self.journal.read(self._read)
        self.run.add(new)

    def conclude(self, ended: Ended) -> int:
        """Tell everything, write the report. The exit status."""
        self._take()
        run, end = self.run, self._end()
        run.ended, run.failure = ended.words, end.get("failure", "")
        run.failure = run.failure or "\n".join(end.get("unasked", ()))
        self._tell(end)
        found = run.document(self.choice)
        run.status = status = self._status(ended, end, found)
        for text in (*words.judged(found), *end.get("said", ())):
            print(f"{self.name}: {text}", file=sys.stderr)
        self.outputs.print_annotations(found)
        failed = [*self.outputs.write(found | {"status": status}), *self._write_baseline(found)]
        for text in failed:
            print(f"{self.name}: {text}", file=sys.stderr)
        return status or (UNWRITTEN if failed or end.get("unwritten") else 0)

    def _tell(self, end: records.JsonRecord) -> None:
        """Say on stderr what was launched and found, but for what the program has said itself."""
        launched = self.run.reported()
        main = end.get("process") or (launched[0]["process"] if launched else 0)
        everything, why_not = self.options.all_findings, self.choice.why_not
        told = end.get("told", ())
        for text in words.lines(launched, main, told, everything, why_not):
            print(text, file=sys.stderr)

    def _status(self, ended: Ended, end: records.JsonRecord, found: records.JsonRecord) -> int:
        if signal.SIGTERM in ended.passed_on or ended.signal == signal.SIGTERM:
            return TERMINATED
        bad = document.is_bad(found, self.choice) or bool(end.get("unasked"))
        status = ended.status or int(bad)
        return USAGE if end.get("idle") and not status else status

    def _write_baseline(self, found: records.JsonRecord) -> Iterator[str]:
        path = self.options.write_baseline
        if path is None:
            return
        try:
            path.write_text(choice.baseline_of(found["findings"], choice.REASON))
        except OSError as error:
            yield f"--write-baseline: {cannot_write(path, error)}"
