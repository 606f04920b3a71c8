"""Triton and Gluon over a B200 in software.

backend.py      the compiler: Triton's own, whose machine code carries its PTX with it
driver.py       the driver: device, memory limits, tensormaps, modules
launcher.py     a launch: arguments to parameters, metadata to launch attributes
benchmark.py    triton.testing.do_bench, and what autotuning takes for a time

Both stand in Triton's own table of backends, and the driver is made active through
`triton.runtime.driver.set_active`. Triton is imported when the program imports it.
"""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType
from typing import Any

from b200.host.cuda.modules import Modules
from b200.host.imports import when_imported
from b200.host.refusals import missing
from b200.host.triton import benchmark
from b200.host.triton.backend import software_backend
from b200.host.triton.driver import software_driver


def install(modules: Modules) -> None:
    """Make Triton compile for this B200 and launch on it, once the program imports it."""
    when_imported("triton.backends", functools.partial(_patch_backends, modules))
    when_imported("triton.runtime.driver", _activate)
    benchmark.install(modules.runtime)


def _patch_backends(modules: Modules, backends: ModuleType) -> None:
    """Put compiler and driver of the software B200 into the place of NVIDIA's."""
    found = backends.backends.get("nvidia")
    if found is None:  # a Triton for other chips
        return
    nvidia = getattr(import_module("triton._C.libtriton"), "nvidia", None)
    if hasattr(getattr(nvidia, "cublas", None), "CublasLt"):  # not in each version
        nvidia.cublas.CublasLt = CublasLt  # pyright: ignore[reportOptionalMemberAccess]
    backends.backends["nvidia"] = backends.Backend(
        compiler=software_backend(found.compiler), driver=software_driver(found.driver, modules)
    )


def _activate(driver: ModuleType) -> None:
    """A driver that was made before: the next one asked for is ours."""
    config = driver.driver
    if getattr(config, "_active", None) is not None:
        config.set_active(import_module("triton.backends").backends["nvidia"].driver())


class CublasLt:
    """Products of matrices with K in their last dimension, which Triton's tutorials compare with:
    torch's CPU arithmetic in place of cuBLAS. The workspace is not used. Arguments as in Triton's
    third_party/nvidia/triton_nvidia.cc and include/cublas_instance.h.
    """

    def __init__(self, workspace: Any = None):
        self.workspace = workspace

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        """c = a @ b.T, with a [M, K], b [N, K], c [M, N]; summed in float32, rounded once."""
        self.gemm(a, b, c, c, 1.0, 0.0)

    def gemm(self, a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
        """d = alpha * (a @ b.T) + beta * c."""
        product = alpha * (a.float() @ b.float().T)
        d.copy_((product + beta * c.float() if beta else product).to(d.dtype))

    block_scaled_matmul_mxfp8 = staticmethod(missing("CublasLt.block_scaled_matmul_mxfp8"))
    block_scaled_matmul_nvfp4 = staticmethod(missing("CublasLt.block_scaled_matmul_nvfp4"))
