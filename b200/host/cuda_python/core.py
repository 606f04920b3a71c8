"""cuda.core over a B200 in software, and libraries of NVIDIA's driver that cuda.bindings loads.

cuda.core calls the driver and NVRTC from machine code, which no patch of a Python module reaches.
So where a program imports it, this process gets the library of compiled programs (../cuda/shim/):
cuda.bindings finds it in the place of libcuda and libnvrtc. From then on the program's own calls of
cuda.bindings.driver and nvrtc go there as well, since it passes handles from one to the other.

Else there are no such libraries, and their names are said: functions of cuda.bindings.driver are
taken over, so it looks for libcuda only where a program asks for what lies behind them; NVML has
nothing behind it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from b200.errors import EmulatorError
from b200.host.cuda import library
from b200.host.cuda.cache import cache_folder, digest_of, made_once
from b200.host.cuda.driver import CALL, pointer_to
from b200.host.cuda.errors import BuildError
from b200.host.cuda.modules import Modules
from b200.host.cuda.numbered import NumberedDriver
from b200.host.cuda.stand_in import FOLDER
from b200.host.cuda.toolkit import Toolkit, find_toolkit, packages
from b200.host.imports import when_imported
from b200.host.refusals import missing, missing_class

_LOAD = "load_nvidia_dynamic_lib"  # the function of cuda.bindings' modules that finds a library
_ABSENT = {"driver": "the machine code of libcuda", "nvml": "NVML"}
_EXPORTED = "{ global: cu[A-Z]*; nvrtc*; b200_python_call; local: *; };\n"
_OWN = FOLDER / "in_python.cpp"
_CLASSES = ("Device", "Linker", "ObjectCode", "Program")
_LOADERS = {"cuda": "cuda.bindings._internal.driver", "nvrtc": "cuda.bindings._internal.nvrtc"}

Originals = Mapping[ModuleType, Mapping[str, Any]]  # functions before they were patched


def take_over(core: ModuleType, modules: Modules, originals: Originals) -> None:
    """Put the library behind cuda.core, and behind what of cuda.bindings `originals` names. Where
    it cannot be made, cuda.core's names refuse with the reason.
    """
    try:
        toolkit = find_toolkit()
        nvrtc = _nvrtc(toolkit)
        path = _made(toolkit, nvrtc)
        if nvrtc is not None:  # it looks for this one by its name
            for builtins in nvrtc.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))
        handle = ctypes.CDLL(str(path), os.RTLD_GLOBAL | os.RTLD_NOW)
        loaders = {what: _loader(name) for what, name in _LOADERS.items()}
        answer = CALL(NumberedDriver(modules, _tell).answer)
        ctypes.c_void_p.in_dll(handle, "b200_python_call").value = pointer_to(answer)
        for what, module in loaders.items():
            setattr(module, _LOAD, _finds(handle, answer, what, getattr(module, _LOAD)))
        for module, functions in originals.items():
            vars(module).update(functions)
    except BuildError as error:
        _refuse(core, str(error).partition("\n")[0])
    except (OSError, AttributeError) as error:
        _refuse(core, f"{type(error).__name__}: {error}".partition("\n")[0])


def _loader(name: str) -> ModuleType:
    """A module of cuda.bindings by which it finds a library."""
    if name not in sys.modules:
        raise BuildError(f"this cuda.bindings has no {name}: it is older than 13.4, or newer")
    return sys.modules[name]


def _finds(handle: ctypes.CDLL, keep: Any, what: str, before: Callable[..., Any]) -> Any:
    """A function that finds our library where the one called `what` is asked for."""

    def load(name: str) -> Any:
        if name != what:
            return before(name)
        return SimpleNamespace(_handle_uint=handle._handle, kept=(handle, keep))

    return load


def _nvrtc(toolkit: Toolkit) -> Path | None:
    """The library of NVRTC, pip's or the toolkit's; None where there is none. It is not loaded
    here: cuda.bindings takes what the process has of it, and ours is to be the first.
    """
    folders = [folder / "lib" for folder in packages(toolkit.version[0])]
    folders += [toolkit.nvcc.resolve().parents[1] / "lib64"]
    name = f"libnvrtc.so.{toolkit.version[0]}"
    return next((path for folder in folders if (path := folder / name).is_file()), None)


def _made(toolkit: Toolkit, nvrtc: Path | None) -> Path:
    """The library, made now or found in the cache. BuildError in one line."""
    sources = [*library.SHIM, _OWN, *([library.NVRTC] if nvrtc else [])]
    texts = [path.read_text() for path in (*sources, *library.PARTS, Path(__file__))]
    key = digest_of(toolkit.build, toolkit.cxx_version, str(nvrtc), *texts)
    # a library that it needs, and finds where it lies
    needs = ["-Wl,--no-as-needed", str(nvrtc), f"-Wl,-rpath,{nvrtc.parent}"] if nvrtc else []

    def make(work: Path) -> Path:
        return library.make(toolkit, sources, work / "driver.so", work, _EXPORTED, needs)

    return made_once(cache_folder() / f"driver-{key}.so", make)


def _refuse(core: ModuleType, reason: str) -> None:
    for name in _CLASSES:
        setattr(core, name, missing_class(f"cuda.core.{name}", reason))
    core.launch = missing("cuda.core.launch", reason)  # type: ignore[attr-defined]


def _tell(error: BaseException) -> None:
    """A function that is not modelled: its caller gets a number, and its name is said here."""
    said = error.told() if isinstance(error, EmulatorError) else f"{type(error).__name__}: {error}"
    print(f"b200: {said}", file=sys.stderr, flush=True)


# --- without the library


def refuse_libraries() -> None:
    """From now on the modules of cuda.bindings that load libraries of the driver refuse by name."""
    for module, what in _ABSENT.items():
        when_imported(f"cuda.bindings._internal.{module}", functools.partial(_refuse_in, what))


def _refuse_in(what: str, module: ModuleType) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise _absent_class()("unsupported", f"{what} is not in the software B200")

    setattr(module, _LOAD, refuse)


def _absent_class() -> type[EmulatorError]:
    """Our error, and what programs catch that look for a driver."""
    try:
        from cuda.pathfinder import (  # pyright: ignore[reportAttributeAccessIssue]
            DynamicLibNotFoundError,
        )
    except ImportError:
        return EmulatorError
    bases: Any = (EmulatorError, DynamicLibNotFoundError)
    return type("LibraryNotFound", bases, {})
