"""test: two calls, each on inputs of its own, against the reference; in the emulator under the
checker.
"""

from __future__ import annotations

from harness.evaluator.case import emulated
from harness.evaluator.case.checks import check_twice
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import launching, without_launches
from harness.evaluator.case.loading import load, make_inputs


def run(job: Job) -> Outcome:
    kernel = load(job)
    if job.device == "emulator":
        gpu, kernel = emulated.start(job, kernel)
        counted = launching(job, kernel, gpu)
        outcome = emulated.check(
            job, gpu, lambda: check_twice(counted, lambda s: make_inputs(job, s), job.seed, _here)
        )
        if outcome.good:
            outcome.add(without_launches(kernel, make_inputs(job), gpu))
        return outcome
    import torch

    wait = torch.cuda.synchronize
    return Outcome("pass", check_twice(kernel, lambda s: make_inputs(job, s), job.seed, wait))


def _here() -> None:
    """Nothing to wait for: the emulator is done when a call returns."""
