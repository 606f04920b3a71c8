"""Run by the interpreter of a Python program under `b200 exec`, or started by one under `b200 run`.

Under `b200 run` nothing of b200 is imported before the program imports a package that needs a GPU.
The environment's own sitecustomize, which this one hides, is run first.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))
NEED_A_GPU = ("torch", "cutlass", "triton", "cuda", "cupy", "numba")


def run_the_hidden_one() -> None:
    others = [path for path in sys.path if os.path.abspath(path) != FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class InstallFirst(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the first of NEED_A_GPU that is imported, and installs the B200 before it loads. A
    process that has imported b200 by then does so itself.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in NEED_A_GPU or "b200" in sys.modules:
            return None
        if importlib.machinery.PathFinder.find_spec(name, path) is None:
            return None  # somebody has asked whether it is there
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        sys.meta_path.remove(self)
        install()
        module = importlib.import_module(spec.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # it has run; the import system has put ours there


def install() -> None:
    root = os.path.dirname(os.path.dirname(FOLDER))
    if root not in sys.path:
        sys.path.append(root)
    try:
        import b200
        from b200.reports import journal

        of_run = journal.of_the_run()
        if of_run is not None and of_run[1]:
            b200.install(**of_run[1])
    except Exception as error:  # whatever it is, the program goes on, and it is said
        told = f"{type(error).__name__}: {error}"
        print(f"b200 run: process {os.getpid()} has no B200: {told}", file=sys.stderr)


def begin_under_exec(home: str) -> None:
    """Once the program imports torch, it has the B200, and tells at its end what was found."""
    sys.path.append(home)
    try:
        from b200.compiled import python_program
    except (ImportError, SyntaxError):  # a Python without numpy, or an older one
        return
    python_program.begin()


run_the_hidden_one()
if home := os.environ.get("B200_HOME"):  # b200/compiled/command.py
    begin_under_exec(home)
elif os.environ.get("B200_RUN"):
    sys.meta_path.insert(0, InstallFirst())
