"""The cases of a command: run, each in a process of its own, and reported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.cases import Case
from harness.evaluator.pool import Pool
from harness.evaluator.progress import Progress
from harness.evaluator.protocol import PopcornReport

Further = Callable[[Sequence[Job], Sequence[Case], Sequence[Outcome]], Iterable[tuple[Case, Job]]]


class Report(Protocol):
    """Is told what becomes of the cases, in order. stop: no more cases are wanted."""

    @property
    def stop(self) -> bool: ...

    def begin(self, cases: Sequence[Case]) -> None: ...

    def add(self, case: Case, outcome: Outcome) -> None: ...

    def end(self) -> None: ...


def run(
    jobs: Sequence[Job],
    chosen: Sequence[Case],
    method: str,
    workers: int,
    reports: Sequence[Report],
    further: Further | None = None,
) -> list[Outcome]:
    """Run the cases, each in its own process, and hand the outcomes to the reports in order.

    jobs: one a case. method, workers: see Pool. further: what is run after them, and handed over
    where it goes wrong. Where this is interrupted, what is finished is handed over before the
    exception goes on.
    """
    progress = Progress([f"{case.problem.short} {case.text}" for case in chosen])
    pipes = [report.descriptor for report in reports if isinstance(report, PopcornReport)]
    pool = Pool(method, workers, progress.tick, close=pipes)
    outcomes: list[Outcome] = []

    def hand_over(case: Case, outcome: Outcome) -> None:
        progress.clear()
        outcomes.append(outcome)
        for report in reports:
            report.add(case, outcome)

    for report in reports:
        report.begin(chosen)
    try:
        with contextlib.closing(pool.run(jobs)) as results:
            for case, outcome in zip(chosen, results):
                hand_over(case, outcome)
                if any(report.stop for report in reports):
                    break
        for case, job in further(jobs, chosen, outcomes) if further else ():
            with contextlib.closing(Pool(method, 1, close=pipes).run([job])) as results:
                if not (outcome := next(results)).good:
                    hand_over(case, outcome)
    except (KeyboardInterrupt, SystemExit):
        for index, outcome in sorted(pool.finished.items()):
            hand_over(chosen[index], outcome)
        raise
    finally:
        progress.clear()
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            for report in reports:
                report.end()
    return outcomes
