"""together: several shapes of a problem in one process, as a board calls them.

What a submission keeps between calls, as compiled kernels and workspaces, meets the next shape.
Results alone are looked at: each shape has been a case of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.evaluator.case import emulated
from harness.evaluator.case.checks import in_one_process
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.loading import load, make_inputs
from harness.evaluator.cases import format_args


def run(job: Job) -> Outcome:
    kernel, wait = load(job), _here
    if job.device == "emulator":
        _, kernel = emulated.start(replace(job, check=False), kernel)
    else:
        import torch

        wait = torch.cuda.synchronize
    in_one_process(kernel, _inputs(job), wait)
    return Outcome("pass")


def _inputs(job: Job) -> Iterator[tuple[str, Any]]:
    """The shapes, and the first one again."""
    for args in (*job.together, job.together[0]):
        yield format_args(args), make_inputs(replace(job, args=args))


def _here() -> None:
    """Nothing to wait for: the emulator is done when a call returns."""
