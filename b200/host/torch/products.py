"""torch.mm and its like with `out_dtype`, which torch has for CUDA only: sums in float32."""

# Functions of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from b200.host.runtime import Runtime
from b200.host.torch.devices import CudaTensor

NAMES = ("mm", "bmm", "addmm", "baddbmm")
_NARROW = (torch.float16, torch.bfloat16)


def patch(_runtime: Runtime) -> None:
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
