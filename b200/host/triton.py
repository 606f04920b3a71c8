"""Triton's kernels, which the software B200 does not run: one line that says so.

Triton compiles for the target of the driver it finds, and loads machine code (cubin) through a C
library of its own that is built against libcuda. Without a GPU it ends in "0 active drivers" or in
a failing C compiler, wherever it first asks.
"""

from __future__ import annotations

from types import ModuleType

from b200.errors import EmulatorError
from b200.host.imports import when_imported

REFUSAL = (
    "Triton kernels are not in the software B200, which runs CuTe DSL and raw CUDA"
    " (torch.utils.cpp_extension)"
)


def install() -> None:
    """Make each launch of a Triton kernel raise EmulatorError."""
    when_imported("triton.runtime.jit", _refuse_launches)
    when_imported("triton.runtime.driver", _refuse_drivers)


def _refuse(*_args, **_kwargs):
    raise EmulatorError("unsupported", REFUSAL)


def _refuse_launches(jit: ModuleType) -> None:
    jit.JITFunction.run = _refuse


def _refuse_drivers(driver: ModuleType) -> None:
    driver._create_driver = _refuse  # pyright: ignore[reportAttributeAccessIssue]
