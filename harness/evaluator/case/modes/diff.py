"""diff: where the result differs from the reference, and what reproduces it (diagnosis/diff.py)."""

from __future__ import annotations

from pathlib import Path

from harness.evaluator.case.findings import incomplete, verdict
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import no_launch
from harness.evaluator.case.loading import load_kernel, make_inputs
from harness.evaluator.cases import format_args


def run(job: Job) -> Outcome:
    import b200
    from b200.checker import Checker
    from harness.diagnosis.diff import explain
    from harness.evaluator.case.gpu_data import on_gpu
    from hopper.backend import HopperGpu
    from utils import clone_data

    launches: list | None = None
    if job.device == "hopper":
        launches = b200.install(gpu=HopperGpu()).launches
    elif job.device == "emulator":
        gpu = b200.install(check=job.check, schedule=job.schedule)
        if (checker := gpu.machine.watcher(Checker)) is not None:
            checker.keep_stores = True
        launches = gpu.launches
    kernel = load_kernel(Path(job.submission))
    if job.device == "emulator":
        kernel = on_gpu(kernel)
    data = make_inputs(job)
    picture = Path(job.plot) if job.plot else None
    what = f"{job.problem} {format_args(job.args)}"
    output = kernel(clone_data(data))
    right, report = explain(data, output, picture, what, launches or (), job.inputs)
    missing = [] if launches is None or launches else [no_launch(job)]
    checked = launches if launches and job.device == "emulator" else []
    failed, found = verdict(checked, job.strict, job.all_findings, not right)
    left_out = incomplete(checked) if checked else None
    message = "\n".join(filter(None, [*missing, found]))
    passed = right and not failed and not missing
    return Outcome("pass" if passed else "fail", message, report=report, incomplete=left_out)
