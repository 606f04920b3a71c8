"""diff: where the result differs from the reference, and what reproduces it (diagnosis/diff.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.evaluator.case import emulated
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.loading import load_kernel, make_inputs
from harness.evaluator.cases import format_args


def run(job: Job) -> Outcome:
    import b200
    from harness.diagnosis.diff import explain
    from hopper.backend import HopperGpu
    from utils import clone_data

    launches: list[Any] | None = None
    if job.device == "hopper":
        launches = b200.install(gpu=HopperGpu()).launches
    kernel = load_kernel(Path(job.submission))
    if job.device == "emulator":
        launches, kernel = emulated.keeping_stores(job, kernel)
    data = make_inputs(job)
    picture = Path(job.plot) if job.plot else None
    what = f"{job.problem} {format_args(job.args)}"
    output = kernel(clone_data(data))
    right, report = explain(data, output, picture, what, launches or (), job.inputs)
    return emulated.explained(job, launches, right, report)
