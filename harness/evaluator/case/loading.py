"""The submission of a case, and its inputs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from b200.command_line import undecodable
from harness.evaluator.case import configs
from harness.evaluator.case.failures import SubmissionError, describe
from harness.evaluator.case.job import Job


def load_kernel(path: Path) -> Callable[[Any], Any]:
    """custom_kernel of the file at `path`, imported as the module `submission`. Raises
    SubmissionError.
    """
    spec = importlib.util.spec_from_file_location("submission", path)
    if spec is None or spec.loader is None:
        raise SubmissionError(f"{path.name} is no Python file: its name does not end in .py")
    if why := undecodable(path):
        raise SubmissionError(why)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SubmissionError(f"{path.name} cannot be imported: {describe(error)}") from error
    kernel = getattr(module, "custom_kernel", None)
    if not callable(kernel):
        raise SubmissionError(f"{path.name} defines no function custom_kernel(data)")
    return kernel


def load(job: Job) -> Callable[[Any], Any]:
    """custom_kernel, with the configuration that the job names, if it does."""
    kernel = load_kernel(Path(job.submission))
    if job.config:
        configs.fix(sys.modules["submission"], dict(job.config))
    return kernel


def make_inputs(job: Job, seed: int | None = None) -> Any:
    """The data that custom_kernel is called with, of the case's seed or of another one, where the
    reference can read them: on a GPU that the case runs on, else on the CPU.
    """
    from reference import generate_input

    device = "cuda" if job.device == "cuda" else "cpu"
    args = job.args if seed is None else {**job.args, "seed": seed}
    data = generate_input(job.problem, inputs=job.inputs, device=device, **args)
    if job.device == "hopper":
        # The numbers that the emulator gets, so that results can be compared.
        from hopper.pack import to_gpu

        data = to_gpu(data)
    return data
