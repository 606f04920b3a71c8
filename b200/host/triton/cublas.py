"""`triton._C.libtriton.nvidia.cublas.CublasLt`, which Triton's tutorials compare with: torch's CPU
arithmetic in place of cuBLAS.

Arguments as in Triton's third_party/nvidia/triton_nvidia.cc and include/cublas_instance.h.
"""

from __future__ import annotations

from typing import Any

from b200.host.refusals import missing


class CublasLt:
    """Products of matrices with K in their last dimension. The workspace is not used."""

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


def patch(library: Any) -> None:
    """Put it into `triton._C.libtriton`, if this version has one."""
    nvidia = getattr(library, "nvidia", None)
    if nvidia is not None and hasattr(getattr(nvidia, "cublas", None), "CublasLt"):
        nvidia.cublas.CublasLt = CublasLt
