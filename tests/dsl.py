"""Which test files come to the CuTe DSL, and which of these have to run with each version.

Most tests give PTX to the emulator, and `import b200` imports nothing of the DSL. A file may come to
it if it, or a module of tests/, harness/, hopper/ or lab/ that it imports, does what can lead there: imports the
DSL, the submission or the host layer, installs the emulator, or starts a program.

With each version of the DSL, torch, Triton and Python run those of them that go through a surface of
theirs: all but APART. `python -m tests.dsl` lists their files.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tests import ROOT

MODULES = {"cutlass", "cuda", "submission", "eval", "subprocess", "multiprocessing"}
# The host layer takes the DSL over; its commands do so for a script.
HOST = ("b200.host", "b200.script", "b200.__main__")
CALLS = {"install", "run_cuda"}  # of b200
FIXTURES = {"run_eval", "stand_in", "fork_server"}
READ = ("tests.", "harness.", "hopper.", "lab.")  # modules that are looked into
# Of tests/: what comes to the DSL, as it starts a program or imports a part of the host layer, and
# says the same with each version of a package. What is new runs with each version.
APART = {
    "b200/checker/*": "kernels in PTX",
    "b200/chip/*": "kernels in PTX, and the schedules of one kernel",
    "b200/clock/*": "drawings",
    "b200/compiled/*": "programs that nvcc compiles; no package of Python is in their process",
    "hopper/*": "what a Hopper GPU is given, and tables of its words",
    "b200/host/cuda/*": "programs that nvcc compiles",
    "b200/isa/*": "forms of instructions against ptxas",
    "b200/test_run_cuda.py": "programs that nvcc compiles",
    "harness/lint/*": "texts of submissions",
    "harness/measure/*": "probes in PTX",
    "harness/test_compare_picture.py": "drawings",
    "harness/test_h200_clock.py": "a launch in PTX",
    "harness/test_ladder.py": "a table of others' times",
    "harness/test_qualify*": "a rehearsal of the report, by stand-ins",
    "harness/test_raw_cuda.py": "a program that nvcc compiles",
    "harness/test_slips.py": "products of wrong kernels",
    "lab/*": "the laboratory, which works with one version",
    "test_readme.py": "pages",
}
THROUGH = (  # of APART, what a version's compiler or its headers decide
    "b200/checker/test_planted_bugs_*",
    "b200/chip/test_schedules.py",
    "b200/host/cuda/test_error_codes.py",
    "b200/host/cuda/test_side_queues.py",
    "b200/host/cuda/test_when_imported.py",
    "lab/test_evidence.py",
)


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


def by_version(path: Path) -> bool:
    """Whether the file at `path` has to run with each version of what it comes to."""
    name = path.relative_to(ROOT / "tests").as_posix()
    apart = any(fnmatchcase(name, pattern) for pattern in APART)
    through = any(fnmatchcase(name, pattern) for pattern in THROUGH)
    return (through or not apart) and depends(path)


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


if __name__ == "__main__":
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        if by_version(test):
            print(test.relative_to(ROOT).as_posix())
