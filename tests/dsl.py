"""Which test files depend on the version of the CuTe DSL, so have to run with each one.

Most tests give PTX to the emulator, and `import b200` imports nothing of the DSL. A file depends on
it if it, or a module of tests/, harness/ or lab/ that it imports, does what can lead there: imports the
DSL, the submission or the host layer, installs the emulator, or starts a program.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

MODULES = {"cutlass", "cuda", "submission", "eval", "subprocess", "multiprocessing"}
# The host layer takes the DSL over; its commands do so for a script.
HOST = ("b200.host", "b200.script", "b200.__main__")
CALLS = {"install", "run_cuda"}  # of b200
FIXTURES = {"run_eval", "stand_in", "fork_server"}
READ = ("tests.", "harness.", "lab.")  # modules that are looked into


def depends(path: Path) -> bool:
    """Whether the file at `path` may come to use the DSL."""
    seen: set[Path] = set()
    left = [path]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        comes_to_it, imported = _read(file)
        if comes_to_it:
            return True
        left += imported
    return False


@functools.cache
def _read(path: Path) -> tuple[bool, list[Path]]:
    """Whether a file itself may come to use the DSL, and the files that it imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in CALLS:
            return True, []
        if isinstance(node, ast.arg) and node.arg in FIXTURES:
            return True, []
        names += _imported(node)
    if any(name.split(".")[0] in MODULES or name.startswith(HOST) for name in names):
        return True, []
    return False, [file for name in names for file in _files(name)]


def _imported(node: ast.AST) -> list[str]:
    """Names of the modules that a statement imports, and of what it takes from them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _files(name: str) -> Iterator[Path]:
    """The file of a module that is looked into, also where `name` is something in it."""
    if name.startswith(READ):
        for module in (name, name.rpartition(".")[0]):
            path = ROOT / module.replace(".", "/")
            yield from filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py"))
