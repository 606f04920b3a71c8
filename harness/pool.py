"""A process for each case: started, watched, killed when it hangs, and reported when it crashes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from harness.worker import Job, Outcome, execute

TICK = 0.5  # seconds between looks at the clock
LAST_WORDS = 1.0  # seconds a hung process gets to say where it is
PR_SET_PDEATHSIG = 1
KEPT_OUTPUT = 20_000  # characters of a case's own output

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass
class _Running:
    index: int
    job: Job
    process: BaseProcess
    pid: int
    results: Connection
    log: Path
    since: float


def _main(job: Job, results: Connection, log: str, close: Sequence[int]) -> None:
    """Body of a case's process. Its prints and the dying words of native code go to `log`."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in close:
        os.close(descriptor)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    outcome = execute(job)
    sys.stdout.flush()
    sys.stderr.flush()
    results.send(outcome)
    results.close()


class Pool:
    """Runs jobs, up to `workers` at a time, each in a process of its own.

    method: "fork" (what the parent has imported is there at once; only without CUDA) or "spawn".
    timeout: seconds a case may take. close: descriptors a case must not inherit. on_tick(done,
    running): called about twice a second with the number of finished jobs and {index of a running
    job: seconds so far}.
    """

    def __init__(
        self,
        method: str,
        workers: int,
        timeout: float,
        on_tick: Callable[[int, dict[int, float]], None] = lambda done, running: None,
        close: Sequence[int] = (),
    ):
        self._context: Any = multiprocessing.get_context(method)
        self._workers, self._timeout, self._on_tick = workers, timeout, on_tick
        self._close = tuple(close) if method == "fork" else ()
        self._running: list[_Running] = []

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """The outcomes in the order of the jobs, each as soon as it and those before it are
        there.
        """
        finished: dict[int, Outcome] = {}
        begun = given = 0
        with _scratch() as directory:
            try:
                while given < len(jobs):
                    while begun < len(jobs) and len(self._running) < self._workers:
                        self._start(begun, jobs[begun], directory)
                        begun += 1
                    finished.update(self._collect())
                    self._on_tick(begun - len(self._running), self._ages())
                    while given in finished:
                        yield finished.pop(given)
                        given += 1
            finally:
                for case in self._running:
                    _kill(case)
                self._running.clear()

    def _ages(self) -> dict[int, float]:
        now = time.monotonic()
        return {case.index: now - case.since for case in self._running}

    def _start(self, index: int, job: Job, directory: Path) -> None:
        receive, send = self._context.Pipe(duplex=False)
        log = directory / f"{index}.log"
        process = self._context.Process(target=_main, args=(job, send, str(log), self._close))
        process.start()
        send.close()
        self._running.append(
            _Running(index, job, process, process.pid, receive, log, time.monotonic())
        )

    def _collect(self) -> dict[int, Outcome]:
        """The outcomes of the cases that ended, or were ended, within a tick."""
        ready = wait([case.results for case in self._running], timeout=TICK)
        now = time.monotonic()
        ended: dict[int, Outcome] = {}
        for case in list(self._running):
            if case.results in ready:
                outcome = _receive(case)
            elif now - case.since > self._timeout:
                outcome = self._give_up(case)
            else:
                continue
            _kill(case)
            self._running.remove(case)
            outcome.output = _read(case.log)[-KEPT_OUTPUT:]
            outcome.seconds = outcome.seconds or time.monotonic() - case.since
            ended[case.index] = outcome
        return ended

    def _give_up(self, case: _Running) -> Outcome:
        """End a case that takes too long, after asking its Python for the place it is at."""
        before = len(_read(case.log))
        try:
            os.kill(case.pid, signal.SIGUSR1)
        except ProcessLookupError:
            pass
        wait([case.results], timeout=LAST_WORDS)
        return Outcome(
            "timeout",
            f"no result after {self._timeout:g} s{_place(_read(case.log)[before:], case.job)}",
        )


def _place(dump: str, job: Job) -> str:
    """Where a hung or crashed case was by faulthandler's dump: the innermost line, and that of the
    submission.
    """
    frames = _FRAME.findall(dump)
    inside = [frame for frame in frames if frame[0] == job.submission]
    shown = dict.fromkeys(frames[:1] + inside[:1])
    places = ", called from ".join(
        f"{Path(file).name}:{line} in {name}" for file, line, name in shown
    )
    return f"; it was at {places}" if places else ""


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A directory for logs that is also the temporary directory of the cases, which may die without
    cleaning up.
    """
    kept = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="cases-") as directory:
        tempfile.tempdir = os.environ["TMPDIR"] = directory
        try:
            yield Path(directory)
        finally:
            tempfile.tempdir = kept[0]
            if kept[1] is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = kept[1]


def _receive(case: _Running) -> Outcome:
    try:
        return case.results.recv()
    except (EOFError, OSError):  # it died before, or while, it sent one
        case.process.join(5)
        cause = _cause_of_death(case.process.exitcode)
        return Outcome(
            "error", f"the process of the case {cause}{_place(_read(case.log), case.job)}"
        )


def _cause_of_death(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its pipe and hung"
    if exitcode >= 0:
        return f"ended with exit status {exitcode} and gave no result"
    return f"was killed by {signal.Signals(-exitcode).name} ({signal.strsignal(-exitcode)})"


def _kill(case: _Running) -> None:
    """End the case's process and whatever it started."""
    try:
        os.killpg(case.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        case.process.kill()
    case.process.join()
    case.results.close()


def _read(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
