"""What `pytest --b200` does: a finding is that of the test that launched, and fails it.

Each process of a run (xdist's workers, processes that a test starts) writes its launches into one
journal. The process that runs a test reads what came while it ran; the one that pytest was started
in writes the report.
"""

# pyright: reportPrivateUsage=false
# It is told what the package has installed.
from __future__ import annotations

import argparse
import os
import signal
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import b200
from b200 import started
from b200.checker.finding import ERROR
from b200.chip import schedules
from b200.host.imports import when_imported
from b200.program.names import from_here
from b200.reports import choice, document, journal, records, words
from b200.reports.choice import Accepted, Choice
from b200.reports.document import ReportedRun
from b200.reports.journal import Journal
from b200.reports.outputs import Outputs
from b200.reports.records import JsonRecord
from b200.time_budget import BUDGET

TERMINATED = 143
FAILED = 1  # pytest.ExitCode.TESTS_FAILED
MARK = "b200"
_TIME_IS_OVER = "SIGTERM: the time of the job is over"
_OURS = str(Path(__file__).resolve().parent)
NEED_A_GPU = ("torch", "cutlass", "triton", "cuda")  # packages
_ARGUMENTS = ("expect", "allow", "budget", "schedule", "check")


def join_the_run() -> None:
    """In a worker of a run that `b200 run` has begun: its GPU is in software, too."""
    if (found := journal.of_the_run()) is not None and found[1]:
        b200.install(**found[1])


def gpu() -> Any:
    """The B200 of this process."""
    assert b200._runtime is not None, "--b200 installs it"
    return b200._runtime.gpu


def _hands_out(options: argparse.Namespace) -> bool:
    """Whether this process gives the tests to xdist's workers, and needs no B200 itself."""
    workers = getattr(options, "numprocesses", None)
    return bool(workers) and "PYTEST_XDIST_WORKER" not in os.environ


def _checked(schedule: str | None) -> None:
    """UsageError for an order that there is not."""
    if schedule is None:
        return
    try:
        schedules.parse(schedule)
    except ValueError as error:
        raise pytest.UsageError(f"--b200-schedule: {error}") from None


class Session:
    """One process of a run of `pytest --b200`. options: the plugin's, by name."""

    def __init__(self, options: argparse.Namespace):
        self.config: pytest.Config | None = None
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # of a pytest that has started this one
        self.settings: dict[str, Any] = {
            "check": not options.b200_no_check,
            "schedule": options.b200_schedule,
            "budget": options.b200_budget,
        }
        self.shard = _shard(options.b200_shard)
        self.choice = Choice(
            accepted=_baseline(options.b200_baseline),
            kernels=options.b200_kernel,
            sources=options.b200_source,
            expected=options.b200_expect_kernel,
            strict=options.b200_strict,
        )
        report, sarif = options.b200_report, options.b200_sarif
        self.outputs = Outputs(
            Path(report).absolute() if report else None,
            Path(sarif).absolute() if sarif else None,
            options.b200_github,
            Path.cwd(),
        )
        self.new_baseline = options.b200_write_baseline
        self.journal = self._journal()
        self.run = ReportedRun(b200.__version__, ["pytest", *sys.argv[1:]])
        self._read = self.journal.size  # of it, by this process
        self._of_test = ReportedRun("", [])
        self._installed: dict[str, Any] = {}
        if _hands_out(options):  # a conftest.py of its own may come to the GPU all the same
            _checked(self.settings["schedule"])
            for name in NEED_A_GPU:
                when_imported(name, lambda _: self._install(self.settings))
        else:
            self._install(self.settings)
        self._running: pytest.Item | None = None
        self._is_terminated = self._is_cut_off = False
        self._found: dict[str, Any] | None = None  # the report, until it is printed
        self._told: set[str] = set()  # tests whose reports say what is found
        signal.signal(signal.SIGTERM, self._terminated)

    def pytest_configure(self, config: pytest.Config) -> None:
        self.config = config

    @property
    def is_worker(self) -> bool:
        """Whether this is a process of xdist's, which another one has started."""
        return hasattr(self.config, "workerinput")

    def _journal(self) -> Journal:
        """That of the run which this process is a part of, or a new one."""
        found = journal.of_the_run()
        kept = found[0] if found is not None else Journal.new()
        if found is None:
            journal.announce(kept, self.settings)
            started.follow()
        return kept

    def _install(self, settings: dict[str, Any]) -> None:
        if settings != self._installed:
            self._installed = settings
            _checked(settings["schedule"])
            b200.install(**settings)

    def _terminated(self, *_: object) -> None:
        """SIGTERM: the time of a job is over. A worker has nothing to lose; where pytest was
        started the test under way fails, and JUnit's file and ours are written.
        """
        if self.is_worker:
            os._exit(TERMINATED)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_terminated = True
        if self._running is None:
            self._is_cut_off = True
            pytest.exit(_TIME_IS_OVER, TERMINATED)
        self._running.session.shouldstop = _TIME_IS_OVER  # after a report of this test
        pytest.fail(_TIME_IS_OVER, pytrace=False)

    # --- tests
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self.shard is None:
            return
        part, of = self.shard
        left = [x for x in items if zlib.crc32(x.nodeid.encode()) % of != part - 1]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if item not in set(left)]

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        given = _mark(item)
        how = {name: given[name] for name in ("budget", "schedule", "check") if name in given}
        self._install(self.settings | how)
        b200.forget_failure()
        self._of_test, self._read = ReportedRun("", []), self.journal.size
        self._accept(item.nodeid, [*_patterns(given.get("expect")), *_patterns(given.get("allow"))])
        self._running = item
        yield
        self._running = None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, None]:
        if call.excinfo is not None:
            _leave_out_ours(call.excinfo.value.__traceback__)
        outcome = yield
        report: pytest.TestReport = outcome.get_result()
        new, self._read = self.journal.read(self._read)
        mine = [x for x in new if x["record"] != records.MARK and x.get("test") == item.nodeid]
        self._of_test.add(mine)
        launches = ReportedRun("", [], records=mine).reported()
        self._judge(report, launches, item, call)

    def _judge(
        self,
        report: pytest.TestReport,
        launches: Sequence[JsonRecord],
        item: pytest.Item,
        call: pytest.CallInfo[None],
    ) -> None:
        """Let a report say what the checker has found since the one before it. A launch that a
        budget has stopped skips a test, unless an error was found by then.
        """
        stopped = [x for x in launches if x.get("stopped_by") == BUDGET]
        shown = report.longreprtext if report.outcome == "failed" else ""
        counts = [
            (finding, launch)
            for launch in launches
            for finding in launch["findings"]
            if (self.choice.strict or finding["severity"] == ERROR)
            and not self.choice.why_not(finding, launch)
        ]
        wrong = [(x, launch) for x, launch in counts if not shown or x["diagnosis"] not in shown]
        text = "\n".join(_told(finding, launch) for finding, launch in wrong)
        if self.choice.strict:
            lines = (f"{x['kernel']}: not checked: {y}" for x in launches for y in x["incomplete"])
            text = "\n".join([*filter(None, [text]), *dict.fromkeys(lines)])
        if report.when == "call":
            missing = self._missing(item)
            if _is_expected(call, _patterns(_mark(item).get("expect"))) and not text:
                report.outcome, report.longrepr = "passed", None
            text = "\n".join(filter(None, [text, *missing]))
        if text and hasattr(report, "wasxfail"):  # it was expected to fail, and does
            report.outcome = "skipped"
            self._accept(item.nodeid, [finding["kind"] for finding, _ in wrong])
        elif text:
            _fail(report, text)
        elif stopped and report.outcome == "failed" and not counts:
            _skip(report, item, "; ".join(dict.fromkeys(x["failed"] for x in stopped)))

    def _accept(self, test: str, patterns: Sequence[str]) -> None:
        """Findings of a test that do not count, here and where the report is written."""
        known = self.choice.marks.setdefault(test, [])
        if patterns:
            known += choice.of_marks(patterns)
            said = {"record": records.MARK, "test": test, "patterns": list(patterns)}
            self.journal.add(said)

    def _missing(self, item: pytest.Item) -> Iterator[str]:
        """What the test expects and nobody has found."""
        launches = self._of_test.reported()
        found = [(x, launch) for launch in launches for x in launch["findings"]]
        for pattern in _patterns(_mark(item).get("expect")):
            wanted = choice.of_marks([pattern])[0]
            if not any(wanted.takes(x, launch["kernel"]) for x, launch in found):
                yield f"expected {pattern}, and found nothing of it"

    # --- the run
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The report of the run is written as it grows."""
        if report.failed:
            self._told.add(report.nodeid)
        if not self.is_worker and report.when == "teardown" and self.outputs.can_be_rewritten:
            if self._take():
                list(self.outputs.write(self.run.document(self.choice)))  # told at the end

    def _take(self) -> bool:
        """Read what is new in the journal. Whether there is a finding in it."""
        seen = getattr(self, "_seen", 0)
        new, self._seen = self.journal.read(seen)
        for mark in (x for x in new if x["record"] == records.MARK):
            known = self.choice.marks.setdefault(mark["test"], [])
            known += [x for x in choice.of_marks(mark["patterns"]) if x not in known]
        new = [x for x in new if x["record"] != records.MARK]
        self.run.add(new)
        return any(x.get("findings") for x in new)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker:
            return
        self._take()
        if self._is_terminated:
            session.exitstatus = exitstatus = TERMINATED
        found = self.run.document(self.choice)
        nothing = (0, pytest.ExitCode.NO_TESTS_COLLECTED)
        if exitstatus in nothing and document.is_bad(found, self.choice):
            session.exitstatus = exitstatus = FAILED
        self.run.status = found["status"] = int(exitstatus)
        self.run.ended = found["ended"] = (
            "SIGTERM" if exitstatus == TERMINATED else f"exit status {int(exitstatus)}"
        )
        self._found, self._unwritten = found, list(self.outputs.write(found))
        if self.new_baseline:
            Path(self.new_baseline).write_text(choice.baseline_of(found["findings"], choice.REASON))

        if self._is_cut_off:  # pytest writes no summary then
            self.pytest_terminal_summary(
                session.config.pluginmanager.get_plugin("terminalreporter")
            )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found, self._found = self._found, None
        if found is None or terminalreporter is None:
            return
        write = terminalreporter.write_line
        terminalreporter.section("b200")
        kernels = len(found["kernels"])
        write(
            f"{found['launches']} launches of {kernels} kernels on a B200 in software,"
            f" {len(found['findings'])} findings"
        )
        for finding in found["findings"]:
            if finding["test"] not in self._told or finding["severity"] != ERROR:
                write(from_here(f"{finding['test']}: {finding['text']}".removeprefix(": ")))
        for row in found["incomplete"]:
            write(f"the check is incomplete: {row['kernel']}: {row['why']} {row['test']}".rstrip())
        for line in (*words.judged(found), *self._unwritten):
            write(f"b200: {line}")
        self.outputs.print_annotations(found)


def _told(finding: JsonRecord, launch: JsonRecord) -> str:
    """A finding in the report of a test: with the launch that has it."""
    where = f"kernel {launch['kernel']}, grid {tuple(launch['grid'])}, launch {launch['launch']}"
    where += f" of process {launch['process']}"
    return from_here(f"{finding['text']}\n  {where}")


def _leave_out_ours(entry: TracebackType | None) -> None:
    """Take b200's own lines out of a traceback, and those of kernels, which are in no file."""
    while entry is not None:
        behind, inside = entry.tb_next, False
        while behind is not None:
            name = behind.tb_frame.f_code.co_filename
            inside = name.startswith(_OURS) or inside and name.startswith("<")
            if not inside:
                break
            behind = behind.tb_next
        entry.tb_next = behind
        entry = behind


def _fail(report: pytest.TestReport, text: str) -> None:
    if report.outcome == "failed" and hasattr(report.longrepr, "addsection"):
        report.longrepr.addsection("b200", text)  # type: ignore[union-attr]
    else:
        before = f"{report.longrepr}\n" if report.outcome == "failed" else ""
        report.outcome, report.longrepr = "failed", f"{before}b200: {text}"


def _skip(report: pytest.TestReport, item: pytest.Item, why: str) -> None:
    path, line, _ = item.location
    report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {why}")


def _mark(item: pytest.Item) -> dict[str, Any]:
    """The arguments of a test's marks, the innermost first."""
    found: dict[str, Any] = {}
    for mark in item.iter_markers(MARK):
        if mark.args or not set(mark.kwargs) <= set(_ARGUMENTS):
            raise pytest.UsageError(
                f"{item.nodeid}: pytest.mark.b200 takes {', '.join(_ARGUMENTS)} by name,"
                f" got {mark.args or sorted(set(mark.kwargs) - set(_ARGUMENTS))}"
            )
        found = dict(mark.kwargs) | found
    return found


def _patterns(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def _is_expected(call: pytest.CallInfo[None], patterns: Sequence[str]) -> bool:
    """Whether a test has ended by a fault or deadlock that it expects."""
    error = call.excinfo.value if call.excinfo is not None else None
    kinds = {choice.of_marks([pattern])[0].kind for pattern in patterns}
    while error is not None:
        if isinstance(error, b200.EmulatorError) and error.kind in kinds:
            return True
        error = error.__cause__ or error.__context__
    return False


def _baseline(name: str | None) -> list[Accepted]:
    try:
        return choice.read_baseline(Path(name)) if name else []
    except ValueError as error:
        raise pytest.UsageError(f"--b200-baseline: {error}") from None


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    part, _, of = text.partition("/")
    if not (part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        raise pytest.UsageError(f"--b200-shard: expected K/N with 1 <= K <= N, got {text}")
    return int(part), int(of)
