"""A case has to launch something: else its result says nothing of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.evaluator.case.job import Job
from harness.evaluator.case.timing import WrongResult

NO_LAUNCH = (
    "custom_kernel launched nothing {where}: what it returns was computed elsewhere, and says"
    " nothing of a kernel"
)


def no_launch(job: Job) -> str:
    """What to say of a case that launched nothing."""
    where = "in the emulator" if job.device == "emulator" else "through the Hopper runner"
    return NO_LAUNCH.format(where=where)


def launching(job: Job, kernel: Callable[[Any], Any], gpu: Any) -> Callable[[Any], Any]:
    """`kernel`, each call of which has to launch something on `gpu`, or raises WrongResult."""

    def call(data: Any) -> Any:
        before = len(gpu.launches)
        output = kernel(data)
        if len(gpu.launches) == before:
            raise WrongResult(no_launch(job))
        return output

    return call
