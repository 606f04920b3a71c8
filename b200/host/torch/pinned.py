"""Pinned memory of the host: a copy from or to it need not be done when the call returns.

A PinnedTensor is a tensor on the CPU that says it is pinned. What the host does with it is held
against the copies of queues that it has not waited for (work.py). What numpy and C++ do with its
memory later is not seen.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from b200.host.torch.work import watch

_Tensor = torch.Tensor
_ON_CPU = torch._C.DisableTorchFunctionSubclass


class PinnedTensor(torch.Tensor):
    """CPU memory that says it is pinned."""

    @classmethod
    def __torch_function__(cls, func, types: tuple, args: tuple = (), kwargs=None):
        kwargs = kwargs or {}
        other = next((kind for kind in types if kind is not cls and kind is not _Tensor), None)
        if other is not None:  # a CudaTensor among the arguments
            return other.__torch_function__(func, types, args, kwargs)
        if func in _SPECIAL:
            return _SPECIAL[func](*args)
        looks = watch()
        given = looks.before(args, kwargs) if looks is not None else None
        with _ON_CPU():
            result = func(*args, **kwargs)
            if looks is not None and given is not None:
                looks.on_host(func, given, kwargs, result)
            _pin_views(result, tree_leaves((args, kwargs)))
        return result


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Make a fresh CPU tensor a pinned one: the object itself."""
    if type(tensor) is _Tensor and tensor.device.type == "cpu":
        tensor.__class__ = PinnedTensor
        if (looks := watch()) is not None:
            looks.works.pinned = True
    return tensor


def _pin_views(result: Any, given: list) -> None:
    """Results that lie in pinned memory are pinned, too."""
    pinned = {t.untyped_storage().data_ptr() for t in given if type(t) is PinnedTensor}
    for tensor in tree_leaves(result):
        if type(tensor) is _Tensor and tensor.layout == torch.strided:
            if tensor.untyped_storage().data_ptr() in pinned:
                tensor.__class__ = PinnedTensor


def _represent(self) -> str:
    if (looks := watch()) is not None:
        looks.by_host("torch.Tensor.__repr__", [self], [])
    with _ON_CPU():
        return repr(self.as_subclass(_Tensor))


def _format(self, spec: str) -> str:
    with _ON_CPU():
        plain = self.as_subclass(_Tensor)
    return format(plain, spec) if self.dim() == 0 else repr(self)


_SPECIAL = {
    _Tensor.is_pinned: lambda self, device=None: True,
    _Tensor.pin_memory: lambda self, device=None: self,
    _Tensor.__repr__: _represent,
    _Tensor.__format__: _format,
    _Tensor.__reduce_ex__: lambda self, protocol: (pin, (self.as_subclass(_Tensor),)),
}
