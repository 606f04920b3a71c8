"""Would a leaderboard take this file?

    python eval.py lint FILE            the rules of the boards' upload and runner, a line a remark
    python eval.py lint FILE gemm       the same, for the board nvfp4_gemm
    python eval.py lint --rules         the rules, and where each stands

It runs nothing of FILE. A remark is `refused`, a `note` (taken, at a price) or an `offer`. Exit
status: 0 nothing is refused, 2 bad arguments, 112 something is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from b200.command_line import Parser
from harness.lint import boards
from harness.lint.rules import RULES, Remark, remarks
from harness.lint.submission import read
from task import find_problem

OK, USAGE, REFUSED = 0, 2, 112
SHOWN = 3  # lines of a file that a remark names


class LintError(Exception):
    """There is nothing to look at; str() is one line."""


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    try:
        arguments = _parse(argv)
        if arguments.rules:
            _print_rules()
            return OK
        board = find_problem(arguments.problem).name if arguments.problem else ""
        return _lint(arguments.file, board, arguments.json)
    except (LintError, ValueError) as error:
        print(f"eval.py lint: {error}", file=sys.stderr)
        return USAGE


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    usage = "; usage: eval.py lint FILE [PROBLEM]"
    parser = Parser("eval.py lint", __doc__, lambda message: LintError(message + usage))
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the submission")
    parser.add_argument("problem", nargs="?", metavar="PROBLEM", help="the board it is for")
    parser.add_argument("--rules", action="store_true", help="list the rules and their sources")
    parser.add_argument("--json", action="store_true", help="one JSON object a remark")
    arguments = parser.parse_args(argv)
    if arguments.file is None and not arguments.rules:
        parser.error("a file is missing")
    return arguments


def _lint(path: Path, board: str, as_json: bool) -> int:
    if path.is_dir() or not path.exists():
        raise LintError(f"{path} is {'a folder' if path.is_dir() else 'no file'}")
    try:
        found = list(remarks(read(path, board)))
    except OSError as error:
        raise LintError(f"{path} cannot be read: {error.strerror}") from None
    if as_json:
        for remark in found:
            print(json.dumps(record(path, remark)))
    else:
        show(path, found, sys.stdout)
    return REFUSED if any(remark.refused for remark in found) else OK


def last_step(path: Path, names: Iterable[str], out: TextIO) -> int:
    """lint of a file after its cases: prints what is not kept, and the boards' limits of time.
    Returns 112 if a board would refuse it, else 0.

    names: of what was run; where that is one board, it is the one that the file is for.
    """
    run = [name for name in dict.fromkeys(names) if name in boards.GPUS]
    found = list(remarks(read(path, run[0] if len(run) == 1 else "")))
    print(f"\nlint, as the boards take it ({len(RULES)} rules, `eval.py lint --rules`):", file=out)
    show(path, found, out)
    print(boards.LIMITS, file=out, flush=True)
    return REFUSED if any(remark.refused for remark in found) else OK


def show(path: Path, found: Sequence[Remark], out: TextIO) -> None:
    """A line a remark, and what comes of it."""
    for remark in found:
        print(line_of(path, remark), file=out)
    refused = sum(remark.refused for remark in found)
    if refused:
        print(f"{path}: refused, for {refused} reason{'s' if refused > 1 else ''}", file=out)
    else:
        print(f"{path}: nothing that a board refuses", file=out)


def line_of(path: Path, remark: Remark) -> str:
    """`refused: mine.py:3: what is wrong [rule: where it stands]`."""
    lines = remark.found.lines
    place = f"{path}:{lines[0]}" if lines else str(path)
    more = ""
    if len(lines) > 1:
        shown = ", ".join(map(str, lines[1 : SHOWN + 1]))
        rest = len(lines) - 1 - SHOWN
        more = f" (also {shown}{f' and {rest} more' if rest > 0 else ''})"
    rule = remark.rule
    return f"{remark.found.grade}: {place}: {remark.found.text}{more} [{rule.name}: {rule.source}]"


def record(path: Path, remark: Remark) -> dict[str, object]:
    """The JSON object of a remark."""
    return {
        "file": str(path),
        "rule": remark.rule.name,
        "grade": remark.found.grade,
        "message": remark.found.text,
        "lines": list(remark.found.lines),
        "source": str(remark.rule.source),
    }


def _print_rules() -> None:
    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        print(f"{rule.name:{width}}  {rule.says} [{rule.source}]")
