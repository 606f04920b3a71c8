"""eval.py as a command: which cases, on what, and what becomes of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from b200.clock.overrides import read_file
from harness.evaluator import cases, devices, protocol, trials
from harness.evaluator.arguments import UsageError, parse
from harness.evaluator.case.worker import Job, Outcome
from harness.evaluator.cases import Case, CaseError
from harness.evaluator.dask_cluster import Cluster
from harness.evaluator.devices import Device, SetupError
from harness.evaluator.pool import Pool
from harness.evaluator.progress import Progress
from harness.evaluator.report import JsonReport, TextReport
from task import PROBLEMS, SEED, Problem, find_problem

TIMEOUT = {
    "test": 180.0,
    "benchmark": 300.0,
    "leaderboard": 300.0,
    "profile": 300.0,
    "diff": 300.0,
    "tune": 300.0,
}  # seconds a case, on a GPU
TIMEOUT_EMULATED = 900.0
INTERRUPTED, NO_READER = 130, 141  # as a shell reports SIGINT and SIGPIPE


def select(arguments: argparse.Namespace, secret: int | None) -> list[Case]:
    """The cases that the arguments ask for. Raises UsageError or CaseError."""
    files = [name for name in arguments.what if Path(name).is_file()]
    names = [name for name in arguments.what if name not in files]
    files += [arguments.cases] if arguments.cases else []
    try:
        problems = [find_problem(name) for name in dict.fromkeys(names)]
        named = arguments.problem or os.environ.get("NVFP4_PROBLEM")
        problems += [find_problem(named)] if named and not problems else []
    except ValueError as error:
        raise UsageError(f"{error}; or a case file that exists") from None
    lines = list(arguments.case or [])
    for file in files:
        lines += cases.read_lines(Path(file))
    for name in ("random", "smallest", "quick"):
        if lines and getattr(arguments, name):
            raise UsageError(
                f"--{name} has its own shapes; it cannot be combined with --case or a case file"
            )
    if lines:
        return cases.with_secret(_given(lines, problems), secret)
    problems = problems or list(PROBLEMS.values())
    seed = SEED if secret is None else secret
    if arguments.quick:
        return [case for p in problems for case in cases.quick(p, seed)]
    if arguments.random:
        return [case for p in problems for case in cases.random_cases(p, arguments.random, seed)]
    return cases.with_secret(
        [c for p in problems for c in cases.official(p, arguments.mode, arguments.smallest)],
        secret,
    )


def _given(lines: Sequence[str], problems: Sequence[Problem]) -> list[Case]:
    """Cases given as text, for the one problem that is named or can be told from them."""
    if len(problems) > 1:
        raise UsageError(
            f"cases belong to one problem; {', '.join(p.name for p in problems)} were named"
        )
    parsed = [cases.parse(line) for line in lines]
    problem = problems[0] if problems else cases.infer_problem(parsed)
    return [cases.make_case(problem, args, line) for args, line in zip(parsed, lines)]


def timeout(arguments: argparse.Namespace, device: Device) -> float:
    """Seconds that a case may take."""
    usual = TIMEOUT[arguments.mode] if device.kind == "cuda" else TIMEOUT_EMULATED
    return arguments.timeout or usual


def _numbered(name: str | None, index: int, count: int) -> str:
    """A file name for one of `count` cases, absolute: out.json, or out.0.json where there are
    several.
    """
    if not name:
        return ""
    path = Path(name).resolve()
    return str(path if count == 1 else path.with_suffix(f".{index}{path.suffix}"))


def _constants(path: Path | None) -> tuple[tuple[str, float], ...]:
    """Of the clock, from a file. Raises UsageError."""
    try:
        return tuple(read_file(path).items()) if path else ()
    except ValueError as error:
        raise UsageError(f"--constants: {error}") from None


def _jobs(arguments: argparse.Namespace, chosen: list[Case], device: Device, threads: int):
    constants = _constants(arguments.constants)
    return [
        Job(
            mode=arguments.mode,
            device=device.kind,
            problem=case.problem.name,
            args=dict(case.args),
            inputs=arguments.inputs,
            submission=str(Path(arguments.submission).resolve()),
            timeout=timeout(arguments, device),
            threads=threads,
            trace=_numbered(arguments.trace, i, len(chosen)),
            plot=_numbered(arguments.plot, i, len(chosen)),
            check=arguments.check,
            schedule=arguments.schedule,
            strict=arguments.strict,
            all_findings=arguments.all_findings,
            allowed=tuple(arguments.allow),
            sweep_constants=arguments.sweep_constants,
            constants=constants,
        )
        for i, case in enumerate(chosen)
    ]


def run(
    arguments: argparse.Namespace, chosen: list[Case], device: Device, reports: list
) -> list[Outcome]:
    """Run the cases, each in its own process, and hand the outcomes to the reports in order.

    Where this is interrupted, what is finished is handed over before the exception goes on.
    """
    workers, threads = devices.parallel_cases(device, arguments.mode, arguments.jobs)
    jobs = _jobs(arguments, chosen, device, threads)
    progress = Progress([f"{case.problem.short} {case.text}" for case in chosen])
    pipes = [report.descriptor for report in reports if isinstance(report, protocol.PopcornReport)]
    pool = Pool(device.method, workers, progress.tick, close=pipes)
    outcomes: list[Outcome] = []

    def hand_over(case: Case, outcome: Outcome) -> None:
        progress.clear()
        outcomes.append(outcome)
        for report in reports:
            report.add(case, outcome)

    for report in reports:
        report.begin(chosen)
    try:
        with contextlib.closing(pool.run(jobs)) as results:
            for case, outcome in zip(chosen, results):
                hand_over(case, outcome)
                if any(getattr(report, "stop", False) for report in reports):
                    break
    except (KeyboardInterrupt, SystemExit):
        for index, outcome in sorted(pool.finished.items()):
            hand_over(chosen[index], outcome)
        raise
    finally:
        progress.clear()
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            for report in reports:
                report.end()
    return outcomes


def _tune(arguments: argparse.Namespace, chosen: list[Case], device: Device) -> int:
    """The pick of each case against other configurations (harness/evaluator/trials.py)."""
    if device.kind == "hopper":
        raise SetupError("tune measures on a B200 or models: name --device emulator")
    workers, threads = devices.parallel_cases(device, arguments.mode, arguments.jobs)
    progress: list[Progress] = []

    def pool(names: Sequence[str]) -> Pool | Cluster:
        progress.append(Progress(names))
        if arguments.scheduler:
            return Cluster(arguments.scheduler, progress[-1].tick)
        return Pool(device.method, workers, progress[-1].tick)

    show = trials.show(device, arguments.json)

    def report(tuned: trials.Tuned) -> None:
        progress[-1].clear()
        show(tuned)

    jobs = _jobs(arguments, chosen, device, threads)
    try:
        found = trials.run(jobs, chosen, arguments.configs, pool, report)
    finally:
        for shown in progress:
            shown.clear()
    if arguments.plot:
        trials.draw(found, device, Path(arguments.plot).resolve())
    return protocol.exit_code([tuned.outcome for tuned in found])


def main(argv: Sequence[str], description: str | None = None) -> int:
    """The command. Returns the exit status."""
    # So that the cases' processes are ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")  # as the leaderboards have it
    pipe = os.environ.pop("POPCORN_FD", None)
    secret = os.environ.pop("POPCORN_SEED", None)
    try:
        return _main(argv, description, pipe, secret)
    except (UsageError, SetupError, CaseError, protocol.PipeError) as error:
        print(f"eval.py: {error}", file=sys.stderr)
        if isinstance(error, protocol.PipeError):
            return protocol.NO_PIPE
        return protocol.BAD_CASES if pipe and isinstance(error, CaseError) else protocol.USAGE
    except KeyboardInterrupt:
        print("eval.py: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in its buffer goes there
        print("eval.py: stopped, since nobody reads the output any more", file=sys.stderr)
        return NO_READER


def _main(argv: Sequence[str], description: str | None, pipe: str | None, secret: str | None):
    arguments = parse(argv, description)
    if secret and not (secret.isascii() and secret.isdigit() and len(secret) < 100):
        raise UsageError(f"POPCORN_SEED must be a number, got {secret[:50]!r}")
    chosen = select(arguments, int(secret) if secret else arguments.seed)
    if not Path(arguments.submission).is_file():
        raise UsageError(f"no submission at {arguments.submission}")
    reports: list = [protocol.PopcornReport(pipe, arguments.mode)] if pipe else []
    if len(chosen) > 1 and arguments.mode in ("test", "tune"):
        # Cases run side by side: numpy need not be parallel itself.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    device = devices.resolve(arguments.device)
    if arguments.constants and device.kind != "emulator":
        raise UsageError(f"--constants is of the emulator's clock; this is {device.name}")
    for case in chosen:
        devices.check_memory(case, device)
    if device.kind == "emulator":
        devices.start_emulator()
    if arguments.mode == "tune":
        return _tune(arguments, chosen, device)
    kind = JsonReport if arguments.json else TextReport
    reports.append(kind(device, arguments.mode, show_output=arguments.output))
    return protocol.exit_code(run(arguments, chosen, device, reports))
