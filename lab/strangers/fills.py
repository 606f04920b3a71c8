"""What torch itself runs in a call: a fill takes a kernel, and the published time has it.

The profiler adds up all kernels of a call. `torch.ones(1)` in front of a kernel is one of them, of
torch's own binary. Its place takes a kernel of the same shape (PyTorch,
aten/src/ATen/native/cuda/CUDALoops.cuh: 128 threads, four elements each).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from b200.chip.gpu import Gpu
from b200.chip.launch import Launch

_FUNCTIONS = ("full", "full_like", "ones", "ones_like", "zeros", "zeros_like")
_METHODS = ("fill_", "zero_", "new_full", "new_ones", "new_zeros")
NAMES = (*((torch, name) for name in _FUNCTIONS), *((torch.Tensor, name) for name in _METHODS))
THREADS, EACH = 128, 4
_STORES = "\n".join(
    f"""add.u32 %r4, %r3, {i * THREADS};
setp.lt.u32 %p{i}, %r4, %r5;
mul.wide.u32 %rd2, %r4, 4;
add.u64 %rd3, %rd1, %rd2;
@%p{i} st.global.u32 [%rd3], %r6;"""
    for i in range(EACH)
)
PTX = f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry fill(.param .u64 out, .param .u32 count, .param .u32 value)
.maxntid {THREADS}, 1, 1
{{
.reg .pred %p<{EACH}>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [out]; ld.param.u32 %r5, [count]; ld.param.u32 %r6, [value];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
mad.lo.u32 %r3, %r2, {THREADS * EACH}, %r1;
{_STORES}
ret;
}}
"""


class Fills:
    """Notes how many elements each fill of the GPU's memory has, while it is entered."""

    def __init__(self) -> None:
        self.elements: list[int] = []
        self.inside = False  # a function that fills may call another one

    def __enter__(self) -> Fills:
        self.kept = [(owner, name, getattr(owner, name)) for owner, name in NAMES]
        for owner, name, function in self.kept:
            setattr(owner, name, self._noting(function))
        return self

    def __exit__(self, *_error: object) -> None:
        for owner, name, function in self.kept:
            setattr(owner, name, function)

    def _noting(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def noting(*args: Any, **kwargs: Any) -> torch.Tensor:
            outer, self.inside = self.inside, True
            try:
                found = function(*args, **kwargs)
            finally:
                self.inside = outer
            if found.is_cuda and found.numel() and not outer:
                self.elements.append(found.numel())
            return found

        return noting


def launched(gpu: Gpu, count: int) -> Launch:
    """The launch of a fill of `count` elements of four bytes."""
    out = torch.empty(count, dtype=torch.int32, device="cuda")
    grid = (-(-count // (THREADS * EACH)), 1, 1)
    return gpu.launch(PTX, "fill", grid, (THREADS, 1, 1), args=(out, count, 1))
