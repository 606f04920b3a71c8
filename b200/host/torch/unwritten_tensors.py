"""Tensors without contents start as the pattern of unwritten memory (chip/unwritten.py).

torch.empty hands out what this process's heap held; a kernel that reads it would give something
else in the next run. Tensors on the CPU start so, too: kernels of the CuTe DSL take them.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from b200.chip.unwritten import fill
from b200.host.runtime import Runtime
from b200.host.torch.devices import CudaTensor

_FUNCTIONS = ("empty", "empty_like", "empty_strided", "empty_permuted")
_METHODS = ("new_empty", "new_empty_strided")


def patch(_runtime: Runtime) -> None:
    kinds = (torch.Tensor, torch.nn.Parameter, CudaTensor)
    for name in _FUNCTIONS:
        setattr(torch, name, _filled(getattr(torch, name), kinds))
    for name in _METHODS:
        setattr(torch.Tensor, name, _filled(getattr(torch.Tensor, name), kinds))
    torch.Tensor.resize_ = _resized(torch.Tensor.resize_, kinds)


def _filled(function: Callable, kinds: tuple[type, ...]):
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any):
        result = function(*args, **kwargs)
        if kwargs.get("out") is None and type(result) in kinds:
            _fill(result, 0)
        return result

    return make


def _resized(resize, kinds: tuple[type, ...]):
    @functools.wraps(resize)
    def call(self, *args: Any, **kwargs: Any):
        before = _memory(self)[1] if type(self) in kinds else None
        result = resize(self, *args, **kwargs)
        if before is not None and _memory(self)[1] > before:
            _fill(self, before)
        return result

    return call


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of the memory of a dense tensor on the CPU; zeros of another."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return 0, 0
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()


def _fill(tensor: torch.Tensor, start: int) -> None:
    """Fill the memory of a tensor from byte `start` on."""
    address, nbytes = _memory(tensor)
    if nbytes:
        fill(np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)), start)
