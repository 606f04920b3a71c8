"""The options of commands that write reports, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path

from b200.command_line import Parser, writable
from b200.reports import choice
from b200.reports.choice import Accepted, Choice
from b200.reports.outputs import Outputs


def add_to(parser: Parser) -> None:
    """Which findings count, and where they are written."""
    parser.add_argument(
        "--report", type=writable, metavar="FILE.json", help="write all findings as JSON"
    )
    parser.add_argument(
        "--sarif",
        type=writable,
        metavar="FILE.sarif",
        help="write them as SARIF 2.1.0, for code scanning; paths are relative to this folder",
    )
    parser.add_argument(
        "--github", action="store_true", help="print them as annotations of a job on GitHub, too"
    )
    parser.add_argument(
        "--baseline",
        type=_baseline,
        default=[],
        metavar="FILE.json",
        help="findings that are known, with a reason each: they do not count",
    )
    parser.add_argument(
        "--write-baseline",
        type=writable,
        metavar="FILE.json",
        help="write a baseline of what is found; the reasons are to be filled in",
    )
    parser.add_argument(
        "--kernel",
        dest="kernels",
        action="append",
        default=[],
        metavar="NAME",
        help="only findings of this kernel count, * stands for anything; repeatable",
    )
    parser.add_argument(
        "--launch",
        dest="launch_numbers",
        type=_numbers,
        action="append",
        default=[],
        metavar="N[-M]",
        help="only findings of these launches of a process count, from 0 on; repeatable",
    )
    parser.add_argument(
        "--source",
        dest="sources_that_count",
        action="append",
        default=[],
        metavar="FILE",
        help="only findings at a line of this file count, * stands for anything; repeatable",
    )
    parser.add_argument(
        "--expect-kernel",
        dest="expected",
        action="append",
        default=[],
        metavar="NAME",
        help="fail where no such kernel is launched, * stands for anything; repeatable",
    )


def choice_of(options: argparse.Namespace) -> Choice:
    return Choice(
        accepted=options.baseline,
        kernels=options.kernels,
        sources=options.sources_that_count,
        launches=options.launch_numbers,
        expected=options.expected,
        strict=options.strict,
    )


def outputs_of(options: argparse.Namespace) -> Outputs:
    return Outputs(
        options.report and options.report.absolute(),
        options.sarif and options.sarif.absolute(),
        options.github,
        Path.cwd(),
    )


def _baseline(text: str) -> list[Accepted]:
    try:
        return choice.read_baseline(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _numbers(text: str) -> tuple[int, int]:
    try:
        return choice.numbers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
