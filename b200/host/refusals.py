"""Calls that CUDA refuses, and the numbers that it returns for them.

Programs act on such a number: they ask for less shared memory, take another path, print it. So what
a B200 would refuse gets its number here; what is not modelled, and what goes wrong in a kernel,
stays an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from b200 import occupancy
from b200.errors import EmulatorError
from b200.hardware import SM_COUNT
from b200.program.names import readable


class Refused(EmulatorError):
    """A call that a B200 refuses. code: what its function returns, a cudaError_t and CUresult."""

    def __init__(self, code: int, report: str):
        super().__init__("limit", report)
        self.code = code

    def __reduce__(self) -> tuple[type[Refused], tuple[Any, ...]]:
        return (Refused, (self.code, str(self)))


INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION = 1, 2, 9
INVALID_SYMBOL, INVALID_DIRECTION, INVALID_KERNEL, INVALID_DEVICE = 13, 21, 98, 101
INVALID_PTX = 218
NO_KERNEL_IMAGE, INVALID_HANDLE, ILLEGAL_STATE, NOT_FOUND = 209, 400, 401, 500
ILLEGAL_ADDRESS, OUT_OF_RESOURCES, TIMEOUT, ASSERT, MISALIGNED = 700, 701, 702, 710, 716
LAUNCH_FAILURE, COOPERATIVE_TOO_LARGE, NOT_SUPPORTED = 719, 720, 801
UNJOINED, GRAPH_UPDATE = 904, 910


def _read() -> dict[int, tuple[str, str, str]]:
    """Names of the runtime and words are what cudaGetErrorName and cudaGetErrorString of CUDA 13.0
    return, names of the driver those of cuda.h. "-" stands where one of the two has none.
    """
    found = {}
    for line in Path(__file__).with_name("error_numbers.txt").read_text().splitlines()[1:]:
        number, runtime, driver, text = (*line.split(" ", 3), "")[:4]
        found[int(number)] = (runtime.replace("-", ""), driver.replace("-", ""), text)
    return found


NAMES = _read()  # number -> (cudaError_t, CUresult, CUDA's words)


def invalid(report: str) -> Refused:
    return Refused(INVALID_VALUE, report)


def code_of(error: EmulatorError, launch: bool = False) -> int:
    """The number for what a B200 refuses: kind "limit". launch: by a launch."""
    return getattr(error, "code", INVALID_CONFIGURATION if launch else INVALID_VALUE)


def text(code: int, otherwise: str = "unrecognized error code") -> str:
    return NAMES.get(code, ("", "", ""))[2] or otherwise


def driver_code(code: int) -> int:
    """The CUresult for a cudaError_t."""
    return code if NAMES.get(code, ("", ""))[1] else INVALID_VALUE


def lasting_code(error: EmulatorError) -> int | None:
    """What every call returns after a launch that ended with this error; None for one that left the
    context as it was. A kernel that hangs ends on a GPU with its process, or a watchdog's timeout.
    """
    if error.kind == "deadlock":
        return TIMEOUT
    if error.kind != "fault":
        return None
    if "is in no tensor's allocation" in str(error):
        return ILLEGAL_ADDRESS
    if "assertion `" in str(error):
        return ASSERT
    return MISALIGNED if "aligned" in str(error) else LAUNCH_FAILURE


def check_cooperative(kernel: str, ctas: int, threads: int, smem: int, registers: int = 0) -> None:
    """Refuse a cooperative grid whose CTAs are not resident at once. smem: static and dynamic bytes
    of a CTA; registers: of a thread, 0 where they are not known.
    """
    room = SM_COUNT * occupancy.ctas_per_sm(threads, smem, registers)
    if ctas > room:
        raise Refused(
            COOPERATIVE_TOO_LARGE,
            f"launch of {readable(kernel)} refused: a cooperative grid of {ctas} CTAs, {room} are"
            " resident at once",
        )


def unsupported(report: str) -> EmulatorError:
    """What a B200 does, and the software B200 does not."""
    return EmulatorError("unsupported", report)


def _absent(name: str, why: str) -> EmulatorError:
    said = f"{name} is not in the software B200"
    return unsupported(f"{said}: {why}" if why else said)


def missing(name: str, why: str = "") -> Callable[..., NoReturn]:
    """A function of a library that is not there: it raises EmulatorError with its name. why: the
    reason, where it could be there.
    """

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise _absent(name, why)

    refuse.__name__ = name.rsplit(".", 1)[1]
    return refuse


class _MissingType(type):
    """What stands for a class that is not modelled: its calls and the names in it raise."""

    why: str

    def __call__(cls, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _absent(f"{cls.__module__}.{cls.__name__}", cls.why)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _absent(f"{cls.__module__}.{cls.__name__}.{name}", cls.why)


def missing_class(name: str, why: str = "") -> type:
    """A class of a library that is not there, which programs may name: `isinstance` is False. why:
    as of `missing`.
    """
    module, _, own = name.rpartition(".")
    return _MissingType(own, (), {"__module__": module, "why": why})
