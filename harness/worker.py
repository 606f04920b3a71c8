"""One case, in the process it has to itself: load the submission, make the inputs, run, check, time
or profile.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.timing import Bench, CudaClock, WrongResult, plan
from task import CaseArgs

NOT_TIMED = "right; no time: on a Hopper GPU tcgen05 is carried out in software"
NO_LAUNCH = "note: custom_kernel launched nothing in the emulator"
FINDINGS = 6  # of a case that are shown
ROWS_OF_PROFILE = 20

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Job:
    """What a case's process is told. device: "cuda", "hopper" or "emulator". threads: for torch's
    CPU work.

    trace, plot: files for the timeline of a modelled launch, if any. check, schedule: of the
    emulator: races are looked for; the order in which things happen (b200/chip/schedules.py).
    """

    mode: str
    device: str
    problem: str
    args: CaseArgs
    inputs: str
    submission: str
    threads: int = 1
    trace: str = ""
    plot: str = ""
    check: bool = True
    schedule: str | None = None


@dataclass
class Outcome:
    """What became of a case; plain values only, since it travels between processes.

    status: pass | fail (wrong result) | error (an exception or a crash) | timeout. seconds: wall
    clock of the case. stats: timing.Stats as a dict, where the case was timed. modelled:
    b200.clock's Reported as a dict, where it was modelled. report: what profile prints.
    peak_mb: of its process. output: the last of what the case printed, for a person.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    stats: dict[str, float] | None = None
    modelled: dict[str, Any] | None = None
    report: str = ""
    peak_mb: float = 0.0
    cuda_error: bool = False
    output: str = field(default="", repr=False)


def execute(job: Job) -> Outcome:
    """Run the case. Whatever it raises becomes text: nothing but an Outcome leaves."""
    begin = time.perf_counter()
    try:
        outcome = _run(job)
    except WrongResult as wrong:
        outcome = Outcome("fail", str(wrong))
    except (
        BaseException
    ) as error:  # a kernel may raise anything, SystemExit and KeyboardInterrupt included
        message = _describe(error)
        outcome = Outcome("error", message, cuda_error=_is_cuda_error(message))
        if not isinstance(error, (ValueError, TypeError, SubmissionError)) and not hasattr(
            error, "kind"
        ):
            _print_traceback(error)
    outcome.seconds = time.perf_counter() - begin
    outcome.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome


def _run(job: Job) -> Outcome:
    import torch

    torch.set_num_threads(job.threads)
    if job.mode == "diff":
        return _diff(job)
    if job.device == "hopper":
        return _on_hopper(job)
    kernel = load_kernel(Path(job.submission))
    if job.device == "emulator":
        return _emulate(job, kernel)
    actions = {
        "test": _test,
        "benchmark": _benchmark,
        "leaderboard": _benchmark,
        "profile": _profile,
    }
    return actions[job.mode](job, kernel)


def _diff(job: Job) -> Outcome:
    """Where the result differs from the reference, and what reproduces it (harness/diff.py)."""
    import b200
    from b200.hopper.backend import HopperGpu
    from harness.diff import explain
    from harness.gpu_data import on_gpu
    from utils import clone_data

    launches: list = []
    if job.device == "hopper":
        b200.install(gpu=HopperGpu())
    elif job.device == "emulator":
        launches = b200.install(check=job.check, schedule=job.schedule).launches
    kernel = load_kernel(Path(job.submission))
    if job.device == "emulator":
        kernel = on_gpu(kernel)
    data = _generate(job)
    right, report = explain(data, kernel(clone_data(data)), Path(job.plot) if job.plot else None)
    found = _findings(launches)
    status = "pass" if right and not found else "fail"
    return Outcome(status, found, report=report)


class SubmissionError(Exception):
    """The submission cannot be used at all; str() says why in one line."""


def load_kernel(path: Path) -> Callable[[Any], Any]:
    """custom_kernel of the file at `path`, imported as the module `submission`. Raises
    SubmissionError.
    """
    spec = importlib.util.spec_from_file_location("submission", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SubmissionError(f"{path.name} cannot be imported: {_describe(error)}") from error
    kernel = getattr(module, "custom_kernel", None)
    if not callable(kernel):
        raise SubmissionError(f"{path.name} defines no function custom_kernel(data)")
    return kernel


def _generate(job: Job, seed: int | None = None) -> Any:
    from reference import generate_input

    device = "cuda" if job.device == "cuda" else "cpu"
    args = job.args if seed is None else {**job.args, "seed": seed}
    data = generate_input(job.problem, inputs=job.inputs, device=device, **args)
    if (
        job.device == "hopper"
    ):  # the numbers that the emulator gets, so that results can be compared
        from b200.hopper.pack import to_gpu

        data = to_gpu(data)
    return data


def _check_once(job: Job, kernel: Callable[[Any], Any], wait: Callable[[], None]) -> None:
    """One call on a copy of the inputs, held against the reference. Raises WrongResult."""
    from reference import check_implementation
    from utils import clone_data

    data = _generate(job)
    wait()
    output = kernel(clone_data(data))
    wait()
    right, message = check_implementation(data, output)
    if not right:
        raise WrongResult(message)


def _emulate(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    """In the emulator: test and leaderboard hold the result against the reference, every mode but
    test is timed.
    """
    import b200
    from harness.gpu_data import on_gpu
    from harness.modelled import UNCHECKED, model

    gpu = b200.install(check=job.check, schedule=job.schedule)
    kernel = on_gpu(kernel)
    if job.mode in ("test", "leaderboard"):
        before = len(gpu.launches)
        wrong = _wrong(job, kernel)
        if message := "\n".join(filter(None, [wrong, _findings(gpu.launches[before:])])):
            return Outcome("fail", message)
        if len(gpu.launches) == before:
            return Outcome("pass", NO_LAUNCH)
        if job.mode == "test":
            return Outcome("pass")
    found, report = model(job.problem, kernel, _generate(job), job.trace, job.plot)
    if found is None:
        return Outcome("pass", NO_LAUNCH)
    message = "" if job.mode == "leaderboard" else UNCHECKED
    return Outcome("pass", message, modelled=found, report=report if job.mode == "profile" else "")


def _wrong(job: Job, kernel: Callable[[Any], Any]) -> str:
    """What is wrong with the result, "" if nothing is."""
    try:
        _check_once(job, kernel, wait=lambda: None)
    except WrongResult as wrong:
        return str(wrong) or "wrong result"
    return ""


def _findings(launches) -> str:
    """What the checker found in the launches, "" if nothing."""
    found = [finding for launch in launches for finding in launch.findings or ()]
    if not found:
        return ""
    shown = [str(finding) for finding in found[:FINDINGS]]
    more = [f"... {len(found) - FINDINGS} more"] if len(found) > FINDINGS else []
    return "\n".join(
        [f"the checker found {len(found)} thing(s) that hardware may not forgive:", *shown, *more]
    )


def _on_hopper(job: Job) -> Outcome:
    """Every mode on a Hopper GPU: right or not. What it takes says nothing of a B200."""
    import torch

    import b200
    from b200.hopper.backend import HopperGpu

    gpu = b200.install(gpu=HopperGpu())
    kernel = load_kernel(Path(job.submission))
    _check_once(job, kernel, wait=torch.cuda.synchronize)
    if not gpu.launches:
        return Outcome("pass", NO_LAUNCH.replace("the emulator", "the Hopper runner"))
    return Outcome("pass", "" if job.mode == "test" else NOT_TIMED)


def _test(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    import torch

    _check_once(job, kernel, wait=torch.cuda.synchronize)
    return Outcome("pass")


def _benchmark(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    from reference import check_implementation

    bench = Bench(kernel, lambda seed: _generate(job, seed), check_implementation, CudaClock())
    bench.measure(plan(job.problem, job.mode, warmup=True), job.args["seed"])
    stats = bench.measure(plan(job.problem, job.mode), job.args["seed"])
    return Outcome("pass", stats=stats.as_dict())


def _profile(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    """torch's profiler on one call; under ncu (POPCORN_NCU set) only the call, in its NVTX
    range.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    _check_once(
        job, kernel, wait=torch.cuda.synchronize
    )  # compiles, and a wrong kernel is not worth a profile
    data = _generate(job)
    torch.cuda.synchronize()
    if os.environ.get("POPCORN_NCU", "0") not in ("", "0"):
        with torch.cuda.nvtx.range("custom_kernel"):
            kernel(data)
            torch.cuda.synchronize()
        return Outcome("pass")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        kernel(data)
        torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=ROWS_OF_PROFILE)
    return Outcome("pass", report=table)


def _describe(error: BaseException) -> str:
    """An exception in words: its type and text, and the last line of the submission it passed
    through.
    """
    report = _emulator_error(error)
    if report:
        return report
    try:
        text = _COLOUR.sub("", str(error)).strip()
    except Exception:
        text = "(its text cannot be had)"
    if isinstance(error, SubmissionError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if _in_submission(frame.filename)]
    where = ""
    if inside:
        where = f" ({Path(inside[-1].filename).name}:{inside[-1].lineno}, in {inside[-1].name})"
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _emulator_error(error: BaseException | None) -> str:
    """The emulator's own report, also where the DSL has wrapped it in an exception of its own; else
    empty.
    """
    if "b200" not in sys.modules:
        return ""
    from b200 import EmulatorError

    while error is not None:
        if isinstance(error, EmulatorError):
            return f"{error.kind}: {error}"
        error = error.__cause__ or error.__context__
    return ""


def _print_traceback(error: BaseException) -> None:
    """The traceback from the submission on, or all of it if it is the harness's own."""
    trace = error.__traceback__
    while trace is not None and not _in_submission(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _in_submission(filename: str) -> bool:
    return filename == getattr(sys.modules.get("submission"), "__file__", None)


def _is_cuda_error(message: str) -> bool:
    return any(word in message for word in ("CUDA error", "cudaError", "CUDA_ERROR"))
