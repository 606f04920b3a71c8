"""What a case of a problem of one's own does in each mode of eval.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from harness.evaluator.case import emulated
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import launching, no_launch
from harness.evaluator.case.loading import load_kernel
from harness.evaluator.case.modelled import UNCHECKED, model
from harness.evaluator.case.modes.benchmark import measure
from harness.evaluator.case.timing import SEED_STEP_REPEATS, WrongResult
from harness.evaluator.cases import format_args
from harness.own.explain import explain
from harness.own.problem import Truth
from utils import clone_data

SECOND_CALL = "second call, on other inputs (seed {seed}): "
NEXT = 'next: python eval.py diff --problem {problem} --submission {submission} --case "{case}"'


def test(job: Job) -> Outcome:
    """Two calls, each on inputs of its own, against the reference; in the emulator under the
    checker.
    """
    truth, kernel = Truth(Path(job.own)), load_kernel(Path(job.submission))
    if job.device != "emulator":
        import torch

        _twice(job, truth, kernel, torch.cuda.synchronize)
        return Outcome("pass")
    gpu, kernel = emulated.start(job, kernel)
    counted = launching(job, kernel, gpu)
    return emulated.check(job, gpu, lambda: _twice(job, truth, counted, lambda: None))


def _twice(job: Job, truth: Truth, kernel: Callable[[Any], Any], wait: Callable[[], None]) -> str:
    other = (job.seed + SEED_STEP_REPEATS) % 2**63
    for stage, seed in (("", job.seed), (SECOND_CALL.format(seed=other), other)):
        data = truth.inputs(job.args, seed)
        output = kernel(_given(job, data))
        wait()
        right, message = truth.check(data, _on_cpu(output))
        if not right:
            shown = NEXT.format(
                problem=job.own, submission=job.submission, case=format_args(job.args)
            )
            raise WrongResult(f"{stage}{message}\n{shown}")
    return ""


def diff(job: Job) -> Outcome:
    """Where outputs differ, and what reproduces them."""
    truth, kernel = Truth(Path(job.own)), load_kernel(Path(job.submission))
    launches: list[Any] | None = None
    if job.device == "emulator":
        launches, kernel = emulated.keeping_stores(job, kernel)
    data = truth.inputs(job.args)
    output = _on_cpu(kernel(_given(job, data)))
    picture = Path(job.plot) if job.plot else None
    what = f"{job.problem} {format_args(job.args)}"
    right, report = explain(truth, data, output, launches or (), picture, what)
    return emulated.explained(job, launches, right, report)


def timed(job: Job) -> Outcome:
    """benchmark, leaderboard, profile: measured on a GPU, modelled in the emulator. leaderboard
    also holds the results against the reference under the checker.
    """
    if job.device == "cuda":
        return _measured(job)
    if job.mode == "leaderboard" and not (outcome := test(job)).good:
        return outcome
    truth, kernel = Truth(Path(job.own)), load_kernel(Path(job.submission))
    _, kernel = emulated.start(job, kernel)
    data = truth.inputs(job.args)
    outputs: list[Any] = []

    def kept(given: Any) -> Any:
        outputs.append(kernel(given))
        return outputs[-1]

    what = f"{job.problem} {format_args(job.args)}"
    how = (dict(job.constants), job.sweep_constants, bool(job.check))
    given = clone_data(data)
    found, report = model(job.problem, kept, given, job.trace, job.plot, what, *how)
    if found is None:
        return Outcome("fail", no_launch(job))
    report = report if job.mode == "profile" else ""
    if not job.check:
        return Outcome("timed", UNCHECKED, modelled=found, report=report)
    right, message = truth.check(data, outputs[0])
    return Outcome("pass" if right else "fail", message, modelled=found, report=report)


def _measured(job: Job) -> Outcome:
    truth, kernel = Truth(Path(job.own)), load_kernel(Path(job.submission))

    def check(data: tuple[Any, ...], output: Any) -> tuple[bool, str]:
        return truth.check(_on_cpu(data), _on_cpu(output))

    return measure(job, kernel, lambda seed: _given(job, truth.inputs(job.args, seed)), check)


def _given(job: Job, data: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the kernel is given: a copy, on the GPU where the case runs on one."""
    copies = clone_data(data)
    return _moved(copies, "cuda") if job.device == "cuda" else copies


def _on_cpu(output: Any) -> Any:
    return _moved(output, "cpu")


def _moved(data: Any, device: str) -> Any:
    if isinstance(data, (tuple, list)):
        moved = [_moved(each, device) for each in cast("Sequence[Any]", data)]
        return moved if isinstance(data, list) else tuple(moved)
    return data.to(device) if hasattr(data, "to") else data


MODES = {
    "test": test,
    "diff": diff,
    "benchmark": timed,
    "leaderboard": timed,
    "profile": timed,
}
