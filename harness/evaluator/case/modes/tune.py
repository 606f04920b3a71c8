"""tune: the configurations that the submission ranks highest, or the time with one of them."""

from __future__ import annotations

import sys

from harness.evaluator.case import configs
from harness.evaluator.case.failures import SubmissionError
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import no_launch
from harness.evaluator.case.loading import load, make_inputs
from harness.evaluator.case.modelled import model
from harness.evaluator.case.modes import benchmark


def run(job: Job) -> Outcome:
    kernel = load(job)
    module, data = sys.modules["submission"], make_inputs(job)
    if job.device == "emulator":
        import b200
        from harness.evaluator.case.gpu_data import on_gpu

        b200.install(check=False)
        kernel = on_gpu(kernel)
    if job.count:
        try:
            return Outcome("pass", ranked=configs.rank(module, kernel, data, job.count))
        except configs.NoConfigs as error:
            raise SubmissionError(str(error)) from None
    if job.device == "cuda":
        return benchmark.measure(job, kernel)
    constants = dict(job.constants)
    found, _ = model(job.problem, kernel, data, constants=constants)
    return Outcome("pass", modelled=found) if found else Outcome("fail", no_launch(job))
