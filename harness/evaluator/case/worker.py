"""One case, in the process it has to itself: load the submission, make the inputs, run, check, time
or profile.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.evaluator.case import configs
from harness.evaluator.case.again import LONGEST, right_by_timing
from harness.evaluator.case.checks import call_and_check, check_twice, recheck
from harness.evaluator.case.configs import Ranked
from harness.evaluator.case.findings import incomplete, verdict
from harness.evaluator.case.guard import Guard, ProgramStarted
from harness.evaluator.case.timing import Bench, CudaClock, WrongResult, plan
from harness.evaluator.cases import format_args
from task import CaseArgs

NOT_TIMED = "right; no time: on a Hopper GPU tcgen05 is carried out in software"
NO_LAUNCH = (
    "custom_kernel launched nothing {where}: what it returns was computed elsewhere, and says"
    " nothing of a kernel"
)
ROWS_OF_PROFILE = 20
GOOD = ("pass", "timed")  # statuses of a case in which nothing is wrong
LONGEST_TEXT = 2_000  # characters of an exception's text

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Job:
    """What a case's process is told. device: "cuda", "hopper" or "emulator". timeout: seconds.
    threads: for torch's CPU work.

    trace, plot: files for the timeline of a modelled launch, if any. check, schedule: of the
    emulator (b200.machine): races are looked for; the order in which things happen.
    strict, all_findings: findings of every severity fail the case; all of them are shown.
    allowed: programs that the submission may start, besides compilers (guard.py).

    sweep_constants: the range of a modelled time is of the constants at their ends. constants: of
    the emulator's clock, in place of its own. count: tune ranks so many configurations. config: of
    test and tune: run with the configuration that has these fields.
    """

    mode: str
    device: str
    problem: str
    args: CaseArgs
    inputs: str
    submission: str
    timeout: float
    threads: int = 1
    trace: str = ""
    plot: str = ""
    check: bool | str = True
    schedule: str | None = None
    strict: bool = False
    all_findings: bool = False
    allowed: tuple[str, ...] = ()
    sweep_constants: bool = False
    constants: tuple[tuple[str, float], ...] = ()
    count: int = 0
    config: tuple[tuple[str, Any], ...] = ()

    @property
    def seed(self) -> int:
        return int(self.args["seed"])  # type: ignore[arg-type]  # of the keys, sizes alone are lists


@dataclass
class Outcome:
    """What became of a case; plain values only, since it travels between processes.

    status: pass | timed (its result was not looked at) | fail (wrong result) | error (an exception
    or a crash) | timeout. seconds: wall
    clock of the case. stats: timing.Stats as a dict, where the case was timed. modelled:
    b200.clock's Reported as a dict, where it was modelled. report: what profile prints. ranked:
    configurations and estimates (configs.py). peak_mb: of its process. incomplete: what of
    its launches the checker did not look at or understand, None where there was nothing to check.
    output: the first and last of what the case printed, for a person.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    stats: dict[str, float] | None = None
    modelled: dict[str, Any] | None = None
    report: str = ""
    ranked: Ranked | None = None
    peak_mb: float = 0.0
    cuda_error: bool = False
    incomplete: list[str] | None = None
    output: str = field(default="", repr=False)

    @property
    def good(self) -> bool:
        """Nothing is wrong, as far as it was looked at."""
        return self.status in GOOD


class OutOfTime(BaseException):
    """The time of the case is over; no Exception, so that a submission does not swallow it."""


def execute(job: Job) -> Outcome:
    """Run the case. Whatever it raises becomes text: nothing but an Outcome leaves."""
    begin = time.perf_counter()
    guard = Guard(job.allowed)
    try:
        with _time_limit(job.timeout):
            outcome = _run(job)
    except WrongResult as wrong:
        outcome = Outcome("fail", str(wrong))
    except OutOfTime as late:
        outcome = Outcome("timeout", f"no result after {job.timeout:g} s{_whereabouts(late)}")
    except ProgramStarted:
        outcome = Outcome("error")  # the guard says what
    except (
        BaseException
    ) as error:  # a kernel may raise anything, SystemExit and KeyboardInterrupt included
        message = _describe(error)
        outcome = Outcome("error", message, cuda_error=_is_cuda_error(message))
        told = (ValueError, TypeError, SubmissionError)
        if not isinstance(error, told) and not hasattr(error, "kind"):
            with suppress(OSError, ValueError):  # it may have closed stderr
                _print_traceback(error)
    if guard.stopped:
        outcome = Outcome("error", guard.stopped[0])
    outcome.seconds = time.perf_counter() - begin
    outcome.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside after so many seconds, unless machine code is being executed then."""

    def ring(*_: Any) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _whereabouts(late: OutOfTime) -> str:
    """Where the case was: the kernel's line in the emulator, and the line of the submission."""
    b200 = sys.modules.get("b200")
    kernel = b200.at_work()[:1] if b200 is not None else []
    frames = traceback.extract_tb(late.__traceback__)[:-1]  # the last is the handler's
    inside = [frame for frame in frames if _in_submission(frame.filename)][-1:]
    python = inside if kernel else [*frames[-1:], *inside]
    lines = [f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in python]
    places = dict.fromkeys([*(f"the kernel's {place}" for place in kernel), *lines])
    return f"; it was at {', called from '.join(places)}" if places else ""


def _run(job: Job) -> Outcome:
    import torch

    torch.set_num_threads(job.threads)
    if job.mode == "diff":
        return _diff(job)
    if job.device == "hopper" and not job.count:
        return _on_hopper(job)
    kernel = _load(job)
    if job.mode == "tune":
        return _tune(job, kernel)
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
    """Where the result differs from the reference, and what reproduces it (diagnosis/diff.py)."""
    import b200
    from b200.hopper.backend import HopperGpu
    from harness.diagnosis.diff import explain
    from harness.evaluator.case.gpu_data import on_gpu
    from utils import clone_data

    launches: list | None = None
    if job.device == "hopper":
        launches = b200.install(gpu=HopperGpu()).launches
    elif job.device == "emulator":
        gpu = b200.install(check=job.check, schedule=job.schedule)
        gpu.machine.keep_stores = True
        launches = gpu.launches
    kernel = load_kernel(Path(job.submission))
    if job.device == "emulator":
        kernel = on_gpu(kernel)
    data = _generate(job)
    picture = Path(job.plot) if job.plot else None
    what = f"{job.problem} {format_args(job.args)}"
    output = kernel(clone_data(data))
    right, report = explain(data, output, picture, what, launches or (), job.inputs)
    missing = [] if launches is None or launches else [_no_launch(job)]
    checked = launches if launches and job.device == "emulator" else []
    failed, found = verdict(checked, job.strict, job.all_findings, not right)
    left_out = incomplete(checked) if checked else None
    message = "\n".join(filter(None, [*missing, found]))
    passed = right and not failed and not missing
    return Outcome("pass" if passed else "fail", message, report=report, incomplete=left_out)


def _load(job: Job) -> Callable[[Any], Any]:
    """custom_kernel, with the configuration that the job names, if it does."""
    kernel = load_kernel(Path(job.submission))
    if job.config:
        configs.fix(sys.modules["submission"], dict(job.config))
    return kernel


def _tune(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    """Rank configurations, or run with one of them."""
    module, data = sys.modules["submission"], _generate(job)
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
        return _benchmark(job, kernel)
    from harness.evaluator.case.modelled import model

    constants = dict(job.constants)
    found, _ = model(job.problem, kernel, data, constants=constants)
    return Outcome("pass", modelled=found) if found else Outcome("fail", _no_launch(job))


def _no_launch(job: Job) -> str:
    where = "in the emulator" if job.device == "emulator" else "through the Hopper runner"
    return NO_LAUNCH.format(where=where)


class SubmissionError(Exception):
    """The submission cannot be used at all; str() says why in one line."""


def load_kernel(path: Path) -> Callable[[Any], Any]:
    """custom_kernel of the file at `path`, imported as the module `submission`. Raises
    SubmissionError.
    """
    spec = importlib.util.spec_from_file_location("submission", path)
    if spec is None or spec.loader is None:
        raise SubmissionError(f"{path.name} is no Python file: its name does not end in .py")
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
    if job.device == "hopper":
        # The numbers that the emulator gets, so that results can be compared.
        from b200.hopper.pack import to_gpu

        data = to_gpu(data)
    return data


def _emulate(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    """In the emulator: test and leaderboard hold results against the reference under the checker,
    benchmark and profile with the clock, unless `job.check` is off. Every mode but test is timed.
    """
    import b200
    from harness.evaluator.case.gpu_data import on_gpu

    gpu = b200.install(check=job.check, schedule=job.schedule)
    kernel = on_gpu(kernel)
    if job.mode not in ("test", "leaderboard"):
        return _model(job, kernel, checked=bool(job.check))
    before, wrong, note = len(gpu.launches), "", ""
    begin = time.perf_counter()

    def checked() -> None:
        nonlocal note
        if job.mode == "test":
            note = _test_launching(job, kernel, lambda: None, gpu)
        else:
            recheck(job.problem, kernel, lambda s: _generate(job, s), job.seed)

    def again(failure: str) -> str:
        late = job.schedule or time.perf_counter() - begin > LONGEST or len(gpu.launches) == before
        return "" if late else right_by_timing(checked, failure)

    try:
        checked()
    except WrongResult as error:
        wrong = str(error)
    except b200.EmulatorError as error:
        first = str(error).partition("\n")[0]
        if error.kind in ("deadlock", "fault") and (said := again(first)):
            raise b200.EmulatorError(error.kind, f"{error}\n{said}", error.findings) from None
        raise
    launches = gpu.launches[before:]
    failed, remarks = verdict(launches, job.strict, job.all_findings, bool(wrong))
    left_out = incomplete(launches) if launches else None
    if wrong or failed:
        said = again("a wrong result") if wrong else ""
        message = "\n".join(filter(None, [wrong, said, remarks]))
        return Outcome("fail", message, incomplete=left_out)
    if job.mode == "test":
        message = "\n".join(filter(None, [note, remarks]))
        return Outcome("pass", message, incomplete=left_out)
    return _model(job, kernel, checked=False, status="pass")


def _model(job: Job, kernel: Callable[[Any], Any], checked: bool, status: str = "timed") -> Outcome:
    """The modelled time of a call. checked: its result is held against the reference; else the
    outcome has this status.
    """
    from harness.evaluator.case.modelled import UNCHECKED, model
    from reference import check_implementation
    from utils import clone_data

    outputs: list[Any] = []

    def kept(data: Any) -> Any:
        outputs.append(kernel(data))
        return outputs[-1]

    data = _generate(job)
    found, report = model(
        job.problem,
        kept,
        clone_data(data) if checked else data,
        job.trace,
        job.plot,
        f"{job.problem} {format_args(job.args)}",
        dict(job.constants),
        job.sweep_constants,
        arithmetic=checked,
    )
    if found is None:
        return Outcome("fail", _no_launch(job))
    report = report if job.mode == "profile" else ""
    if not checked:
        note = UNCHECKED if status == "timed" else ""
        return Outcome(status, note, modelled=found, report=report)
    right, message = check_implementation(data, outputs[0])
    if right:
        return Outcome("pass", modelled=found, report=report)
    return Outcome("fail", message, modelled=found if report else None, report=report)


def _test_launching(
    job: Job, kernel: Callable[[Any], Any], wait: Callable[[], None], gpu: Any
) -> str:
    """check_twice where each call has to launch something on `gpu`."""

    def counted(data: Any) -> Any:
        before = len(gpu.launches)
        output = kernel(data)
        if len(gpu.launches) == before:
            raise WrongResult(_no_launch(job))
        return output

    return check_twice(counted, lambda s: _generate(job, s), job.seed, wait)


def _on_hopper(job: Job) -> Outcome:
    """Every mode on a Hopper GPU: right or not. What it takes says nothing of a B200."""
    import torch

    import b200
    from b200.hopper.backend import HopperGpu

    gpu = b200.install(gpu=HopperGpu())
    kernel = _load(job)
    note = _test_launching(job, kernel, torch.cuda.synchronize, gpu)
    return Outcome("pass", note if job.mode == "test" else NOT_TIMED)


def _test(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    import torch

    wait = torch.cuda.synchronize
    note = check_twice(kernel, lambda s: _generate(job, s), job.seed, wait)
    return Outcome("pass", note)


def _benchmark(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    from reference import check_implementation

    bench = Bench(kernel, lambda seed: _generate(job, seed), check_implementation, CudaClock())
    bench.measure(plan(job.problem, job.mode, warmup=True), job.seed)
    stats = bench.measure(plan(job.problem, job.mode), job.seed)
    return Outcome("pass", stats=stats.as_dict())


def _profile(job: Job, kernel: Callable[[Any], Any]) -> Outcome:
    """torch's profiler on one call; under ncu (POPCORN_NCU set) only the call, in its NVTX
    range.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    # Compiles, and a wrong kernel is not worth a profile.
    call_and_check(kernel, _generate(job), torch.cuda.synchronize)
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
    stage = getattr(error, "stage", "")
    report = _emulator_error(error)
    if report:
        return stage + report
    try:
        text = _COLOUR.sub("", str(error)).strip()
    except Exception:
        text = "(its text cannot be had)"
    text = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."
    if isinstance(error, SubmissionError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if _in_submission(frame.filename)]
    where = ""
    if inside:
        where = f" ({Path(inside[-1].filename).name}:{inside[-1].lineno}, in {inside[-1].name})"
    said = f": {text}" if text else ""
    return f"{stage}{type(error).__name__}{said}{where}"


def _emulator_error(error: BaseException | None) -> str:
    """The emulator's own report, also where the DSL has wrapped it in an exception of its own; else
    empty.
    """
    if "b200" not in sys.modules:
        return ""
    from b200 import EmulatorError
    from b200.checker.finding import explained

    while error is not None:
        if isinstance(error, EmulatorError):
            text = str(error)
            text = text if text.startswith(f"{error.kind}:") else f"{error.kind}: {text}"
            kinds = error.kind, *(finding.kind for finding in error.findings)
            return "\n".join(filter(None, [text, explained(kinds)]))
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
