"""A plugin of pytest in each process of `python -m lab suites`: writes down which tests there are,
or runs those that it takes from the list, with a limit to the CPU time of each.

It is loaded by `-p lab.suites.worker` beside `--b200`, whose reports it reads.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from b200 import pytest_plugin
from b200.errors import EmulatorError
from b200.reports import records
from lab.suites import rows
from lab.suites.rows import Row, short
from lab.suites.share import Share

REFUSALS = ("not modelled", "unsupported: ", "not in the software")


class OutOfTime(BaseException):
    """A test has taken the CPU time that it was given. No `except Exception` takes it."""


class Worker:
    """What runs the tests of this process."""

    def __init__(self, share: Share):
        self.share = share
        self._is_timed = False
        self._outcome, self._said = rows.PASSED, ""
        self._findings: list[str] = []
        signal.signal(signal.SIGPROF, self._over)

    def _over(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_timed:
            self._is_timed = False
            raise OutOfTime(f"more than {self.share.limit:g} s of CPU time")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if self.share.collect and report.failed:
            said = {"module": report.nodeid, "said": _last_line(report.longreprtext)}
            with (self.share.folder / "unread.jsonl").open("a") as file:
                file.write(json.dumps(said) + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self.share.collect:
            names = [item.nodeid for item in session.items]
            (self.share.folder / "tests.json").write_text(json.dumps(names))
            return True
        items = {item.nodeid: item for item in session.items}
        for test in self.share.claims():
            self.share.write(json.dumps({"begun": test}))
            row = self._run(items[test]) if test in items else Row(test, rows.RAW, said="is gone")
            self.share.write(row.line())
        return True

    def _run(self, item: pytest.Item) -> Row:
        self._outcome, self._said, self._findings = rows.PASSED, "", []
        launches = _Launches(item.config)
        before = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        seconds = round(time.process_time() - before, 2)
        findings = tuple(dict.fromkeys(self._findings))
        return Row(item.nodeid, self._outcome, launches.count(), seconds, self._said, findings)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, self.share.limit)
        self._is_timed = True
        yield
        self._is_timed = False
        signal.setitimer(signal.ITIMER_PROF, 0)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        error = call.excinfo.value if call.excinfo is not None else None
        done: Any = yield
        report = done.get_result()
        self._findings += _found(report)
        if self._outcome == rows.PASSED:
            self._outcome, self._said = _judged(error, report)
        said = report.longreprtext + report.capstdout + report.capstderr
        if self._outcome in (rows.RAW, rows.WRONG) and (text := _refused(said)):
            self._outcome, self._said = rows.REFUSED, text


class _Launches:
    """Launches from here on, those that failed and those of other processes, too."""

    def __init__(self, config: pytest.Config):
        session: Any = config.pluginmanager.get_plugin(pytest_plugin.NAME)
        self._journal = session.journal
        self._begin = self._journal.size

    def count(self) -> int:
        found, _ = self._journal.read(self._begin)
        return sum(record["record"] in (records.LAUNCH, records.FAILED) for record in found)


def _found(report: pytest.TestReport) -> list[str]:
    """The checker's errors that make the report of a test a failure."""
    sections = [text for name, text in report.sections if name == "b200"]
    sections += [
        text for name, text, *_ in getattr(report.longrepr, "sections", ()) if name == "b200"
    ]
    if isinstance(report.longrepr, str) and report.longrepr.startswith("b200: "):
        sections.append(report.longrepr.removeprefix("b200: "))
    return [short(text) for text in sections]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _judged(error: BaseException | None, report: pytest.TestReport) -> tuple[str, str]:
    """The outcome of one phase of a test, and what it says."""
    if isinstance(error, OutOfTime):
        return rows.TIME, str(error)
    if report.skipped:
        kind = rows.XFAILED if hasattr(report, "wasxfail") else rows.SKIPPED
        return kind, short(str(error or ""))
    if error is None:
        return (rows.FINDING if report.failed else rows.PASSED), ""
    if report.passed:
        return rows.PASSED, ""
    return _of_error(error)


def _of_error(error: BaseException) -> tuple[str, str]:
    said = short(f"{type(error).__name__}: {error}")
    kinds = {e.kind: e for e in _chain(error) if isinstance(e, EmulatorError)}
    if "budget" in kinds:
        return rows.TIME, said
    for kind in ("fault", "deadlock"):
        if kind in kinds:
            return rows.FAULT, short(kinds[kind].told())
    if "internal" in kinds:
        return rows.RAW, short(str(kinds["internal"]))
    refusals = [e for e in _chain(error) if any(text in str(e) for text in REFUSALS)]
    if refusals:
        return rows.REFUSED, short(f"{type(refusals[0]).__name__}: {refusals[0]}")
    is_the_tests = isinstance(error, AssertionError | pytest.fail.Exception)
    return (rows.WRONG if is_the_tests else rows.RAW), said


def _refused(said: str) -> str:
    """What was said of a function that is not modelled, whose caller has got a number alone, or was
    another process.
    """
    lines = [line for line in said.splitlines() if any(text in line for text in REFUSALS)]
    lines = [line.removeprefix("E").strip() for line in lines if "CompletedProcess(" not in line]
    return short(lines[-1]) if lines else ""


def _last_line(text: str) -> str:
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E")]
    return short(lines[-1] if lines else text)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Worker(Share.of_environment()), "lab-suites")
