"""Is the kernel right, and how fast is it? On a B200 it is measured; elsewhere it runs in a
software B200, or on a Hopper GPU with only the tensor core in software.

    python eval.py test                              the official test cases of all four problems
    python eval.py test gemv group --random 12       random legal shapes of two of them
    python eval.py benchmark nvfp4_gemm              the benchmark cases of one
    python eval.py diff gemm --case "m: 128; n: 256; k: 256; l: 1"    where the result differs
    python eval.py profile gemm --case "m: 128; n: 256; k: 256; l: 1"
    python eval.py qualify                           everything this machine can tell, in a report
    python eval.py compare A.py B.py gemm            submissions side by side
    python eval.py official FOLDER test              an organiser's problem folder in its own way
    python eval.py leaderboard cases.txt             as the leaderboards' runner calls it, which
                                                     sets POPCORN_FD

Exit status: 0 all right, 2 bad arguments or set-up, 110 CUDA error, 111 no pipe, 112 wrong result
or error, 113 bad case file of the runner, 114 timeout.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from b200.chip import schedules
from harness import cases, devices, protocol
from harness.cases import Case, CaseError
from harness.devices import Device, SetupError
from harness.pool import Pool
from harness.report import JsonReport, Progress, TextReport
from harness.worker import Job, Outcome
from task import INPUT_KINDS, PROBLEMS, SEED, Problem, find_problem

HERE = Path(__file__).resolve().parent
MODES = ("test", "benchmark", "leaderboard", "profile", "diff")
COMMANDS = {  # with arguments of their own
    "compare": "harness.compare",
    "official": "harness.official",
    "--official": "harness.official",
    "qualify": "harness.qualify.run",
}
TIMEOUT = {
    "test": 180,
    "benchmark": 300,
    "leaderboard": 300,
    "profile": 300,
    "diff": 300,
}  # seconds a case, on a GPU
TIMEOUT_EMULATED = 600


class UsageError(Exception):
    """Arguments that make no sense; str() is one line."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    names = ", ".join(p.short for p in PROBLEMS.values())
    parser.add_argument(
        "what", nargs="*", metavar="PROBLEM|CASEFILE", help=f"{names} or full names; all by default"
    )
    parser.add_argument(
        "--problem", help="the problem of a case file or of --case, where its keys do not tell"
    )
    parser.add_argument("--device", choices=devices.CHOICES, default="auto")
    parser.add_argument(
        "--case",
        action="append",
        metavar="TEXT",
        help="a case, as a line of a case file; repeatable",
    )
    parser.add_argument("--cases", metavar="FILE", help="a case file")
    parser.add_argument(
        "--random",
        type=int,
        metavar="N",
        help="N random legal shapes a problem; --seed varies them",
    )
    parser.add_argument(
        "--inputs",
        choices=INPUT_KINDS,
        default="official",
        help="values of the inputs (default official)",
    )
    parser.add_argument(
        "--seed", type=int, help="mixed into the seed of every case, as the runner's secret seed is"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a case on stdout, and nothing else"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="profile in the emulator: timeline for ui.perfetto.dev (JSON)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="profile in the emulator: picture of one SM's timeline; diff: of what differs (PNG)",
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="emulator: look for races and protocol errors, which fail a case (default: on)",
    )
    parser.add_argument(
        "--schedule",
        metavar="ORDER",
        help="emulator: early, late or random:SEED, the order of warps and of completions",
    )
    parser.add_argument("--submission", default=str(HERE / "submission.py"), metavar="FILE")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds a case may take")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="cases at a time in the emulator (default: by cores)"
    )
    arguments = parser.parse_args(argv)
    for name in ("random", "jobs", "timeout"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} must be positive, got {value}")
    if arguments.trace and arguments.mode != "profile":
        parser.error("--trace goes with profile")
    if arguments.plot and arguments.mode not in ("profile", "diff"):
        parser.error("--plot goes with profile and diff")
    if arguments.schedule:
        try:
            schedules.parse(arguments.schedule)
        except ValueError as error:
            parser.error(f"--schedule: {error}")
    if arguments.seed is not None and arguments.seed < 0:
        parser.error(f"--seed must not be negative, got {arguments.seed}")
    return arguments


def _select(arguments: argparse.Namespace, secret: int | None) -> list[Case]:
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
    if lines and arguments.random:
        raise UsageError(
            "--random makes its own shapes; it cannot be combined with --case or a case file"
        )
    if lines:
        return cases.with_secret(_given(lines, problems), secret)
    problems = problems or list(PROBLEMS.values())
    if arguments.random:
        seed = SEED if secret is None else secret
        return [case for p in problems for case in cases.random_cases(p, arguments.random, seed)]
    return cases.with_secret(
        [case for p in problems for case in cases.official(p, arguments.mode)], secret
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


def _numbered(name: str | None, index: int, count: int) -> str:
    """Absolute file name for one of `count` cases: out.json, or out.0.json of several."""
    if not name:
        return ""
    path = Path(name).resolve()
    return str(path if count == 1 else path.with_suffix(f".{index}{path.suffix}"))


def _run(
    arguments: argparse.Namespace, chosen: list[Case], device: Device, reports: list
) -> list[Outcome]:
    """Run the cases, each in its own process, and hand the outcomes to the reports in order."""
    workers, threads = devices.parallel_cases(device, arguments.mode, arguments.jobs)
    submission = str(Path(arguments.submission).resolve())
    jobs = [
        Job(
            arguments.mode,
            device.kind,
            case.problem.name,
            dict(case.args),
            arguments.inputs,
            submission,
            threads,
            _numbered(arguments.trace, i, len(chosen)),
            _numbered(arguments.plot, i, len(chosen)),
            arguments.check,
            arguments.schedule,
        )
        for i, case in enumerate(chosen)
    ]
    timeout = arguments.timeout or (
        TIMEOUT[arguments.mode] if device.kind == "cuda" else TIMEOUT_EMULATED
    )
    progress = Progress(chosen)
    pipes = [report.descriptor for report in reports if isinstance(report, protocol.PopcornReport)]
    pool = Pool(device.method, workers, timeout, progress.tick, close=pipes)
    outcomes = []
    for report in reports:
        report.begin(chosen)
    with contextlib.closing(pool.run(jobs)) as results:
        for case, outcome in zip(chosen, results):
            progress.clear()
            outcomes.append(outcome)
            for report in reports:
                report.add(case, outcome)
            if any(getattr(report, "stop", False) for report in reports):
                break
    progress.clear()
    for report in reports:
        report.end()
    return outcomes


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    if argv and argv[0] in COMMANDS:
        return importlib.import_module(COMMANDS[argv[0]]).main(list(argv[1:]))
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that the cases' processes are ended, too
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")  # as the leaderboards have it
    pipe = os.environ.pop("POPCORN_FD", None)
    secret = os.environ.pop("POPCORN_SEED", None)
    try:
        arguments = _arguments(argv)
        if secret and not secret.isdigit():
            raise UsageError(f"POPCORN_SEED must be a number, got {secret!r}")
        chosen = _select(arguments, int(secret) if secret else arguments.seed)
        if not Path(arguments.submission).is_file():
            raise UsageError(f"no submission at {arguments.submission}")
        reports: list = [protocol.PopcornReport(pipe, arguments.mode)] if pipe else []
        if (
            arguments.mode == "test" and len(chosen) > 1
        ):  # cases run side by side: numpy need not be parallel itself
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        device = devices.resolve(arguments.device)
        if device.kind == "emulator":
            devices.start_emulator()
        reports.append((JsonReport if arguments.json else TextReport)(device, arguments.mode))
        return protocol.exit_code(_run(arguments, chosen, device, reports))
    except (UsageError, SetupError, CaseError, protocol.PipeError) as error:
        print(f"eval.py: {error}", file=sys.stderr)
        if isinstance(error, protocol.PipeError):
            return protocol.NO_PIPE
        return protocol.BAD_CASES if pipe and isinstance(error, CaseError) else protocol.USAGE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
