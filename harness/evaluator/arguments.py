"""The arguments of eval.py, checked before anything runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from b200 import pictures
from b200.chip import schedules
from harness.evaluator import devices
from task import INPUT_KINDS, PROBLEMS

MODES = ("test", "benchmark", "leaderboard", "profile", "diff", "tune")
MOST = {"random": 10_000, "smallest": 10_000, "jobs": 256, "timeout": 1e6, "configs": 10_000}
SUBMISSION = Path(__file__).resolve().parents[2] / "submission.py"


class UsageError(Exception):
    """Arguments that make no sense; str() is one line."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str], description: str | None) -> argparse.Namespace:
    """The arguments of a command line. Raises UsageError; exits after --help."""
    parser = _parser(description)
    arguments = parser.parse_intermixed_args(argv)  # also: test --case TEXT gemm
    for name, most in MOST.items():
        value = getattr(arguments, name)
        if value is not None and not 0 < value <= most:  # also not a number
            what = "positive" if not value > 0 else f"at most {most:,.0f}"
            parser.error(f"--{name} must be {what}, got {value}")
    if arguments.seed is not None and arguments.seed < 0:
        parser.error(f"--seed must not be negative, got {arguments.seed}")
    if arguments.quick and arguments.mode != "test":
        parser.error("--quick goes with test")
    _check_files(parser, arguments)
    if arguments.schedule:
        try:
            schedule = schedules.parse(arguments.schedule)
        except ValueError as error:
            parser.error(f"--schedule: {error}")
        if schedule.kind == "all" and not arguments.check:
            parser.error("--schedule all takes the checker, which --no-check leaves out")
    return arguments


def _check_files(parser: _Parser, arguments: argparse.Namespace) -> None:
    """What is written at the end must be writable at the beginning."""
    if arguments.trace and arguments.mode != "profile":
        parser.error("--trace goes with profile")
    if arguments.plot and arguments.mode not in ("profile", "diff", "tune"):
        parser.error("--plot goes with profile, diff and tune")
    for name in ("trace", "plot"):
        if not getattr(arguments, name):
            continue
        path = Path(getattr(arguments, name))
        folder = path.absolute().parent
        if path.is_dir():
            parser.error(f"--{name}: {path} is a folder")
        if not folder.is_dir():
            parser.error(f"--{name}: there is no folder {folder}")
        if not os.access(path if path.exists() else folder, os.W_OK):
            parser.error(f"--{name}: {path} cannot be written")
    if arguments.plot:
        try:
            pictures.check(Path(arguments.plot))
        except pictures.NoPicture as error:
            parser.error(f"--plot: {error}")


def _parser(description: str | None) -> _Parser:
    parser = _Parser(
        prog="eval.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
        "--smallest", type=int, metavar="N", help="of the official cases of each problem, N"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="test: of each problem the smallest official case and a random shape, a minute in all",
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
        "--output",
        action="store_true",
        help="show what every case printed, on stderr (default: of those that do not pass)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="profile in the emulator: timeline for ui.perfetto.dev (JSON)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="profile in the emulator: picture of one CTA's timeline; diff: map of what differs;"
        " tune: times of the configurations (.png, .svg, .pdf; .html: a page)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        default=True,
        help="emulator: look for races and protocol errors, which fail a case, and hold the results"
        " of benchmark and profile against the reference (default: on)",
    )
    parser.add_argument(
        "--check=all",
        dest="check",
        action="store_const",
        const="all",
        help="emulator: in each cluster, though it does what another has done",
    )
    parser.add_argument(
        "--no-check", dest="check", action="store_const", const=False, help="emulator: do not"
    )
    parser.add_argument(
        "--sweep-constants",
        action="store_true",
        help="emulator: the range beside a modelled time from two runs more, with all constants of"
        " the clock at their fast and at their slow ends (default: the clock's errors on published"
        " times of kernels of that kind)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="emulator: what the checker finds fails a case below the severity of an error, too,"
        " and so does what it did not look at",
    )
    parser.add_argument(
        "--all-findings",
        action="store_true",
        help="emulator: show everything that the checker found, of every severity",
    )
    parser.add_argument(
        "--schedule",
        metavar="ORDER",
        help="emulator: early, late or random:SEED, the order of warps and of completions; pdl:"
        " dependent launches overlap; all: whether any order of them ends in a deadlock"
        " (b200/explore)",
    )
    parser.add_argument(
        "--constants",
        type=Path,
        metavar="FILE",
        help="emulator: of its clock, as `python -m b200 measure --out` writes them",
    )
    parser.add_argument("--submission", default=str(SUBMISSION), metavar="FILE")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="a program that the submission may start (compilers always may); repeatable",
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds a case may take")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="cases at a time in the emulator (default: by cores)"
    )
    tune = parser.add_argument_group("tune")
    tune.add_argument(
        "-n",
        "--configs",
        type=int,
        default=8,
        metavar="N",
        help="configurations of each shape, the best by the kernel's estimate (default 8)",
    )
    tune.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a dask.distributed cluster that shares the work (extra dask)",
    )
    return parser
