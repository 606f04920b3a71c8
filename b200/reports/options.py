"""The options of commands that write reports, and what they mean."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from b200.command_line import Parser, writable
from b200.reports import choice
from b200.reports.choice import Choice
from b200.reports.outputs import Outputs

Value = TypeVar("Value")
_OF_LAUNCHES = "only findings of these launches of a process count, from 0 on"
_AT_A_LINE = "only findings at a line of this file count"
_NOT_LAUNCHED = "fail where no such kernel is launched"


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
        type=_argument(choice.read_baseline),
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
    numbers, any_of = _argument(choice.numbers), "* stands for anything"
    for name, into, metavar, kind, what in (
        ("--kernel", "kernels", "NAME", str, f"only findings of this kernel count, {any_of}"),
        ("--launch", "launch_numbers", "N[-M]", numbers, _OF_LAUNCHES),
        ("--source", "sources_that_count", "FILE", str, f"{_AT_A_LINE}, {any_of}"),
        ("--expect-kernel", "expected", "NAME", str, f"{_NOT_LAUNCHED}, {any_of}"),
    ):
        add = functools.partial(parser.add_argument, name, action="append", default=[])
        add(dest=into, metavar=metavar, type=kind, help=f"{what}; repeatable")


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


def _argument(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """A type of an argument, of a function that says in a ValueError what is wrong with a text."""

    def value(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value
