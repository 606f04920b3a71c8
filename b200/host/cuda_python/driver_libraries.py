"""Libraries of NVIDIA's driver that cuda.bindings loads: there are none, and their names are said.

Functions of cuda.bindings.driver are taken over, so it looks for libcuda only where a program asks
for what lies behind them; NVML has nothing behind it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from b200.errors import EmulatorError
from b200.host.imports import when_imported

LOAD = "load_nvidia_dynamic_lib"  # the function of cuda.bindings' modules that finds a library
_LIBRARIES = {"driver": "the machine code of libcuda", "nvml": "NVML"}


def refuse() -> None:
    """From now on the modules that load them refuse by name."""
    for module, what in _LIBRARIES.items():
        when_imported(f"cuda.bindings._internal.{module}", lambda found, w=what: _put(found, w))


def _put(module: ModuleType, what: str) -> None:
    setattr(module, LOAD, lambda *_: _refuse(what))


def _refuse(what: str) -> NoReturn:
    raise _absent_class()("unsupported", f"{what} is not in the software B200")


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
