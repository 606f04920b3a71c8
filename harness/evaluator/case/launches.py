"""A case has to launch something that its result comes from: else that says nothing of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.evaluator.case.job import Job
from harness.evaluator.case.timing import WrongResult

NO_LAUNCH = (
    "custom_kernel launched nothing {where}: what it returns was computed elsewhere, and says"
    " nothing of a kernel"
)

NOT_FROM_LAUNCHES = (
    "note: the result is right although none of the launches was carried out: the host computes it,"
    " so it says nothing of a kernel"
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


def without_launches(kernel: Callable[[Any], Any], data: Any, gpu: Any) -> str:
    """A note on a kernel whose result is right where none of its launches is carried out, "" for
    any other. The last call of a case: what a program keeps of its launches is wrong afterwards.
    """
    import torch

    from b200.chip.launch import Launch, Shape
    from b200.program.module import Kernel, Program
    from reference import check_implementation
    from utils import clone_data, outputs_of, tensors_of

    before = len(gpu.launches)
    given = clone_data(data)
    for c in outputs_of(given):
        c.fill_(float("nan"))

    def skipped(program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        return Launch(kernel.name, *shape.sizes)

    gpu.execute = skipped
    try:
        output = kernel(given)
        lost = any(bool(torch.isnan(each).any()) for each in tensors_of(output))
        if len(gpu.launches) == before or lost:
            return ""
        right = check_implementation(data, output)[0]
    except Exception:  # noqa: BLE001  it has met what its kernel has not written
        return ""
    finally:
        del gpu.execute, gpu.launches[before:]
    return NOT_FROM_LAUNCHES if right else ""
