"""The table of picks in the text of a submission.py: its rows, in the form that ruff gives them,
and the text with other rows in it.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence

from harness.evaluator.case.configs import kind
from submission import MODELLED, Config, Pick, Problem, Shape

NAME = "PICKS"
DEFAULT = "the default"  # configuration
WIDTH = 100


class TableError(Exception):
    """A text without the table, or with one that is not understood; str() is one line."""


# ---- a row ---------------------------------------------------------------------------------------


def told(config: Config) -> list[str]:
    """What differs from the default, as `name=value`."""
    return [f"{field}={getattr(config, field)!r}" for field in kind(config)]


def name(config: Config) -> str:
    return " ".join(told(config)) or DEFAULT


def config_source(config: Config) -> str:
    return f"Config({', '.join(told(config))})"


def _problem_arguments(problem: Problem) -> list[str]:
    first, *others = problem.groups
    if not others:
        groups = f"({_shape_source(first)},)"
    elif all(shape[1:] == first[1:] for shape in others):
        of_m = f"Shape(m, {', '.join(map(str, first[1:]))})"
        groups = f"tuple({of_m} for m in ({', '.join(str(s.shared) for s in problem.groups)}))"
    else:
        groups = f"({', '.join(map(_shape_source, problem.groups))})"
    return [str(problem.num_products), groups, *(["is_gemv=True"] if problem.is_gemv else [])]


def _shape_source(shape: Shape) -> str:
    return f"Shape({', '.join(map(str, shape))})"


def problem_source(problem: Problem) -> str:
    return f"Problem({', '.join(_problem_arguments(problem))})"


def row(problem: Problem, pick: Pick) -> str:
    """The lines of a row."""
    measured = [] if pick.basis == MODELLED else [json.dumps(pick.basis)]
    picked = [config_source(pick.config), *measured]
    whole = f"    {problem_source(problem)}: Pick({', '.join(picked)}),"
    if len(whole) <= WIDTH:
        return whole
    opened = f"    {problem_source(problem)}: Pick("
    if len(opened) <= WIDTH:
        return "\n".join([opened, *_arguments(picked), "    ),"])
    arguments = _arguments(_problem_arguments(problem))
    if max(map(len, arguments)) > WIDTH:
        arguments = _a_group_a_line(problem)
    key = ["    Problem(", *arguments]
    closed = f"    ): Pick({', '.join(picked)}),"
    if len(closed) <= WIDTH:
        return "\n".join([*key, closed])
    return "\n".join([*key, "    ): Pick(", *_arguments(picked), "    ),"])


def _arguments(arguments: Sequence[str]) -> list[str]:
    """On a line of their own, or one a line."""
    line = f"        {', '.join(arguments)}"
    return [line] if len(line) <= WIDTH else [f"        {argument}," for argument in arguments]


def _a_group_a_line(problem: Problem) -> list[str]:
    shapes = [f"            {_shape_source(shape)}," for shape in problem.groups]
    return [f"        {problem.num_products},", "        (", *shapes, "        ),"]


# ---- the table in a text -------------------------------------------------------------------------


def _table(text: str) -> ast.Dict:
    for node in ast.parse(text).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == NAME:
            if isinstance(node.value, ast.Dict):  # type: ignore[union-attr]
                return node.value  # type: ignore[union-attr]
    raise TableError(f"no table {NAME}: expected a line '{NAME}: dict[Problem, Pick] = {{'")


def _rows(table: ast.Dict) -> dict[Problem, tuple[int, int]]:
    """Where each row is: its first line, and the one after its last, counted from 0."""
    names = {"__builtins__": {}, "Problem": Problem, "Shape": Shape, "tuple": tuple}
    found = {}
    for key, value in zip(table.keys, table.values):
        if key is None or value.end_lineno is None:
            raise TableError(f"{NAME} has a row that is not 'Problem(...): Pick(...)'")
        problem = eval(compile(ast.Expression(key), NAME, "eval"), names)
        found[problem] = key.lineno - 1, value.end_lineno
    return found


def with_rows(text: str, rows: Mapping[Problem, Pick]) -> str:
    """The text with these rows in place of those of the same problem, or behind all others. Nothing
    else changes. Raises TableError.
    """
    lines, table = text.split("\n"), _table(text)
    places = _rows(table)
    if table.end_lineno is None:
        raise TableError(f"{NAME} has no end")
    end = table.end_lineno - 1
    new = [row(problem, pick) for problem, pick in rows.items() if problem not in places]
    lines[end:end] = new
    for problem in sorted(places.keys() & rows.keys(), key=lambda p: places[p], reverse=True):
        first, behind = places[problem]
        lines[first:behind] = row(problem, rows[problem]).split("\n")
    return "\n".join(lines)


def digest(text: str) -> str:
    """Of a submission without the rows of its table: what a measured time belongs to."""
    lines, table = text.split("\n"), _table(text)
    del lines[table.lineno : (table.end_lineno or table.lineno) - 1]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
