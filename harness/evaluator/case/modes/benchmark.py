"""benchmark and leaderboard: how long a call takes, measured as the leaderboards do it on a GPU,
modelled in the emulator. leaderboard holds the result against the reference as they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.evaluator.case import emulated
from harness.evaluator.case.checks import recheck
from harness.evaluator.case.emulated import Kernel
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import without_launches
from harness.evaluator.case.loading import load, make_inputs
from harness.evaluator.case.timing import Bench, CudaClock, plan


def run(job: Job) -> Outcome:
    kernel = load(job)
    if job.device == "cuda":
        return measure(job, kernel)
    gpu, kernel = emulated.start(job, kernel)
    if job.mode == "benchmark":
        return emulated.time_call(job, kernel, checked=bool(job.check))

    notes = []

    def checked() -> str:
        notes.append(recheck(job.problem, kernel, lambda s: make_inputs(job, s), job.seed))
        return ""

    outcome = emulated.check(job, gpu, checked)
    if not outcome.good:
        return outcome
    timed = emulated.time_call(job, kernel, checked=False, status="pass")
    timed.message = timed.message or notes[0]
    timed.add(without_launches(kernel, make_inputs(job), gpu))
    return timed


def measure(
    job: Job,
    kernel: Kernel,
    inputs: Callable[[int], Any] | None = None,
    check: Callable[[Any, Any], tuple[bool, str]] | None = None,
) -> Outcome:
    """Time the kernel on the GPU as the leaderboards do. inputs, check: in place of the board's."""
    from reference import check_implementation

    inputs = inputs or (lambda seed: make_inputs(job, seed))
    bench = Bench(kernel, inputs, check or check_implementation, CudaClock())
    bench.measure(plan(job.problem, job.mode, warmup=True), job.seed)
    stats = bench.measure(plan(job.problem, job.mode), job.seed)
    return Outcome("pass", bench.note, stats=stats.as_dict())
