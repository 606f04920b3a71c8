"""Which cases a command asks for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from harness.evaluator import cases
from harness.evaluator.arguments import UsageError
from harness.evaluator.cases import Case
from task import PROBLEMS, SEED, Problem, find_problem


def select(arguments: argparse.Namespace, secret: int | None) -> list[Case]:
    """The cases that the arguments ask for. Raises UsageError or CaseError."""
    if (arguments.problem or "").endswith(".py"):
        return _own(arguments, secret)
    files = [name for name in arguments.what if Path(name).is_file()]
    if scripts := [name for name in arguments.what if name.endswith(".py")]:
        raise UsageError(f"{scripts[0]} is a Python file: --submission {scripts[0]}")
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


def _own(arguments: argparse.Namespace, secret: int | None) -> list[Case]:
    """Cases of a problem of the user's own."""
    from harness.own.problem import ProblemError, cases_of, read

    names = [name for name in arguments.what if not Path(name).is_file()]
    if names:
        raise UsageError(f"{names[0]} and --problem {arguments.problem}: expected one problem")
    if arguments.mode == "tune":
        raise UsageError("tune is of the four NVFP4 problems, not of --problem FILE.py")
    given = [name for name in ("quick", "random", "smallest") if getattr(arguments, name)]
    given += ["inputs"] if arguments.inputs != "official" else []
    if given:
        raise UsageError(f"--{given[0]} is of the four NVFP4 problems, not of --problem FILE.py")
    lines = list(arguments.case or [])
    for file in (*arguments.what, *([arguments.cases] if arguments.cases else [])):
        lines += cases.read_lines(Path(file))
    try:
        problem = read(Path(arguments.problem))
    except ProblemError as error:
        raise UsageError(str(error)) from None
    return cases.with_secret(cases_of(problem, lines, arguments.mode), secret)


def _given(lines: Sequence[str], problems: Sequence[Problem]) -> list[Case]:
    """Cases given as text, for the one problem that is named or can be told from them."""
    if len(problems) > 1:
        raise UsageError(
            f"cases belong to one problem; {', '.join(p.name for p in problems)} were named"
        )
    parsed = [cases.parse(line) for line in lines]
    problem = problems[0] if problems else cases.infer_problem(parsed)
    return [cases.make_case(problem, args, line) for args, line in zip(parsed, lines)]
