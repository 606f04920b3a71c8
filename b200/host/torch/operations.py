"""Operations of torch that a CUDA graph carries out again (recording.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from b200.host.torch.work import watch

_T = torch.Tensor
_AS_THEY_ARE = torch._C.DisableTorchFunctionSubclass


class Operation:
    """One operation: what it reads and changes, and the tensors that take its new results."""

    def __init__(
        self,
        name: str,
        again: Callable[[], Any],
        given: list[torch.Tensor],
        written: list[torch.Tensor],
        fresh: list[torch.Tensor],
    ):
        self.name, self.again = name, again
        self.given, self.written, self.fresh = given, written, fresh

    def __call__(self) -> None:
        with _AS_THEY_ARE(), torch.no_grad():
            there = {storage_of(tensor) for tensor in self.given}
            found = tree_leaves(self.again())
            new = [t for t in found if is_dense(t) and storage_of(t) not in there]
            for to, source in zip(self.fresh, new, strict=True):
                to.detach().copy_(source)
        if (looks := watch()) is not None:
            looks.does(self.name, self.given, [*self.written, *self.fresh])


def whole(name: str, function: Callable) -> Callable:
    """`function`, of tensors on the GPU, as one operation: its own steps are not recorded."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        mode = _recorders[-1] if _recorders else None
        if mode is None or mode.inside or not mode.capturing():
            return function(*args, **kwargs)
        mode.inside = True
        try:
            result = function(*args, **kwargs)
        finally:
            mode.inside = False
        given = [*filter(is_dense, tree_leaves((args, kwargs)))]
        again = functools.partial(function, *args, **kwargs)
        mode.record(Operation(name, again, given, [], [*filter(is_dense, tree_leaves(result))]))
        return result

    return call


class Recorder(Protocol):
    """What records operations. inside: whether one whose steps are not recorded is carried out."""

    inside: bool

    def capturing(self) -> bool: ...
    def record(self, operation: Operation) -> None: ...


_recorders: list[Recorder] = []


def use(recorder: Recorder | None) -> None:
    """Record with this one, and no other."""
    _recorders[:] = [] if recorder is None else [recorder]


def is_dense(thing: Any) -> bool:
    return isinstance(thing, _T) and thing.layout == torch.strided


def storage_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory."""
    return _T.untyped_storage(tensor).data_ptr()
