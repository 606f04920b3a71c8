"""A case on a Hopper GPU, the tensor core in software."""

from __future__ import annotations

from harness.evaluator.case.checks import check_twice
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import launching
from harness.evaluator.case.loading import load, make_inputs

NOT_TIMED = "right; no time: on a Hopper GPU tcgen05 is carried out in software"


def run(job: Job) -> Outcome:
    """Whether a case is right, in every mode: the time that it takes on Hopper says nothing of a
    B200.
    """
    import torch

    import b200
    from hopper.backend import HopperGpu

    gpu = b200.install(gpu=HopperGpu())
    kernel = launching(job, load(job), gpu)
    wait = torch.cuda.synchronize
    note = check_twice(kernel, lambda s: make_inputs(job, s), job.seed, wait)
    return Outcome("pass", note if job.mode == "test" else NOT_TIMED)
