"""The configurations of a submission (harness/evaluator/trials.py), in the process of a case."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

Kernel = Callable[[Any], Any]
Ranked = list[tuple[dict[str, Any], float]]


# The functions that say what a submission chooses from, with what they take.
NEEDED = {"legal_configs": "problem", "estimate": "config, problem", "pick": "problem"}


class NoConfigs(Exception):
    """The submission does not say what it chooses from; str() says what is missing."""


class _Problem(BaseException):
    """Carries out of custom_kernel the problem that it asks a configuration for."""

    def __init__(self, problem: Any):
        self.problem = problem


def absent(path: Path) -> list[str]:
    """Which of the functions a file plainly has not: it neither defines, assigns nor imports them.
    None, where it cannot be read or imports all names of a module; importing it says more.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    bound = {
        node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else node.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Name))
    }
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    bound |= {alias.asname or alias.name for node in imports for alias in node.names}
    return [] if "*" in bound else [name for name in NEEDED if name not in bound]


def rank(module: Any, kernel: Kernel, data: Any, count: int) -> Ranked:
    """`count` configurations for `data`, each as (fields, estimate), in the order of `spread`.
    kernel: calls the custom_kernel of the module.
    """
    for name in NEEDED:
        if not callable(getattr(module, name, None)):
            raise NoConfigs(f"the submission has no function {name}, which `tune` needs")
    problem = problem_of(module, kernel, data)
    listed = spread(module, problem)[:count]
    return [(dataclasses.asdict(c), float(module.estimate(c, problem))) for c in listed]


def spread(module: Any, problem: Any) -> list[Any]:
    """All configurations, so that few of them can repair a wrong estimate: the pick, the plainest,
    and the best by estimate of each other kind; then all others by estimate. A kind is which fields
    are not as by default; the plainest has the fewest.
    """
    legal = sorted(module.legal_configs(problem), key=lambda c: module.estimate(c, problem))
    pick = module.pick(problem)
    plainest = min([*legal, pick], key=lambda config: len(kind(config)))
    best = {kind(pick): pick, kind(plainest): plainest}
    for config in legal:
        best.setdefault(kind(config), config)
    return list(dict.fromkeys([pick, plainest, *best.values(), *legal]))


def kind(config: Any) -> tuple[str, ...]:
    """The fields of a configuration that are not as by default."""
    names = (f.name for f in dataclasses.fields(config) if getattr(config, f.name) != f.default)
    return tuple(names)


def problem_of(module: Any, kernel: Kernel, data: Any) -> Any:
    """What `pick` of the module is asked about `data`."""

    def ask(problem: Any, *_: Any) -> Any:
        raise _Problem(problem)

    kept, module.pick = module.pick, ask
    try:
        kernel(data)
    except _Problem as asked:
        return asked.problem
    finally:
        module.pick = kept
    raise NoConfigs("custom_kernel does not call pick(problem), which `tune` needs")


def fix(module: Any, fields: dict[str, Any]) -> None:
    """Make the module take the configuration with these fields (all of them) for its pick."""
    pick, made = module.pick, []

    def fixed(problem: Any, *rest: Any) -> Any:
        if not made:
            made.append(dataclasses.replace(pick(problem, *rest), **fields))
        return made[0]

    module.pick = fixed
