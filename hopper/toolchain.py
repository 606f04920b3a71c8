"""Compiles CUDA C++ to PTX by NVRTC or nvcc, and PTX to machine code by ptxas or the driver."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hopper.errors import HopperError
from hopper.rewrite import TARGET

DEVICE = Path(__file__).parent / "device"
PARTS = ("base.cu", "memory.cu", "fp4.cu", "mma.cu", "barriers.cu")


def source() -> str:
    """The device functions as one CUDA C++ file."""
    return "\n".join((DEVICE / part).read_text() for part in PARTS)


@functools.cache
def device_functions() -> str:
    """The device functions as PTX for sm_90a. Raises HopperError if NVRTC and nvcc are missing."""
    reasons = []
    for compiler in (with_nvrtc, with_nvcc):
        try:
            return compiler(source())
        except HopperError as error:
            if error.kind != "missing":
                raise
            reasons.append(str(error))
    raise HopperError("missing", "no compiler for the device functions: " + "; ".join(reasons))


def with_nvrtc(text: str) -> str:
    """Compile to PTX with NVRTC through cuda-python."""
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

        error, _, _ = nvrtc.nvrtcVersion()
    except (
        Exception
    ) as failure:  # cuda-python raises RuntimeError where the library cannot be loaded
        raise HopperError("missing", f"NVRTC cannot be loaded ({failure})") from None

    def checked(result) -> Any:
        error, *values = result
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise HopperError("compile", f"NVRTC: {error.name}{_nvrtc_log(nvrtc, program)}")
        return values[0] if values else None

    program = None
    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), b"device.cu", 0, [], []))
    options = [
        f"--gpu-architecture=compute_{TARGET[3:]}".encode(),
        b"--relocatable-device-code=true",
    ]
    checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    size = checked(nvrtc.nvrtcGetPTXSize(program))
    out = bytearray(size)
    checked(nvrtc.nvrtcGetPTX(program, out))
    nvrtc.nvrtcDestroyProgram(program)
    return out.rstrip(b"\0").decode()


def _nvrtc_log(nvrtc, program) -> str:
    if program is None:
        return ""
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    return "\n" + log.rstrip(b"\0").decode()


def with_nvcc(text: str) -> str:
    """Compile to PTX with nvcc."""
    if shutil.which("nvcc") is None:
        raise HopperError("missing", "nvcc is not on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "device.cu", Path(folder) / "device.ptx"
        file.write_text(text)
        _call(["nvcc", f"-arch={TARGET}", "-rdc=true", "-ptx", str(file), "-o", str(out)])
        return out.read_text()


def has_ptxas() -> bool:
    return shutil.which("ptxas") is not None


@functools.lru_cache(maxsize=1)  # copies of a module are loaded one after the other
def assemble(ptx: str) -> bytes:
    """Machine code of `ptx` if ptxas is on the PATH; else the PTX itself, for the driver."""
    if not has_ptxas():
        return ptx.encode() + b"\0"
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        file.write_text(ptx)
        _call(["ptxas", f"-arch={TARGET}", str(file), "-o", str(out)])
        return out.read_bytes()


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        folder = f"{Path(command[-1]).parent}/"  # temporary, of no use to a reader
        lines = [line for line in done.stderr.replace(folder, "").splitlines() if line.strip()]
        raise HopperError("compile", f"{command[0]} refused the program:\n" + "\n".join(lines[:10]))
