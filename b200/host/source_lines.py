"""Locations of the CuTe DSL's operations: the chain of user functions in place of the column.

The DSL asks MLIR for a location with the file, line and column of the innermost user frame. This
stands in for that call (`ir.Location.file`, as the DSL's module of decorators sees it) and puts the
number of the whole chain into the column (program/calls.py).
"""

from __future__ import annotations

import enum
import functools
import importlib
import os
import re
import sys
from types import CodeType, ModuleType

from b200.program import calls

LOCATING_MODULES = ("cutlass.base_dsl._mlir_helpers.op", "cutlass._mlir_helpers.op")  # by version
_KERNEL = "kernel_wrapper"  # of the DSL: calls the kernel's function
_REGION = re.compile(r"(then|else|elif|if|while|loop|for)\w*_\d+")  # bodies of rewritten blocks


def keep_chains() -> None:
    """Make the DSL keep the chain of calls of each operation that it traces."""
    for name in LOCATING_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if isinstance(module.ir, Stand):
            continue
        setattr(module, "ir", Stand(module.ir, Location=_Locations(module.ir.Location)))  # noqa: B010


class Stand:
    """An object with some attributes replaced."""

    def __init__(self, real, **replaced):
        self._real = real
        if isinstance(real, ModuleType):
            self.__dict__.update(vars(real))  # found sooner than by __getattr__
        self.__dict__.update(replaced)

    def __getattr__(self, name: str):
        return getattr(self._real, name)


class _Locations(Stand):
    def file(self, filename: str, line: int, column: int, *args, **kwargs):
        found = calls.number(_chain(filename, line))
        return self._real.file(filename, line, found or column, *args, **kwargs)


@functools.cache
def _library() -> str:
    """The folder of the DSL."""
    return os.path.dirname(os.path.abspath(sys.modules["cutlass"].__file__ or ""))


class _Kind(enum.Enum):
    """Whose a function is."""

    KERNEL = "the DSL's, which calls the kernel's"
    LIBRARY = "another of the DSL"
    REGION = "the user's, the body of a rewritten block"
    USER = "the user's"


# id of a code object -> its kind and itself, which so stays
_kinds: dict[int, tuple[_Kind, CodeType]] = {}


def _kind_of(code: CodeType) -> _Kind:
    if code.co_name == _KERNEL:
        found = _Kind.KERNEL
    elif code.co_filename.startswith(_library()):
        found = _Kind.LIBRARY
    else:
        found = _Kind.REGION if _REGION.fullmatch(code.co_name) else _Kind.USER
    _kinds[id(code)] = found, code
    return found


def _chain(filename: str, line: int) -> calls.Chain:
    """User functions from the one at `line` out to the kernel."""
    found: list[calls.Call] = []
    inner = 0  # line of the innermost block of the function that is looked for
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        kind = known[0] if (known := _kinds.get(id(code))) is not None else _kind_of(code)
        if kind is _Kind.KERNEL:
            return tuple(found)
        if kind is not _Kind.LIBRARY and (
            found or inner or (code.co_filename, frame.f_lineno) == (filename, line)
        ):
            inner = inner or frame.f_lineno
            if kind is _Kind.USER:
                found.append(calls.Call(code.co_filename, inner, code.co_name))
                inner = 0
        frame = frame.f_back
    return ()
