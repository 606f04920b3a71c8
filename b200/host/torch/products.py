"""Products of matrices that torch has for CUDA only.

torch._scaled_mm for NVFP4, computed in float64: operands are float4_e2m1fn_x2, (M, K/2) row-major
and (K/2, N) column-major; scales are float8_e4m3fn, one for 16 elements along K, in atoms of 128
rows x 4 scales (cuBLAS documentation, "1D block scaling factors layout"). The sum is rounded to
fp32 and then to `out_dtype`, as the tensor core and its epilogue do it. Other types go to torch's
own function for the CPU. torch.mm and its like with `out_dtype`: sums in float32.
"""

# Functions of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from b200.formats import decode
from b200.host.runtime import Runtime
from b200.host.torch.devices import CudaTensor, as_cpu, as_cuda
from b200.host.torch.recording import whole

BLOCK = 16  # elements of K that share a scale
ROWS_AT_ONCE = 1024  # dequantised at a time, which bounds the memory
NAMES = ("mm", "bmm", "addmm", "baddbmm")
_NARROW = (torch.float16, torch.bfloat16)


def patch_out_dtype(_runtime: Runtime) -> None:
    for name in NAMES:
        setattr(torch, name, _with_out_dtype(getattr(torch, name)))


def _with_out_dtype(function: Callable) -> Callable:
    @functools.wraps(function)
    def product(*args: Any, out_dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        if out_dtype is None:
            return function(*args, **kwargs)
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if not any(isinstance(tensor, CudaTensor) for tensor in tensors):
            return function(*args, out_dtype=out_dtype, **kwargs)
        factors = {tensor.dtype for tensor in tensors[-2:]}
        if factors != {out_dtype} and not (
            out_dtype == torch.float32 and len(factors) == 1 and factors <= {*_NARROW}
        ):
            raise RuntimeError(
                "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs, got"
                f" {out_dtype} for {', '.join(map(str, sorted(factors, key=str)))}"
            )
        wide = [arg.to(out_dtype) if isinstance(arg, torch.Tensor) else arg for arg in args]
        return function(*wide, **kwargs)

    return product


def patch_scaled_mm(_runtime: Runtime) -> None:
    original = torch._scaled_mm

    @functools.wraps(original)
    def scaled_mm(
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias=None,
        scale_result=None,
        out_dtype=None,
        **options: Any,
    ):
        if a.dtype != torch.float4_e2m1fn_x2:
            return original(a, b, scale_a, scale_b, bias, scale_result, out_dtype, **options)
        on_gpu = type(a) is CudaTensor
        operands = (as_cpu(t) for t in (a, b, scale_a, scale_b))
        bias = None if bias is None else as_cpu(bias)
        result = nvfp4_mm(*operands, bias=bias, out_dtype=out_dtype or torch.bfloat16)
        out = options.get("out")
        if out is not None:
            return out.copy_(result)
        return as_cuda(result) if on_gpu else result

    torch._scaled_mm = whole("torch._scaled_mm", scaled_mm)


def nvfp4_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """a (M, K/2) times b (K/2, N), both CPU tensors: (M, N) of out_dtype. ValueError names what
    does not fit.
    """
    if b.dtype != torch.float4_e2m1fn_x2:
        raise ValueError(f"torch._scaled_mm: a is float4_e2m1fn_x2, b is {b.dtype}")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"torch._scaled_mm: a is {tuple(a.shape)}, b is {tuple(b.shape)}; expected (M, K/2) and"
            " (K/2, N)"
        )
    k = 2 * a.shape[1]
    if k % BLOCK:
        raise ValueError(f"torch._scaled_mm: K is {k}, expected a multiple of {BLOCK}")
    left = _scales("scale_a", scale_a, a.shape[0], k)
    right = _scales("scale_b", scale_b, b.shape[1], k)
    rows, columns = a.shape[0], b.shape[1]
    weights, tokens = a.view(torch.uint8), b.t().view(torch.uint8)
    result = torch.empty((rows, columns), dtype=torch.float32)
    for column in range(0, columns, ROWS_AT_ONCE):
        upto = slice(column, column + ROWS_AT_ONCE)
        factor = _dequantize(tokens[upto], right[upto]).t()
        for row in range(0, rows, ROWS_AT_ONCE):
            part = slice(row, row + ROWS_AT_ONCE)
            result[part, upto] = (_dequantize(weights[part], left[part]) @ factor).float()
    if bias is not None:
        result += bias.float()
    return result.to(out_dtype)


def _scales(name: str, scales: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """The scales (rows, K/16) in float64 out of their atoms."""
    row_atoms, column_atoms = -(-rows // 128), -(-k // (4 * BLOCK))
    if scales.dtype != torch.float8_e4m3fn or scales.numel() != row_atoms * column_atoms * 512:
        raise ValueError(
            f"torch._scaled_mm: {name} is {scales.dtype} with {scales.numel()} elements; expected"
            f" float8_e4m3fn with {row_atoms * column_atoms * 512}, {row_atoms} x {column_atoms}"
            " atoms of 128 rows x 4 scales"
        )
    codes = scales.contiguous().view(torch.uint8).reshape(row_atoms, column_atoms, 32, 4, 4)
    codes = codes.permute(0, 3, 2, 1, 4).reshape(row_atoms * 128, column_atoms * 4)
    return torch.from_numpy(decode(codes[:rows, : k // BLOCK].numpy(), "ue4m3"))


def _dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(rows, K/2) bytes, element 2i in the low nibble, and (rows, K/16) scales -> (rows, K)."""
    pairs = codes.contiguous().numpy()
    values = decode(np.stack([pairs & 15, pairs >> 4], axis=-1), "e2m1")
    blocks = torch.from_numpy(values).view(codes.shape[0], -1, BLOCK)
    return (blocks * scales.unsqueeze(2)).view(codes.shape[0], -1)
