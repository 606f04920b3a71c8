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


def _given(lines: Sequence[str], problems: Sequence[Problem]) -> list[Case]:
    """Cases given as text, for the one problem that is named or can be told from them."""
    if len(problems) > 1:
        raise UsageError(
            f"cases belong to one problem; {', '.join(p.name for p in problems)} were named"
        )
    parsed = [cases.parse(line) for line in lines]
    problem = problems[0] if problems else cases.infer_problem(parsed)
    return [cases.make_case(problem, args, line) for args, line in zip(parsed, lines)]
