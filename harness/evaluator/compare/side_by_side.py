"""Records of several submissions on the same cases, for compare: one list a submission, one record
a case, as `eval.py leaderboard --json` prints them.

On a GPU each submission is an `eval.py` of its own. In the emulator nothing is measured: all cases
of all submissions share one pool, what they import is imported once, and as many run at a time as
there are cores and memory for.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.evaluator import arguments as eval_arguments
from harness.evaluator import devices, made_by
from harness.evaluator.case.job import Job
from harness.evaluator.case.modelled import STRIP
from harness.evaluator.cases import Case, bytes_needed
from harness.evaluator.devices import Device
from harness.evaluator.jobs import jobs_of
from harness.evaluator.pool import Pool
from harness.evaluator.progress import Progress
from harness.evaluator.report import record

EVAL = Path(__file__).resolve().parents[3] / "eval.py"
CHECKER = "the checker found"  # begins the message of a case whose result is right (findings.py)
Record = dict[str, Any]


@dataclass(frozen=True)
class _Work:
    """A submission on a case. plot: where its timeline goes, "" for nowhere."""

    file: str
    case: Case
    plot: str


def measured(options: argparse.Namespace, file: str, chosen: Sequence[Case]) -> list[Record]:
    """One record a case of one submission, by an eval.py of its own. options: of compare."""
    records = _eval("leaderboard", options, file, chosen)
    again = objected(records)
    if again:
        timed = _eval("leaderboard", options, file, [chosen[i] for i in again], "--no-check")
        for i, found in zip(again, timed):
            records[i] = with_time(records[i], found)
    return records


def strip_file(folder: Path, index: int) -> Path:
    """Where `emulated` has the timeline of a submission (b200/clock/strip.py)."""
    return folder / f"{index}{STRIP}"


def emulated(
    options: argparse.Namespace, chosen: Sequence[Case], device: Device, folder: Path | None = None
) -> list[list[Record]]:
    """One list a submission: with --times the modelled times alone, else checked results and times.
    folder: where to write the timeline of each submission on the first case. Raises CaseError and
    SetupError.
    """
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that the cases' processes are ended
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # cases run side by side
    for case in chosen:
        devices.check_memory(case, device)
    devices.start_emulator()
    work = [
        _Work(file, case, str(strip_file(folder, i)) if folder and case is chosen[0] else "")
        for i, file in enumerate(options.files)
        for case in chosen
    ]
    mode, checks = ("benchmark", False) if options.times else ("leaderboard", True)
    found = _in_pool(options, work, mode, checks, device)
    if again := objected(found):
        timed = _in_pool(options, [work[i] for i in again], mode, False, device)
        for i, other in zip(again, timed):
            found[i] = with_time(found[i], other)
    return [found[i : i + len(chosen)] for i in range(0, len(found), len(chosen))]


def objected(records: Sequence[Record]) -> list[int]:
    """Which cases are right, but for what the checker says."""
    return [i for i, found in enumerate(records) if found["message"].startswith(CHECKER)]


def with_time(verdict: Record, timed: Record) -> Record:
    """A record that the checker objects to, with the time of another run."""
    if timed["status"] != "pass":
        return verdict
    return timed | {name: verdict[name] for name in ("status", "message")}


def _in_pool(
    options: argparse.Namespace,
    work: Sequence[_Work],
    mode: str,
    check: bool,
    device: Device,
) -> list[Record]:
    """The records, in the order of `work`; the largest cases are run first."""
    workers, threads = devices.parallel_cases(device, "test", None)
    order = sorted(range(len(work)), key=lambda i: -bytes_needed(work[i].case))
    jobs = [
        replace(_job(options, work[i], mode, device, threads), check=check, plot=work[i].plot)
        for i in order
    ]
    progress = Progress([f"{Path(work[i].file).name} {work[i].case.text}" for i in order])
    found: dict[int, Record] = {}
    try:
        with contextlib.closing(Pool(device.method, workers, progress.tick).run(jobs)) as outcomes:
            for i, outcome in zip(order, outcomes):
                by = functools.partial(made_by.modelled, Path(work[i].file))
                found[i] = record(work[i].case, outcome, device, mode, by)
    finally:
        progress.clear()
    return [found[i] for i in range(len(work))]


def _job(options: argparse.Namespace, work: _Work, mode: str, device: Device, threads: int) -> Job:
    """What eval.py would tell the process of this case."""
    told = eval_arguments.parse(_command(mode, options, work.file, [work.case]), "")
    (job,) = jobs_of(told, [work.case], device, threads)
    return job


def _command(
    mode: str, options: argparse.Namespace, file: str, chosen: Sequence[Case]
) -> list[str]:
    """The arguments of eval.py."""
    problem = ["--problem", options.own] if options.own else [options.problem.short]
    command = [mode, *problem, "--json", "--submission", file]
    command += ["--device", options.device, "--inputs", options.inputs]
    if options.timeout:
        command += ["--timeout", str(options.timeout)]
    for case in chosen:
        command += ["--case", case.text]
    return command


def _eval(
    mode: str, options: argparse.Namespace, file: str, chosen: Sequence[Case], *more: str
) -> list[Record]:
    """One record a case of eval.py on a submission, whatever becomes of it."""
    command = [sys.executable, str(EVAL), *_command(mode, options, file, chosen), *more]
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, text=True)
        said.seek(0)
        last = [line for line in said.read().splitlines() if line.strip()][-1:]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    missing = {
        "status": "error",
        "message": f"no result (exit status {done.returncode}): {''.join(last)}",
    }
    return records + [missing] * (len(chosen) - len(records))
