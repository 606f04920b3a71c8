"""One word, one meaning: names of classes, and of modules where they are imported."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests import ROOT

# A module of ours that is imported by another name than its own: what it is called everywhere.
SHORT = {"b200.effects": "e", "b200.chip.operations": "ops"}
# ... and where its own name is that of a variable there.
ELSEWHERE = {
    ("b200/chip/budget.py", "hw"),
    ("b200/chip/copies/tensormap_ops.py", "tm"),
    ("b200/chip/machine.py", "_units"),
    ("b200/chip/tensor/mma.py", "operands"),
    ("b200/host/cuda/graphs.py", "g"),
    ("b200/run_arguments.py", "report_options"),
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "b200").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def classes(tree: ast.Module) -> Iterator[str]:
    """Public classes and aliases of types at the top of a module; no TypeVar."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, (ast.Subscript, ast.BinOp)):
                name = node.targets[0].id
                if re.fullmatch(r"[A-Z][a-z]\w*", name):
                    yield name


def told_twice(found: Iterator[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Class -> the modules that define one of its name, where there are several."""
    where: dict[str, list[str]] = defaultdict(list)
    for path, tree in found:
        for name in classes(tree):
            if not name.startswith("_"):
                where[name].append(path)
    return {name: paths for name, paths in where.items() if len(paths) > 1}


def renamed(found: Iterator[tuple[str, ast.Module]], modules: set[str]) -> list[tuple[str, str]]:
    """(file, the other name) of modules of b200 that are imported by another name."""
    return [
        (path, alias.asname)
        for path, tree in found
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and (name := f"{node.module}.{alias.name}") in modules
        if alias.asname != SHORT.get(name)
    ]


def modules_of_b200() -> set[str]:
    paths = (p.relative_to(ROOT) for p in (ROOT / "b200").rglob("*.py"))
    return {p.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__") for p in paths}


def test_a_class_of_b200_has_a_name_of_its_own():
    assert told_twice(trees()) == {}


def test_a_module_of_b200_is_imported_by_its_name():
    assert set(renamed(trees(), modules_of_b200())) == ELSEWHERE


def test_a_name_with_two_meanings_is_seen():
    two = [("a.py", ast.parse("class Read: ...")), ("b.py", ast.parse("Read = int | str"))]
    assert told_twice(iter(two)) == {"Read": ["a.py", "b.py"]}
    other = [("a.py", ast.parse("from b200 import effects as e, formats as f"))]
    assert renamed(iter(other), modules_of_b200()) == [("a.py", "f")]
