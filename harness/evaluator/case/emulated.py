"""A case in the emulator: its result is held against the reference under the checker, or its time
is modelled.

A case that fails runs once more, with completions as late as they may come. Asynchronous operations
complete at once by default. A kernel that does not wait for one of them may be right on a GPU,
where others are late, and wrong here; or the reverse.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness.evaluator.case.findings import incomplete, verdict
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.launches import no_launch
from harness.evaluator.case.loading import make_inputs
from harness.evaluator.case.modelled import UNCHECKED, model
from harness.evaluator.case.timing import WrongResult
from harness.evaluator.cases import format_args

Kernel = Callable[[Any], Any]
LATE = "late"  # of --schedule
LONGEST = 60.0  # seconds of a check that is worth another


def start(job: Job, kernel: Kernel) -> tuple[Any, Kernel]:
    """Install the emulator with the checker and the order that the job asks for. Returns it, and
    `kernel` for CPU data.
    """
    import b200
    from harness.evaluator.case.gpu_data import on_gpu

    return b200.install(check=job.check, schedule=job.schedule), on_gpu(kernel)


def keeping_stores(job: Job, kernel: Kernel) -> tuple[list[Any], Kernel]:
    """As `start`, where it is known afterwards who has stored what: the launches, and `kernel`."""
    from b200.checker import Checker

    gpu, kernel = start(job, kernel)
    if (checker := gpu.machine.watcher(Checker)) is not None:
        checker.keep_stores = True
    return gpu.launches, kernel


def explained(job: Job, launches: list[Any] | None, right: bool, report: str) -> Outcome:
    """Of a case whose output was compared. launches: None on a B200, where none are seen."""
    missing = [] if launches is None or launches else [no_launch(job)]
    checked = launches if launches and job.device == "emulator" else []
    failed, found = verdict(checked, job.strict, job.all_findings, not right)
    left_out = incomplete(checked) if checked else None
    message = "\n".join(filter(None, [*missing, found]))
    passed = right and not failed and not missing
    return Outcome("pass" if passed else "fail", message, report=report, incomplete=left_out)


def check(job: Job, gpu: Any, run: Callable[[], str]) -> Outcome:
    """Whether a case is right, and what the checker finds in it. run: makes the calls; raises
    WrongResult, and returns what there is to remark.
    """
    import b200

    before, wrong, note = len(gpu.launches), "", ""
    begin = time.perf_counter()

    def again(failure: str) -> str:
        late = job.schedule or time.perf_counter() - begin > LONGEST or len(gpu.launches) == before
        return "" if late else right_by_timing(run, failure)

    try:
        note = run()
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
    message = "\n".join(filter(None, [note, remarks]))
    return Outcome("pass", message, incomplete=left_out)


def right_by_timing(check: Callable[[], object], failure: str) -> str:
    """What to say of a case that ends with `failure` and is right with --schedule late, "" if it is
    not. check: runs the case, raises if its result is wrong.
    """
    # wrong once more in the usual order: else it is a state of the submission that has changed
    if not _passes(check, LATE) or _passes(check, None):
        return ""
    return (
        f"right by timing: the usual order ends with {failure}; with --schedule {LATE}, where"
        " asynchronous operations complete as late as they may, the case is right. A GPU's timing"
        " decides which of the two it does"
    )


def _passes(check: Callable[[], object], schedule: str | None) -> bool:
    import b200

    b200.install(check=False, schedule=schedule)
    try:
        check()
    except (WrongResult, b200.EmulatorError):
        return False
    return True


def time_call(job: Job, kernel: Kernel, checked: bool, status: str = "timed") -> Outcome:
    """The modelled time of a call. checked: its result is held against the reference; else the
    outcome has this status.
    """
    from reference import check_implementation
    from utils import clone_data

    outputs: list[Any] = []

    def kept(data: Any) -> Any:
        outputs.append(kernel(data))
        return outputs[-1]

    data = make_inputs(job)
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
        return Outcome("fail", no_launch(job))
    report = report if job.mode == "profile" else ""
    if found["unwritten"]:
        return Outcome("error", found["unwritten"], modelled=found, report=report)
    if not checked:
        note = UNCHECKED if status == "timed" else ""
        return Outcome(status, note, modelled=found, report=report)
    right, message = check_implementation(data, outputs[0])
    if right:
        return Outcome("pass", message, modelled=found, report=report)
    return Outcome("fail", message, modelled=found if report else None, report=report)
