"""NVRTC of cuda-python: its own library compiles, for real, and gives PTX.

Lines are those of the user's file. A program that asks for machine code (nvrtcGetCUBIN) gets the
PTX, which cuModuleLoadData and cuLibraryLoadData take in its place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from b200.host.cuda.errors import BuildError
from b200.host.cuda.modules import Modules
from b200.host.cuda.sources import Origin, callers, origin, relocate
from b200.host.cuda_python.host_memory import address_of

_LINES = (b"-lineinfo", b"--generate-line-info", b"-G", b"--device-debug")


def patch(_modules: Modules) -> None:
    from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

    for name, function in _Programs(nvrtc).functions().items():
        setattr(nvrtc, name, function)


class _Programs:
    """The programs of a process: their lines and their PTX, by handle."""

    def __init__(self, nvrtc: Any):
        self._create = needing_library(nvrtc.nvrtcCreateProgram)
        self._version = needing_library(nvrtc.nvrtcVersion)
        self._compile = nvrtc.nvrtcCompileProgram
        self._destroy = nvrtc.nvrtcDestroyProgram
        self._ptx_size, self._ptx = nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX
        self._success = nvrtc.nvrtcResult.NVRTC_SUCCESS
        self._origins: dict[int, dict[str, Origin]] = {}
        self._texts: dict[int, bytes] = {}

    def functions(self) -> dict[str, Callable]:
        return {
            "nvrtcVersion": self._version,
            "nvrtcCreateProgram": self.create,
            "nvrtcCompileProgram": self.compile,
            "nvrtcDestroyProgram": self.destroy,
            "nvrtcGetPTXSize": self.size,
            "nvrtcGetPTX": self.text,
            "nvrtcGetCUBINSize": self.size,
            "nvrtcGetCUBIN": self.text,
        }

    def create(self, source: bytes, name: bytes | None, *headers: Any) -> tuple:
        status, program = self._create(source, name, *headers)
        if status == self._success:
            file = (name or b"default_program").decode()
            files = [file, *callers()] if Path(file).is_file() else callers()
            found = origin(source.decode(errors="replace"), files)
            self._origins[int(program)] = {} if found is None else {Path(file).name: found}
        return status, program

    def compile(self, program: Any, count: int, options: Any) -> tuple:
        """Compile, with line information where the program's lines are those of a file."""
        flags = [*options][:count] if options else []
        if self._origins.get(int(program)) and not any(flag in _LINES for flag in flags):
            flags.append(_LINES[0])
        self._texts.pop(int(program), None)
        return self._compile(program, len(flags), flags)

    def destroy(self, program: Any) -> tuple:
        for known in (self._origins, self._texts):
            known.pop(int(program), None)
        return self._destroy(program)

    def size(self, program: Any) -> tuple:
        """Bytes, the zero at the end counted."""
        status, text = self._relocated(program)
        return status, len(text)

    def text(self, program: Any, out: Any) -> tuple:
        status, text = self._relocated(program)
        ctypes.memmove(address_of(out), text, len(text))
        return (status,)

    def _relocated(self, program: Any) -> tuple[Any, bytes]:
        key = int(program)
        if key not in self._texts:
            status, size = self._ptx_size(program)
            text = bytearray(size)
            if status == self._success:
                (status,) = self._ptx(program, text)
            if status != self._success:
                return status, b""
            ptx = text.rstrip(b"\0").decode()
            self._texts[key] = relocate(ptx, self._origins.get(key, {})).encode() + b"\0"
        return self._success, self._texts[key]


def needing_library(function: Callable) -> Callable:
    """A function of cuda.bindings.nvrtc; BuildError where libnvrtc is not installed."""

    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except RuntimeError as error:  # of cuda-python: the library cannot be loaded
            if "nvrtc" not in str(error):
                raise
            raise BuildError(
                "libnvrtc is missing: CUDA of cuda-python's nvrtc is compiled for real; install the"
                " extra `nvrtc` (pip install 'nvfp4-b200[nvrtc]') or a CUDA toolkit"
            ) from None

    return call
