"""Locations of the CuTe DSL's operations: the chain of user functions in place of the column.

The DSL asks MLIR for a location with the file, line and column of the innermost user frame. This
stands in for that call (`ir.Location.file`, as the DSL's module of decorators sees it) and puts the
number of the whole chain into the column (program/calls.py).

It stands in for `inspect.getframeinfo` there, too, which 4.5.2 calls for each operation and which
looks for the source file and searches its text each time: a quarter of a compile. Whether a file is
the DSL's own is asked once a file, as 4.8.1 does it: a tenth.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from types import CodeType, FrameType

from b200.program import calls

_MODULES = ("cutlass.base_dsl._mlir_helpers.op", "cutlass._mlir_helpers.op")  # by version
_KERNEL = "kernel_wrapper"  # of the DSL: calls the kernel's function
_REGION = re.compile(r"(then|else|elif|if|while|loop|for)\w*_\d+")  # bodies of rewritten blocks


def keep_chains() -> None:
    """Make the DSL keep the chain of calls of each operation that it traces."""
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if isinstance(module.ir, _Stand):
            continue
        setattr(module, "ir", _Stand(module.ir, Location=_Locations(module.ir.Location)))  # noqa: B010
        setattr(module, "inspect", _Stand(inspect, getframeinfo=_frame_info))  # noqa: B010
        of_the_dsl = functools.cache(module._is_framework_frame)
        setattr(module, "_is_framework_frame", of_the_dsl)  # noqa: B010


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


# (id of a code object, its instruction) -> the code object, which so stays, and what inspect says
_frame_infos: dict[tuple[int, int], tuple[CodeType, inspect.Traceback]] = {}


def _frame_info(frame: FrameType) -> inspect.Traceback:
    """inspect.getframeinfo(frame), asked once for each place in a program."""
    key = id(frame.f_code), frame.f_lasti
    found = _frame_infos.get(key)
    if found is None:
        found = _frame_infos[key] = frame.f_code, inspect.getframeinfo(frame)
    return found[1]


@functools.cache
def _library() -> str:
    """The folder of the DSL."""
    return os.path.dirname(os.path.abspath(sys.modules["cutlass"].__file__ or ""))


@functools.cache
def _of_library(filename: str) -> bool:
    return filename.startswith(_library())


@functools.cache
def _is_region(function: str) -> bool:
    return _REGION.fullmatch(function) is not None


def _chain(filename: str, line: int) -> calls.Chain:
    """User functions from the one at `line` out to the kernel."""
    found: list[calls.Call] = []
    inner = 0  # line of the innermost block of the function that is looked for
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == _KERNEL:
            return tuple(found)
        if not _of_library(code.co_filename) and (
            found or inner or (code.co_filename, frame.f_lineno) == (filename, line)
        ):
            inner = inner or frame.f_lineno
            if not _is_region(code.co_name):
                found.append(calls.Call(code.co_filename, inner, code.co_name))
                inner = 0
        frame = frame.f_back
    return ()
