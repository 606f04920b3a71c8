"""Which test files depend on the version of the CuTe DSL, so have to run with each one.

Most tests give PTX to the emulator, and `import b200` imports nothing of the DSL. A file depends on
it if it, or a module of tests/ that it imports, does what can lead there: imports the DSL, the
submission or the harness, installs the emulator, or starts a program.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

MODULES = {"cutlass", "cuda", "submission", "harness", "eval", "subprocess", "multiprocessing"}
# The host layer takes the DSL over; its commands do so for a script.
HOST = ("b200.host", "b200.script", "b200.__main__")
CALLS = {"install", "run_cuda"}  # of b200
FIXTURES = {"run_eval", "stand_in", "fork_server"}


@functools.cache
def depends(path: Path) -> bool:
    """Whether the file at `path` may come to use the DSL."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in CALLS:
            return True
        if isinstance(node, ast.arg) and node.arg in FIXTURES:
            return True
        names += _imported(node)
    if any(name.split(".")[0] in MODULES or name.startswith(HOST) for name in names):
        return True
    return any(depends(file) for name in names for file in _files(name) if file != path)


def _imported(node: ast.AST) -> list[str]:
    """Names of the modules that a statement imports, and of what it takes from them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _files(name: str) -> Iterator[Path]:
    """The file of a module of tests/, also where `name` is something in it."""
    if name.startswith("tests."):
        for module in (name, name.rpartition(".")[0]):
            file = ROOT / f"{module.replace('.', '/')}.py"
            if file.is_file():
                yield file
