"""profile: where the time of a call goes."""

from __future__ import annotations

import os

from harness.evaluator.case import emulated
from harness.evaluator.case.checks import call_and_check
from harness.evaluator.case.emulated import Kernel
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.loading import load, make_inputs

ROWS = 20  # of the table of torch's profiler


def run(job: Job) -> Outcome:
    kernel = load(job)
    if job.device == "cuda":
        return measure(job, kernel)
    _, kernel = emulated.start(job, kernel)
    return emulated.time_call(job, kernel, checked=bool(job.check))


def measure(job: Job, kernel: Kernel) -> Outcome:
    """torch's profiler on one call; under ncu (POPCORN_NCU set) only the call, in its NVTX
    range.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    # Compiles, and a wrong kernel is not worth a profile.
    call_and_check(kernel, make_inputs(job), torch.cuda.synchronize)
    data = make_inputs(job)
    torch.cuda.synchronize()
    if os.environ.get("POPCORN_NCU", "0") not in ("", "0"):
        with torch.cuda.nvtx.range("custom_kernel"):
            kernel(data)
            torch.cuda.synchronize()
        return Outcome("pass")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        kernel(data)
        torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=ROWS)
    return Outcome("pass", report=table)
