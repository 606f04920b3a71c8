"""What the CuTe DSL finds out again for each operation, or in each process, found once.

None of this is part of what is compiled: the PTX is the same. Each saves a twentieth or more of a
compile with 4.5.2; a version that does it another way is left alone.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from types import CodeType, FrameType, ModuleType

from b200.host.dsl.engine import frontends
from b200.host.dsl.source_lines import LOCATING_MODULES, Stand, StandModule
from b200.host.imports import if_there
from b200.host.runtime import Runtime


def hasten(_runtime: Runtime) -> None:
    for name in LOCATING_MODULES:
        if (module := if_there(name)) is not None:
            _look_once_at_frames(module)
    module = if_there("cutlass._mlir.dialects.arith")
    if module is not None and hasattr(module, "_isa"):
        setattr(module, "_isa", _isa)  # noqa: B010
    for frontend in frontends():
        if hasattr(frontend, "get_version"):
            frontend.get_version = _version


def _look_once_at_frames(module: ModuleType) -> None:
    """The module of decorators asks `inspect` for the source of each frame, which looks for the
    file and searches its text (4.8.1 walks a code object's table of positions instead), and asks
    of the frames around it whether they are the library's.
    """
    if isinstance(module.inspect, Stand):
        return
    setattr(module, "inspect", StandModule(inspect, getframeinfo=_frame_info))  # noqa: B010
    if hasattr(module, "_fast_frameinfo"):
        setattr(module, "_fast_frameinfo", _frame_info)  # noqa: B010
    for name in ("_is_framework_frame", "_is_framework_module"):
        if (of_library := getattr(module, name, None)) is not None:
            setattr(module, name, functools.cache(of_library))


# (id of a code object, its instruction) -> the code object, which so stays, and what inspect says
_frame_infos: dict[tuple[int, int], tuple[CodeType, inspect.Traceback]] = {}


def _frame_info(frame: FrameType) -> inspect.Traceback:
    """inspect.getframeinfo(frame), asked once for each place in a program."""
    key = id(frame.f_code), frame.f_lasti
    found = _frame_infos.get(key)
    if found is None:
        found = _frame_infos[key] = frame.f_code, inspect.getframeinfo(frame)
    return found[1]


def _isa(obj, cls) -> bool:
    """Whether an MLIR type is of a class. The DSL calls cls(obj) and catches the ValueError."""
    return cls.isinstance(obj)


def _version():
    """A hash of the DSL, which it makes of all its files, to tell apart what it finds in its cache
    of files. That is off here (dsl.py), so that the modules of one process are all there are.
    """
    return hashlib.sha256()
