"""The forms of a submission's kernels, from the emulator."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from harness.evaluator.cases import Case
from harness.qualify.submission import Submission
from lab.evidence import kernels
from lab.evidence.kernels import Wanted
from lab.evidence.watch import Watching
from reference import generate_input


@functools.lru_cache(maxsize=4)
def _drawn(problem: str, args: tuple) -> Any:
    return generate_input(problem, **dict(args))


def data_of(case: Case) -> Any:
    """The input of a case; the same object again while it is one of the last few."""
    return _drawn(case.problem.name, tuple(case.args.items()))


def wanted(submission: Submission, every: int | None = None) -> Iterator[Wanted]:
    """All that is to have rows. every: in place of it each so many-th official case, as picked."""
    if every is not None:
        for case in kernels.official()[::every]:
            yield Wanted(case, submission.picked(data_of(case)), "picked")
        return
    yield from kernels.picks(submission, data_of)
    yield from kernels.covering_set(submission, data_of)


def collect(
    submission: Submission, gpu: Watching, asked: Iterable[Wanted]
) -> Iterator[tuple[str, list[str]]]:
    """(what ran, the forms that nothing before it had) of one kernel after the other."""
    known: set[str] = set()
    for item in asked:
        submission.reckon_with(item.table)
        submission.run(data_of(item.case), item.config)
        fields = " ".join(f"{name}={value}" for name, value in item.config.items())
        new = sorted(gpu.forms - known)
        known.update(new)
        yield f"{item.case.problem.short} {item.case.text} [{fields}], {item.why}", new
    submission.reckon_with(None)
