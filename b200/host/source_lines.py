"""Locations of the CuTe DSL's operations: the chain of user functions in place of the column.

The DSL asks MLIR for a location with the file, line and column of the innermost user frame. This
stands in for that call (`ir.Location.file`, as the DSL's module of decorators sees it) and puts the
number of the whole chain into the column (program/calls.py).
"""

from __future__ import annotations

import importlib
import os
import re
import sys

from b200.program import calls

_MODULES = ("cutlass.base_dsl._mlir_helpers.op", "cutlass._mlir_helpers.op")  # by version
_KERNEL = "kernel_wrapper"  # of the DSL: calls the kernel's function
_REGION = re.compile(r"(then|else|elif|if|while|loop|for)\w*_\d+")  # bodies of rewritten blocks


def keep_chains() -> None:
    """From now on what the DSL traces keeps its chains of calls."""
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if not isinstance(module.ir, _Stand):
            setattr(module, "ir", _Stand(module.ir, Location=_Locations(module.ir.Location)))  # noqa: B010


class _Stand:
    """An object with some attributes replaced."""

    def __init__(self, real, **replaced):
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name: str):
        return getattr(self._real, name)


class _Locations(_Stand):
    def file(self, filename: str, line: int, column: int, *args, **kwargs):
        found = calls.number(_chain(filename, line))
        return self._real.file(filename, line, found or column, *args, **kwargs)


def _chain(filename: str, line: int) -> calls.Chain:
    """User functions from the one at `line` out to the kernel."""
    library = os.path.dirname(os.path.abspath(sys.modules["cutlass"].__file__ or ""))
    found: list[calls.Call] = []
    inner = 0  # line of the innermost block of the function that is looked for
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == _KERNEL:
            return tuple(found)
        if not code.co_filename.startswith(library) and (
            found or inner or (code.co_filename, frame.f_lineno) == (filename, line)
        ):
            inner = inner or frame.f_lineno
            if not _REGION.fullmatch(code.co_name):
                found.append(calls.Call(code.co_filename, inner, code.co_name))
                inner = 0
        frame = frame.f_back
    return ()
