"""The forms of a submission's kernels, from the emulator; and what is picked if a chip holds other
clusters than the kernel takes for granted: is it right?

For the latter the checker watches a few clusters of each, and what these wrote is held against the
reference.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from harness.evaluator.cases import Case
from harness.qualify.submission import Submission
from lab.evidence import kernels
from lab.evidence.kernels import Wanted
from lab.evidence.watch import Checking, Watching
from reference import ATOL, RTOL, generate_input, ref_kernel
from utils import outputs_of, tensors_of


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


def other_picks(submission: Submission) -> Iterator[Wanted]:
    """What is picked under the other cluster tables, and not under its own."""
    for item in kernels.picks(submission, data_of):
        if item.table is not None:
            yield item


def wrong(submission: Submission, gpu: Checking, item: Wanted, data: Any) -> list[str]:
    """What is wrong with a few clusters of it, a line each."""
    for c in outputs_of(data):
        c.fill_(float("nan"))
    submission.reckon_with(item.table)
    submission.run(data, item.config)
    submission.reckon_with(None)
    found = [str(f) for f in gpu.launches[-1].findings or () if f.severity == "error"]
    expected = ref_kernel(data)
    for c, right in zip(outputs_of(data), tensors_of(expected)):
        written = ~c.isnan()
        if not torch.allclose(c[written].float(), right[written].float(), rtol=RTOL, atol=ATOL):
            found.append("what was written is not what the reference says")
    if all(c.isnan().all() for c in outputs_of(data)):
        found.append("nothing was written")
    return found
