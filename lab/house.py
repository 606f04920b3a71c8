"""The house as a picture: which modules stand on which.

    python -m lab house [ROOM ...]    b200.chip, b200.checker and b200.clock if none is named

A module stands one floor above the highest of those that it imports from its own room. Imports for
annotations alone do not count. A room with a circle has no floors: it is named, and the status is
1.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from b200.command_line import Parser

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("b200.chip", "b200.checker", "b200.clock")


def modules_of(room: str, root: Path = ROOT) -> dict[str, Path]:
    """The modules of a package by name, those of the packages in it included."""
    folder = root.joinpath(*room.split("."))
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


@dataclass(frozen=True)
class Import:
    """`name` is a module of the sources where it is one, else what the statement names."""

    name: str
    line: int
    only_types: bool


def imports(module: str, source: str, modules: Container[str]) -> Iterator[Import]:
    """Every import of a module."""
    tree = ast.parse(source)
    typed = {
        id(inner)
        for node in (ast.walk(tree) if "TYPE_CHECKING" in source else ())
        if isinstance(node, ast.If) and isinstance(node.test, (ast.Name, ast.Attribute))
        if ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{module}:{node.lineno}: relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in full]
        else:
            continue
        for name in dict.fromkeys(names):
            yield Import(name, node.lineno, id(node) in typed)


def floors(room: str, root: Path = ROOT) -> list[list[str]]:
    """The modules of a room by floor, the lowest first. Raises CycleError."""
    known = modules_of(room, root)
    graph = {name: _below(name, path.read_text(), known) for name, path in known.items()}
    height: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        height[name] = 1 + max((height[below] for below in graph[name]), default=-1)
    found: list[list[str]] = [[] for _ in range(1 + max(height.values()))]
    for name in sorted(height):
        found[height[name]].append(name.removeprefix(f"{room}.") if name != room else "(the door)")
    return found


def _below(module: str, source: str, known: Container[str]) -> set[str]:
    """Those of the known modules that a module imports when it runs."""
    every = imports(module, source, known)
    return {i.name for i in every if not i.only_types and i.name in known} - {module}


def drawing(room: str, root: Path = ROOT) -> list[str]:
    """The floors of a room as lines, the highest first. Raises CycleError."""
    found = floors(room, root)
    lines = [f"{room}: {sum(map(len, found))} modules on {len(found)} floors, no circle"]
    return lines + [f"{i:3}  {'  '.join(found[i])}" for i in reversed(range(len(found)))]


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m lab house", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="packages of this checkout")
    status = 0
    for room in parser.parse_args(argv).rooms or ROOMS:
        if not modules_of(room):
            parser.error(f"{room} is no package of this checkout")
        try:
            print(*drawing(room), "", sep="\n")
        except CycleError as error:
            print(f"{room}: circle: {' <- '.join(error.args[1])}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
