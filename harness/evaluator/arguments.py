"""The arguments of eval.py, checked before anything runs."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path

from b200 import pictures
from b200.command_line import Parser, unwritable
from harness.evaluator import devices
from task import INPUT_KINDS, PROBLEMS

MODES = ("test", "benchmark", "leaderboard", "profile", "diff", "tune")
# Commands with arguments of their own.
OTHERS = ("compare", "lint", "official", "qualify", "ladder")
MOST = {"random": 10_000, "smallest": 10_000, "jobs": 256, "timeout": 1e6, "configs": 10_000}
TIMEOUT = {
    "test": 180.0,
    "benchmark": 300.0,
    "leaderboard": 300.0,
    "profile": 300.0,
    "diff": 300.0,
    "tune": 300.0,
}  # seconds a case, on a GPU
TIMEOUT_EMULATED = 900.0
SUBMISSION = Path(__file__).resolve().parents[2] / "submission.py"


class UsageError(Exception):
    """Arguments that make no sense; str() is one line."""


def parse(argv: Sequence[str], description: str | None) -> argparse.Namespace:
    """The arguments of a command line. Raises UsageError; exits after --help."""
    parser = _parser(description)
    arguments = parser.parse_intermixed_args(argv)  # also: test --case TEXT gemm
    if arguments.mode not in MODES:
        parser.error(_no_command(arguments.mode))
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
        from b200.chip import schedules

        try:
            schedule = schedules.parse(arguments.schedule)
        except ValueError as error:
            parser.error(f"--schedule: {error}")
        if schedule.kind == "all" and not arguments.check:
            parser.error("--schedule all needs the checker; leave out --no-check")
    return arguments


def _no_command(name: str | None) -> str:
    known = ", ".join((*MODES, *OTHERS))
    if name is None:
        return f"a command is missing: one of {known}; see --help"
    if name in OTHERS:
        return f"{name} comes first, and has options of its own: eval.py {name} --help"
    near = difflib.get_close_matches(name, (*MODES, *OTHERS), 1)
    hint = f"did you mean {near[0]}? " if near else _without_command(name)
    return f"no command is called {name!r}: {hint}there are {known}; see --help"


def _without_command(name: str) -> str:
    """What to type for what stands where a command should."""
    if name.endswith(".py"):
        return f"a file is tested by eval.py test --submission {name}; "
    if name in {known for p in PROBLEMS.values() for known in (p.short, p.name)}:
        return f"a problem comes after the command: eval.py test {name}; "
    return ""


def _check_files(parser: Parser, arguments: argparse.Namespace) -> None:
    """What is written at the end must be writable at the beginning."""
    if arguments.trace and arguments.mode != "profile":
        parser.error("--trace goes with profile")
    if arguments.plot and arguments.mode not in ("profile", "diff", "tune"):
        parser.error("--plot goes with profile, diff and tune")
    for name in ("trace", "plot"):
        if not getattr(arguments, name):
            continue
        if why := unwritable(Path(getattr(arguments, name))):
            parser.error(f"--{name}: {why}")
    if arguments.plot:
        try:
            pictures.check(Path(arguments.plot))
        except pictures.NoPicture as error:
            parser.error(f"--plot: {error}")


def _parser(description: str | None) -> Parser:
    parser = Parser("eval.py", description, UsageError)
    parser.add_argument(
        "mode",
        nargs="?",
        metavar="COMMAND",
        help=f"{', '.join(MODES)}; qualify, compare, ladder and official have options of their own:"
        " `eval.py compare --help`",
    )
    names = ", ".join(p.short for p in PROBLEMS.values())
    parser.add_argument(
        "what", nargs="*", metavar="PROBLEM|CASEFILE", help=f"{names} or full names; all by default"
    )
    _add_cases(parser.add_argument_group("which cases"))
    _add_running(parser.add_argument_group("where and how they run"))
    _add_output(parser.add_argument_group("what is shown"))
    _add_emulator(parser.add_argument_group("in the emulator"))
    _add_tune(parser.add_argument_group("tune"))
    return parser


def _add_cases(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--case",
        action="append",
        metavar="TEXT",
        help="a case, written as a line of a case file; repeatable",
    )
    group.add_argument("--cases", metavar="FILE", help="a case file")
    group.add_argument(
        "--problem",
        metavar="NAME|FILE.py",
        help="the problem of --case or of a case file, if its keys do not tell; or one of your own:"
        " a file with CASES, inputs and reference (docs/own-problem.md)",
    )
    group.add_argument(
        "--quick",
        action="store_true",
        help="test: the smallest official case and a random shape of each problem; takes a minute",
    )
    group.add_argument(
        "--smallest", type=int, metavar="N", help="the N smallest official cases of each problem"
    )
    group.add_argument(
        "--random",
        type=int,
        metavar="N",
        help="N random legal shapes of each problem; --seed varies them",
    )
    group.add_argument(
        "--inputs",
        choices=INPUT_KINDS,
        default="official",
        help="the values: the leaderboards' (default), real matrices quantised to NVFP4, or every"
        " code and scale",
    )
    group.add_argument(
        "--seed", type=int, help="is mixed into the seed of every case, as the runner's secret seed"
    )


def _add_running(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--device",
        choices=devices.CHOICES,
        default="auto",
        help="auto (default): a B200, else a Hopper GPU, else the emulator; cuda: any CUDA GPU",
    )
    group.add_argument(
        "--submission",
        default=str(SUBMISSION),
        metavar="FILE",
        help="the file with custom_kernel (default: submission.py of the checkout)",
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="a program that the submission may start (compilers always may); repeatable",
    )
    group.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help=f"seconds that a case may take (default: in the emulator {TIMEOUT_EMULATED:g};"
        f" on a GPU {TIMEOUT['test']:g} for test, {TIMEOUT['tune']:g} otherwise)",
    )
    group.add_argument(
        "--jobs", type=int, metavar="N", help="cases at a time in the emulator (default: by cores)"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", action="store_true", help="one JSON object a case on stdout, and nothing else"
    )
    group.add_argument(
        "--output",
        action="store_true",
        help="show on stderr what each case printed (default: only of cases that fail)",
    )
    group.add_argument(
        "--plot",
        metavar="FILE",
        help="a picture (.png, .svg, .pdf or .html); profile in the emulator: one CTA's timeline;"
        " diff: where c is wrong; tune: times of the configurations",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="profile in the emulator: the timeline as JSON for ui.perfetto.dev",
    )


def _add_emulator(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--check",
        action="store_true",
        default=True,
        help="look for races and protocol errors, and compare the results of benchmark and profile"
        " with the reference (default)",
    )
    group.add_argument(
        "--check=all",
        dest="check",
        action="store_const",
        const="all",
        help="check every cluster, also those that repeat what a checked one has done",
    )
    group.add_argument(
        "--no-check",
        dest="check",
        action="store_const",
        const=False,
        help="do not check; benchmark and profile then say `timed` instead of `pass`",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="remarks of the checker fail a case, too, and so does a part that it could not check",
    )
    group.add_argument(
        "--all-findings",
        action="store_true",
        help="show all findings and remarks of the checker, also of cases that pass",
    )
    group.add_argument(
        "--schedule",
        metavar="ORDER",
        help="another order of warps and completions: early, late or random:SEED; pdl: dependent"
        " launches overlap; all: search for an order that ends in a deadlock",
    )
    group.add_argument(
        "--constants",
        type=Path,
        metavar="FILE",
        help="constants of the clock, as `eval.py measure --out` writes them",
    )
    group.add_argument(
        "--sweep-constants",
        action="store_true",
        help="the range beside a modelled time comes from two more runs, with all constants of the"
        " clock at their fast and at their slow ends (default: from the clock's errors on published"
        " times of similar kernels)",
    )


def _add_tune(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-n",
        "--configs",
        type=int,
        default=8,
        metavar="N",
        help="time N configurations of each shape: the pick, the plainest, the best by the kernel's"
        " estimate of each other kind, then others by estimate (default 8)",
    )
    group.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="share the work with a dask.distributed cluster (extra `dask`)",
    )
