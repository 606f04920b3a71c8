"""The arguments of `b200 run`, checked before anything runs: options, then the program, then what
is the program's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    add = parser.add_argument
    nothing = "status 0 also for a file that defines functions and calls none of them"
    add("--may-launch-nothing", action="store_true", help=nothing)
    again = "run a program that fails once more with --schedule late (default, but of -m pytest)"
    add("--again", action=argparse.BooleanOptionalAction, help=again)
    file = "a further source file of a CUDA program; repeatable"
    more: dict[str, Any] = {"action": "append", "default": [], "metavar": "FILE"}
    add("--with", dest="sources", type=Path, help=file, **more)
    constants = "with --time: constants of the clock, as `eval.py measure --out` writes them"
    add("--constants", type=_constants, metavar="FILE", help=constants)
    ptx = "write the PTX of each module that is launched from, or fails, to a file there"
    add("--ptx", type=writable_folder, metavar="FOLDER", help=ptx)
    report_options.add_to(parser)
    return parser


def add_checks(parser: Parser) -> None:
    """How launches run, and what is shown of them."""
    add, flag = parser.add_argument, partial(parser.add_argument, action="store_true")
    checks = partial(add, dest="check", action="store_const")
    flag("--check", default=True, help="look for races and protocol errors (default)")
    every = "check every cluster, also those that repeat what a checked one has done"
    checks("--check=all", const="all", help=every)
    checks("--no-check", const=False, help="do not check")
    orders = (
        "another order of warps and completions: early, late or random:SEED; pdl: dependent"
        " launches overlap; all: search for an order that ends in a deadlock"
    )
    add("--schedule", type=_schedule, metavar="ORDER", help=orders)
    strict = "exit status 1 also for remarks, and where a part could not be checked"
    flag("--strict", help=strict)
    shown = "show all findings of a launch (default: the first, the gravest)"
    flag("--all-findings", help=shown)
    flag("--time", help="model the time of each launch; nothing is checked")


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
