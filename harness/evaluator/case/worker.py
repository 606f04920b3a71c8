"""One case, in the process it has to itself: its limits, its mode, and whatever comes of it as an
outcome.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from b200 import pictures
from harness.evaluator.case import on_hopper
from harness.evaluator.case.failures import (
    SubmissionError,
    describe,
    is_cuda_error,
    print_traceback,
    whereabouts,
)
from harness.evaluator.case.guard import Guard, ProgramStarted
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.modes import benchmark, diff, profile, test, together, tune
from harness.evaluator.case.timing import WrongResult
from harness.evaluator.cases import format_args
from task import PROBLEMS

MODES: dict[str, Callable[[Job], Outcome]] = {
    "test": test.run,
    "benchmark": benchmark.run,
    "leaderboard": benchmark.run,
    "profile": profile.run,
    "diff": diff.run,
    "tune": tune.run,
    "together": together.run,
}
ALIKE_ON_HOPPER = ("test", "benchmark", "leaderboard", "profile")


NUMBERS = ("test", "leaderboard", "together")  # modes that hold a result against the reference
DIFFER = " elements differ"  # of utils.mismatch_report
NEXT = (
    'next: python eval.py diff {problem} --submission {submission} --case "{case}" (which mistake)'
)


def next_step(job: Job) -> str:
    """The command that says what a kernel with wrong numbers may have computed."""
    problem, file = PROBLEMS[job.problem].short, Path(job.submission)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return NEXT.format(problem=problem, submission=shown, case=format_args(job.args))


class OutOfTime(BaseException):
    """The time of the case is over; no Exception, so that a submission does not swallow it."""


def execute(job: Job) -> Outcome:
    """Run the case. Whatever it raises becomes text: nothing but an Outcome leaves."""
    begin = time.perf_counter()
    if job.plot:
        pictures.load()  # the program that it may start is not the submission's
    guard = Guard(job.allowed)
    try:
        with _time_limit(job.timeout):
            outcome = _run(job)
    except WrongResult as wrong:
        outcome = Outcome("fail", str(wrong))
    except OutOfTime as late:
        outcome = Outcome("timeout", f"no result after {job.timeout:g} s{whereabouts(late)}")
    except ProgramStarted:
        outcome = Outcome("error")  # the guard says what
    except (
        BaseException
    ) as error:  # a kernel may raise anything, SystemExit and KeyboardInterrupt included
        message = describe(error)
        outcome = Outcome("error", message, cuda_error=is_cuda_error(message))
        told = (ValueError, TypeError, SubmissionError)
        if not isinstance(error, told) and not hasattr(error, "kind"):
            with suppress(OSError, ValueError):  # it may have closed stderr
                print_traceback(error)
    if (
        outcome.status == "fail"
        and not job.own
        and job.mode in NUMBERS
        and DIFFER in outcome.message
    ):
        outcome.add(next_step(job))
    if guard.stopped:
        outcome = Outcome("error", guard.stopped[0])
    outcome.seconds = time.perf_counter() - begin
    outcome.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome


@contextmanager
def _time_limit(seconds: float) -> Generator[None]:
    """Raises OutOfTime inside after so many seconds, unless machine code is being executed then."""

    def ring(*_: Any) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _run(job: Job) -> Outcome:
    import torch

    torch.set_num_threads(job.threads)
    if job.device == "emulator":
        import b200

        b200.install()  # a submission may ask for a GPU as soon as it is imported
    if job.own:
        from harness.own.modes import MODES as OWN_MODES

        return OWN_MODES[job.mode](job)
    if job.device == "hopper" and job.mode in ALIKE_ON_HOPPER:
        return on_hopper.run(job)
    return MODES[job.mode](job)
