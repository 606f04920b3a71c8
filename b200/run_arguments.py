"""The arguments of `b200 run`, checked before anything runs: options, then the program, then what
is the program's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from b200.command_line import Parser, writable_folder
from b200.reports import options as report_options

USAGE = """b200 run [options] SCRIPT.py [arguments of the script]
       b200 run [options] -m MODULE [arguments of the module]
       b200 run [options] PROGRAM.cu [arguments of the program]
       b200 run [options] - [arguments of the script on stdin]"""
SUITES = ("pytest", "unittest")  # a suite that fails is not run a second time
DESCRIPTION = """Run a program with a B200 in software in place. Options stand before the program;
what stands behind it is the program's. A `--` right behind it is left out."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; `script` or `module`, the other one empty; its `arguments`. Exits with status 2
    and a line where they make no sense.
    """
    parser = _parser()
    options, program = parser.parse_own(argv)
    if wrong := contradiction(options):
        parser.error(wrong)
    options.script, options.module = "", ""
    if program[:1] == ["-m"]:
        if len(program) < 2:
            parser.error("-m takes the name of a module")
        options.module, arguments = program[1], program[2:]
    elif program:
        options.script, arguments = program[0], program[1:]
    else:
        parser.error("a program is missing: SCRIPT.py, PROGRAM.cu, or -m and a module; - is stdin")
    if options.again is None:
        options.again = options.module not in SUITES
    options.arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
    return options


def contradiction(options: argparse.Namespace) -> str:
    """What is wrong with options that do not go together, "" if nothing is."""
    unchecked = "--time" if options.time else "" if options.check else "--no-check"
    if options.constants is not None and not options.time:
        return "--constants are of the clock: add --time"
    if options.schedule and options.time:
        return "--schedule does not go with --time"
    if options.schedule == "all" and not options.check:
        return "--schedule all needs the checker: leave out --no-check"
    if options.strict and unchecked:
        return f"--strict needs the checker: leave out {unchecked}"
    return ""


def _parser() -> Parser:
    parser = Parser("b200 run", DESCRIPTION)
    parser.usage = USAGE
    add_checks(parser)
    _add_ends(parser)
    _add_places(parser)
    parser.add_argument(
        "--ptx",
        type=writable_folder,
        metavar="FOLDER",
        help="write the PTX of each module that is launched from, or fails, to a file there",
    )
    report_options.add_to(parser)
    return parser


def add_checks(parser: Parser) -> None:
    """How launches run, and what is shown of them."""
    parser.add_argument(
        "--check",
        action="store_true",
        default=True,
        help="look for races and protocol errors (default)",
    )
    parser.add_argument(
        "--check=all",
        dest="check",
        action="store_const",
        const="all",
        help="check every cluster, also those that repeat what a checked one has done",
    )
    parser.add_argument(
        "--no-check", dest="check", action="store_const", const=False, help="do not check"
    )
    parser.add_argument(
        "--schedule",
        type=_schedule,
        metavar="ORDER",
        help="another order of warps and completions: early, late or random:SEED; pdl: dependent"
        " launches overlap; all: search for an order that ends in a deadlock",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 also for remarks, and where a part could not be checked",
    )
    parser.add_argument(
        "--all-findings",
        action="store_true",
        help="show all findings of a launch (default: the first, the gravest)",
    )
    parser.add_argument(
        "--time", action="store_true", help="model the time of each launch; nothing is checked"
    )


def _add_ends(parser: Parser) -> None:
    parser.add_argument(
        "--may-launch-nothing",
        action="store_true",
        help="status 0 also for a file that defines functions and calls none of them",
    )
    parser.add_argument(
        "--again",
        action=argparse.BooleanOptionalAction,
        help="run a program that fails once more with --schedule late (default, but of -m pytest)",
    )


def _add_places(parser: Parser) -> None:
    parser.add_argument(
        "--with",
        dest="sources",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a further source file of a CUDA program; repeatable",
    )
    parser.add_argument(
        "--constants",
        type=_constants,
        metavar="FILE",
        help="with --time: constants of the clock, as `eval.py measure --out` writes them",
    )


def _schedule(text: str) -> str:
    from b200.chip import schedules

    try:
        return str(schedules.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _constants(text: str) -> dict[str, float]:
    from b200.clock.overrides import read_file

    try:
        return read_file(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
