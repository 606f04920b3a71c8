"""A process for each case, by pebble: started, ended when it takes too long, reported when it
crashes. What pebble does not know stands here: the output of a case, where it was, and the programs
it leaves after.

Cases do not share a process, although the leaderboards' do: what a case says must not depend on the
cases before it, and a submission may crash, close its output or change any module. In the emulator
there is little to gain. Forks share what the parent has imported, so one more case costs 0.06 CPU
seconds beside its own work (measured: one case and four of a stand-in, 3.0 and 3.2 s), and the
second case in a process costs what the first did (1.3 and 1.4 s, compiling included). Of the 40
official cases 31 have a kernel of their own: compiled once each they would save 9 compiles of about
0.6 s. With CUDA, a case is spawned and pays for its imports; a fork would not survive there.
"""

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
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessFuture, concurrent

from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.output import Output

TICK = 0.5  # seconds between looks at the clock
GRACE = 5.0  # seconds that a case gets to end by itself when its time is over
LAST_WORDS = "last_words"  # file of a case: faulthandler's dump of where it was
PR_SET_PDEATHSIG = 1

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass
class _Running:
    job: Job
    future: ProcessFuture
    output: Output
    folder: Path
    since: float


def _case(job: Job, folder: str, output: Connection, close: Sequence[int]) -> Outcome:
    """Body of a case's process."""
    os.setsid()
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in close:
        os.close(descriptor)
    Path(folder, "pid").write_text(str(os.getpid()))
    tempfile.tempdir = os.environ["TMPDIR"] = folder  # a case may die without cleaning up
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    last_words = open(Path(folder, LAST_WORDS), "w")
    faulthandler.enable(last_words)
    faulthandler.dump_traceback_later(job.timeout + GRACE / 2, file=last_words)
    from harness.evaluator.case.worker import execute  # it is there where several cases fork

    outcome = execute(job)
    with contextlib.suppress(OSError, ValueError):  # it may have closed them
        sys.stdout.flush()
        sys.stderr.flush()
    return outcome


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Pool:
    """Runs jobs, up to `workers` at a time, each in a process of its own.

    method: "fork" (what the parent has imported is there at once; only without CUDA) or "spawn".
    on_tick(done, running): called about twice a second with the number of finished jobs and {index
    of a running job: seconds so far}. close: descriptors a case must not inherit. finished:
    outcomes that `run` has not handed out, by index.
    """

    def __init__(
        self,
        method: str,
        workers: int,
        on_tick: Callable[[int, dict[int, float]], None] = lambda done, running: None,
        close: Sequence[int] = (),
    ):
        self._context = multiprocessing.get_context(method)
        self._workers, self._on_tick = workers, on_tick
        self._close = tuple(close) if method == "fork" else ()
        self.finished: dict[int, Outcome] = {}

    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        """The outcomes in the order of the jobs, each as soon as it and those before it are
        there.
        """
        running: dict[int, _Running] = {}
        begun = given = 0
        with _scratch() as scratch:
            try:
                while given < len(jobs):
                    while begun < len(jobs) and len(running) < self._workers:
                        running[begun] = self._start(jobs[begun], scratch / str(begun))
                        begun += 1
                    futures.wait(
                        [case.future for case in running.values()],
                        timeout=TICK,
                        return_when=futures.FIRST_COMPLETED,
                    )
                    for index in [i for i, case in running.items() if case.future.done()]:
                        self.finished[index] = _end(running.pop(index))
                    now = time.monotonic()
                    ages = {index: now - case.since for index, case in running.items()}
                    self._on_tick(begun - len(running), ages)
                    while given in self.finished:
                        yield self.finished.pop(given)
                        given += 1
            finally:
                _kill_processes([c.folder for c in running.values() if not _kill_group(c.folder)])
                futures.wait([case.future for case in running.values()], timeout=GRACE)

    def _start(self, job: Job, folder: Path) -> _Running:
        folder.mkdir()
        reader, writer = self._context.Pipe(duplex=False)
        # pebble 5.2 documents mp_context and reads context.
        how: dict[str, Any] = {"context": self._context, "mp_context": self._context}
        in_a_process = concurrent.process(
            name=str(folder), daemon=False, timeout=job.timeout + GRACE, **how
        )
        future = in_a_process(_case)(job, str(folder), writer, self._close)
        writer.close()
        return _Running(job, future, Output(reader), folder, time.monotonic())


@contextlib.contextmanager
def _scratch() -> Generator[Path]:
    """A folder for all that cases leave, and the temporary directory of those that begin: what a
    fork makes for itself is made there.
    """
    kept = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="cases-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = kept[0]
            if kept[1] is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = kept[1]


def _end(case: _Running) -> Outcome:
    """The outcome of a case whose future is done; nothing of it is left running."""
    outcome = _outcome(case)
    _kill_group(case.folder)
    outcome.output = case.output.text(patience=1.0) + _read(case.folder / LAST_WORDS)
    case.output.close()
    outcome.seconds = outcome.seconds or time.monotonic() - case.since
    return outcome


def _outcome(case: _Running) -> Outcome:
    place = _place(_read(case.folder / LAST_WORDS), case.job)
    try:
        return case.future.result()
    except futures.TimeoutError:
        return Outcome("timeout", f"no result after {case.job.timeout:g} s{place}")
    except ProcessExpired as expired:
        return Outcome("error", f"the process of the case {_cause(expired.exitcode)}{place}")
    except Exception as error:  # its result could not be read
        return Outcome("error", f"the process of the case sent no outcome: {error!r}")


def _place(dump: str, job: Job) -> str:
    """Where a hung or crashed case was by faulthandler's dump: the innermost line, and that of the
    submission.
    """
    threads = re.split(r"^(?=Current thread |Thread )", dump, flags=re.MULTILINE)
    current = [thread for thread in threads if thread.startswith("Current thread ")]
    frames = _FRAME.findall((current or threads)[-1])  # the main thread comes last
    inside = [frame for frame in frames if frame[0] == job.submission]
    shown = dict.fromkeys(frames[:1] + inside[:1])
    places = ", called from ".join(
        f"{Path(file).name}:{line} in {name}" for file, line, name in shown
    )
    return f"; it was at {places}" if places else ""


def _cause(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its pipe and hung"
    if exitcode >= 0:
        return f"ended with exit status {exitcode} and gave no result"
    return f"was killed by {signal.Signals(-exitcode).name} ({signal.strsignal(-exitcode)})"


def _kill_group(folder: Path) -> bool:
    """End what a case started, and the case if it still runs; False if it has not begun."""
    pid = _read(folder / "pid")
    if pid:
        try:
            os.killpg(int(pid), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    return bool(pid)


def _kill_processes(folders: Sequence[Path]) -> None:
    """End the cases that have hardly begun. Not by the futures' cancel(): where a terminal has
    interrupted their processes, too, pebble would give an outcome to a cancelled future.
    """
    names = [str(folder) for folder in folders]
    for process in multiprocessing.active_children():
        if process.name in names:
            process.kill()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
