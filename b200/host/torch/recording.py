"""torch's operations in a CUDA graph: recorded where they are called, carried out by each replay.

While a graph is captured, the dispatcher tells of each operation below autograd. One that touches
tensors on the GPU is recorded with its operands and the memory of its results. Nothing that existed
before is changed by it until the graph is replayed, as on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from b200.host.captures import Capture
from b200.host.torch.device_arguments import on_gpu
from b200.host.torch.devices import allocations
from b200.host.torch.modes import Mode
from b200.host.torch.work import NOT_PERMITTED, is_dense, storage_of, watch

_T = torch.Tensor
_AS_THEY_ARE = torch._C.DisableTorchFunctionSubclass
_NO_CONTENTS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_OTHER_MEMORY = ("resize_", "resize_as_", "set_", "detach_")  # change a tensor, not its values


class RecordedOperation:
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
        mode = _recordings[-1] if _recordings else None
        if mode is None or mode.inside or not mode.capturing():
            return function(*args, **kwargs)
        mode.inside = True
        try:
            result = function(*args, **kwargs)
        finally:
            mode.inside = False
        given = [*filter(is_dense, tree_leaves((args, kwargs)))]
        again = functools.partial(function, *args, **kwargs)
        results = [*filter(is_dense, tree_leaves(result))]
        mode.capture.take(RecordedOperation(name, again, given, [], results), None)
        return result

    return call


class Recording(Mode):
    """Records the operations of its thread. capturing: whether the current queue is recorded.
    inside: whether an operation whose steps are not recorded is carried out.
    """

    def __init__(self, capture: Capture, capturing: Callable[[], bool]):
        super().__init__()
        self.capture, self.capturing = capture, capturing
        self.inside = False
        self.made: set[int] = set()  # addresses of storages of results

    def __torch_dispatch__(self, func, types: tuple, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        if self.inside or not self.capturing() or not self._on_gpu(args, kwargs):
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if name == "_local_scalar_dense":
            raise RuntimeError(NOT_PERMITTED)
        if name in _OTHER_MEMORY or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        written = _written(func, args, kwargs)
        result = _unchanged(func, args, kwargs, written) if written else func(*args, **kwargs)
        given = [*filter(is_dense, tree_leaves((args, kwargs)))]
        there = {storage_of(tensor) for tensor in given}
        fresh = [t for t in tree_leaves(result) if is_dense(t) and storage_of(t) not in there]
        self.made.update(map(storage_of, fresh))
        self.capture.kept += fresh
        if written or fresh and name not in _NO_CONTENTS:
            again = functools.partial(func, *args, **kwargs)
            self.capture.take(
                RecordedOperation(f"torch.{name}", again, given, written, fresh), None
            )
        return result

    def __enter__(self):
        _recordings[:] = [self]
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        _recordings.clear()
        super().__exit__(*exception)

    def _on_gpu(self, args: tuple, kwargs: dict) -> bool:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, _T)]
        if not tensors:
            return on_gpu.made
        addresses = {storage_of(tensor) for tensor in tensors if is_dense(tensor)}
        return on_gpu.made or any(a in self.made or allocations.holds(a) for a in addresses)


_recordings: list[Recording] = []  # the one that is under way


def _written(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The operands that an operation changes, by its schema."""
    found = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found += filter(is_dense, tree_leaves(value))
    return found


def _unchanged(func: Any, args: tuple, kwargs: dict, written: list[torch.Tensor]) -> Any:
    """The result of an operation that has changed copies of what it changes; the operands where it
    hands these back.
    """
    with _AS_THEY_ARE():
        copies = {id(tensor): tensor.clone() for tensor in written}
    back = {id(copies[id(tensor)]): tensor for tensor in written}
    some_args, some_kwargs = tree_map_only(_T, lambda t: copies.get(id(t), t), (args, kwargs))
    result = func(*some_args, **some_kwargs)
    for tensor in written:  # `out=` without memory gets some
        if tensor.shape != copies[id(tensor)].shape:
            tensor.resize_(copies[id(tensor)].shape)
    return tree_map_only(_T, lambda t: back.get(id(t), t), result)
