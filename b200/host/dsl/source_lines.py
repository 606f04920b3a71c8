"""Locations of the CuTe DSL's operations: the chain of user functions in place of the column.

The DSL asks MLIR for a location with the file, line and column of the innermost user frame. This
stands in for that call (`ir.Location.file`, as the DSL's module of decorators sees it) and puts the
number of the whole chain into the column (program/calls.py).
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
import sys
from collections.abc import Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

from b200.host.imports import if_there
from b200.host.runtime import Runtime
from b200.program import calls

LOCATING_MODULES = ("cutlass.base_dsl._mlir_helpers.op", "cutlass._mlir_helpers.op")  # by version
_KERNEL_MODULE = "cutlass.base_dsl.dsl"  # of the DSL
_KERNEL = "kernel_wrapper"  # its function that calls the kernel's
_REGION = re.compile(r"(then|else|elif|if|while|loop|for)\w*_\d+")  # bodies of rewritten blocks


def keep_chains(_runtime: Runtime) -> None:
    """Make the DSL keep the chain of calls of each operation that it traces."""
    for name in LOCATING_MODULES:
        module = if_there(name)
        if module is not None and not isinstance(module.ir, Stand):
            stand = StandModule(module.ir, Location=_Locations(module.ir.Location))
            setattr(module, "ir", stand)  # noqa: B010


class Stand:
    """An object with some attributes replaced."""

    def __init__(self, real, **replaced: Any):
        self._real = real
        if isinstance(real, ModuleType):
            self.__dict__.update(vars(real))  # found sooner than by __getattr__
        self.__dict__.update(replaced)

    def __getattr__(self, name: str):
        return getattr(self._real, name)


class StandModule(Stand, ModuleType):
    """A module with some names replaced: a module for those who ask what a global of it is."""

    def __init__(self, real: ModuleType, **replaced: Any):
        ModuleType.__init__(self, real.__name__, real.__doc__)
        Stand.__init__(self, real, **replaced)


class _Locations(Stand):
    def file(self, filename: str, line: int, column: int, *args: Any, **kwargs: Any):
        found = _number(filename, line)
        return self._real.file(filename, line, found or column, *args, **kwargs)


@functools.cache
def _library() -> str:
    return os.path.dirname(os.path.abspath(sys.modules["cutlass"].__file__ or ""))


class _Kind(enum.Enum):
    KERNEL = "the DSL's, which calls the kernel's"
    LIBRARY = "another of the DSL"
    REGION = "the user's, the body of a rewritten block"
    USER = "the user's"


@functools.cache
def _kind_of(filename: str, function: str) -> _Kind:
    if function == _KERNEL:
        return _Kind.KERNEL
    if filename.startswith(_library()):
        return _Kind.LIBRARY
    return _Kind.REGION if _REGION.fullmatch(function) else _Kind.USER


@functools.cache
def _is_passed_over(module: str) -> bool:
    """Whether all functions of a module are of the kind LIBRARY."""
    return module.startswith("cutlass.") and module != _KERNEL_MODULE


# Calls in progress: for the innermost function, then for the one around it, the id of its code and
# the instruction that it is at.
Calls = tuple[int, int, "Calls"] | tuple[()]

# A place: a file and line, the id of the code and the instruction of the innermost function, the
# calls around it -> the number of its chain, and the codes, which so stay.
_numbers: dict[tuple[str, int, int, int, Calls], tuple[int, list[CodeType]]] = {}
# The functions on the stack when it was last looked at, each with what stays the same until it
# ends: the id of its code, the calls around it, and the frames from it out to the kernel.
_around: dict[FrameType, tuple[int, Calls, list[FrameType]]] = {}


def _number(filename: str, line: int) -> int:
    """The number of the chain from `line` out to the kernel; 0 outside of one.

    It is asked for thousands of times a compile, and a stack is dozens of frames, most of the DSL.
    To read `f_code`, or to ask for an `id`, calls Python's audit hooks (the harness has one), and
    `f_lineno` searches a table. So it does none of these where the innermost function was on the
    stack the last time.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_passed_over(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    found = _around.get(frame) or _look_around(frame)
    if found is None:
        return 0
    code, calls_around, frames = found
    place = filename, line, code, frames[0].f_lasti, calls_around
    if place not in _numbers:
        codes = [frame.f_code for frame in frames]
        _numbers[place] = calls.number(_chain(frames, filename, line)), codes
    return _numbers[place][0]


def _frames_to_known(frame: FrameType | None) -> tuple[list[FrameType], FrameType | None]:
    """The user's functions from here out to the first that is known, which is returned, or to the
    kernel; none outside of one.
    """
    found: list[FrameType] = []
    while frame is not None:
        if frame in _around:
            return found, frame
        if not _is_passed_over(frame.f_globals.get("__name__", "")):
            code = frame.f_code
            kind = _kind_of(code.co_filename, code.co_name)
            if kind is _Kind.KERNEL:
                return found, None
            if kind is not _Kind.LIBRARY:
                found.append(frame)
        frame = frame.f_back
    return [], None


def _look_around(frame: FrameType) -> tuple[int, Calls, list[FrameType]] | None:
    """What stands in `_around` for a frame, or for the first of the user's around it; None outside
    of a kernel. A generator may go on at another call, so it is looked at each time.
    """
    inner, known = _frames_to_known(frame)
    found, around, outer = None, (), []
    if known is not None:
        found = code, calls_around, outer = _around[known]
        around = code, known.f_lasti, calls_around
    still = {frame: _around[frame] for frame in outer if frame in _around}
    _around.clear()
    _around.update(still)
    frames = inner + outer
    for i, frame in reversed(list(enumerate(inner))):
        code = frame.f_code
        found = id(code), around, frames[i:]
        if not code.co_flags & inspect.CO_GENERATOR:
            _around[frame] = found
        around = id(code), frame.f_lasti, around
    return found


def _chain(frames: Sequence[FrameType], filename: str, line: int) -> calls.Chain:
    """The user functions of `frames`, innermost first, from the one at `line` on."""
    found: list[calls.CallSite] = []
    inner = 0  # line of the innermost block of the function that is looked for
    for frame in frames:
        code = frame.f_code
        if found or inner or (code.co_filename, frame.f_lineno) == (filename, line):
            inner = inner or frame.f_lineno
            if _kind_of(code.co_filename, code.co_name) is _Kind.USER:
                found.append(calls.CallSite(code.co_filename, inner, code.co_name))
                inner = 0
    return tuple(found)
