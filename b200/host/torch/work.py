"""What torch's functions do in queues: which tensors of the GPU they read and write, and which
memory of the host a copy shares with it.

`Watch` is told of each function of torch that is given a CudaTensor or a pinned tensor. A tensor
whose version a function has changed, and a result in memory of its own, is written; the other
tensors are read, unless nothing is written, as by a view.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from b200.checker.launches.dependent_launch import UNIT
from b200.checker.launches.other_queues import Act, ActAccess
from b200.host.callers import caller
from b200.host.captures import Capture
from b200.host.queues import HOST
from b200.host.works import Works

MOST = 1 << 22  # elements of a tensor that is not contiguous and is looked at
_MAKE = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
_READ_NOTHING = (*(f"{name}_like" for name in _MAKE), *(f"new_{name}" for name in _MAKE))
_WRITE_NOTHING = ("empty_like", "empty_strided", "new_empty", "new_empty_strided")

_T = torch.Tensor
READS = {  # functions that bring values to the host, which waits for the current queue
    _T.item,
    _T.tolist,
    _T.equal,
    _T.allclose,
    _T.nonzero,
    _T.__bool__,
    _T.__int__,
    _T.__float__,
    _T.__index__,
    _T.__contains__,
    _T.__repr__,
    _T.__format__,
    torch.equal,
    torch.allclose,
    torch.nonzero,
}
# what CUDA says of a wait for a queue under capture
NOT_PERMITTED = (
    "CUDA error: operation not permitted when stream is capturing\n"
    "The host waits for a graph under capture, which runs when it is replayed."
)
_AS_THEY_ARE = torch._C.DisableTorchFunctionSubclass
Versions = list[tuple[torch.Tensor, int | None]]


class Watch:
    """Tells `works` what functions of torch do. current: the handle of torch's current queue."""

    def __init__(self, works: Works, current: Callable[[], int]):
        self.works, self.current = works, current

    def before(self, args: tuple, kwargs: dict) -> Versions | None:
        """The tensors that a function is given and their versions; None if nobody looks."""
        if not self.works.looks and not self.works.overlap:
            return None
        with _AS_THEY_ARE():
            return [(t, _version(t)) for t in tree_leaves((args, kwargs)) if is_dense(t)]

    def after(self, func: Any, given: Versions, kwargs: dict, result: Any) -> None:
        name = getattr(func, "__name__", "")
        with _AS_THEY_ARE():
            written = _written(name, given, kwargs, result)
        if not written or name in _WRITE_NOTHING:
            return
        read = [] if name in _READ_NOTHING else [t for t, _ in given]
        self.does(f"torch.{name}", read, written)

    def does(self, text: str, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """A function of torch reads and writes these tensors, in the current queue."""
        self.works.runtime.ends(self.current())
        if self.works.looks:
            self.works.put(self.current(), Act(text, caller()), self._accesses(read, written))

    def by_host(self, text: str, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        if self.works.looks:
            self.works.by_host(Act(text, caller()), self._accesses(read, written))

    def on_host(self, func: Any, given: Versions, kwargs: dict, result: Any) -> None:
        """A function of host tensors alone has been carried out."""
        name = getattr(func, "__name__", "")
        with _AS_THEY_ARE():
            written = _written(name, given, kwargs, result)
        if written or func in READS or func in (_T.numpy, _T.__array__):
            self.by_host(f"torch.{name}", [t for t, _ in given], written)

    def copied(
        self, to: torch.Tensor, source: torch.Tensor, ways: tuple[bool, bool], waits: bool
    ) -> None:
        """A copy from or to the GPU. ways: whether the source, and the destination, is shared with
        what runs in queues: on the GPU or pinned. waits: whether the host waits for the copy.
        """
        self.does("Tensor.copy_", [source] if ways[0] else [], [to] if ways[1] else [])
        if waits:
            self.waits()

    @property
    def capture(self) -> Capture | None:
        """The graph under capture into which work of the current queue goes; None without one."""
        return self.works.runtime.capture_of(self.current())

    def waits(self) -> None:
        if self.capture is not None:
            raise RuntimeError(NOT_PERMITTED)
        self.works.runtime.queues.joins(HOST, self.current())

    def _accesses(self, read: list, written: list) -> Iterator[ActAccess]:
        for tensors, write in ((read, False), (written, True)):
            for tensor in tensors:
                yield from self._access(tensor, write)

    def _access(self, tensor: torch.Tensor, write: bool) -> Iterator[ActAccess]:
        with _AS_THEY_ARE():
            address, size = tensor.data_ptr(), tensor.element_size()
            shape, steps = tuple(tensor.shape), tensor.stride()
            whole = tensor.is_contiguous()
        count = int(np.prod(shape))
        if not address or not count:
            return
        if whole:
            yield from self.works.span(address, count * size, write)
        elif count <= MOST:
            index = np.zeros((), np.int64)
            for n, step in zip(shape, steps):
                index = np.add.outer(index, np.arange(n) * step * size)
            # All of it: memory that was freed may be known at its beginning.
            for access in self.works.span(address, int(index.max()) + size, write):
                at = address - access.region.base
                yield access._replace(index=np.unique((index + at) // UNIT))


_watches: list[Watch] = []


def use(watch: Watch) -> None:
    _watches[:] = [watch]


def watch() -> Watch | None:
    return _watches[0] if _watches else None


def host_reads() -> None:
    """The host waits for the current queue."""
    for each in _watches:
        each.waits()


def is_dense(thing: Any) -> bool:
    return isinstance(thing, _T) and thing.layout == torch.strided


def storage_of(tensor: torch.Tensor) -> int:
    return _T.untyped_storage(tensor).data_ptr()


def _version(tensor: torch.Tensor) -> int | None:
    """A count of the writes to a tensor's memory; None under torch.inference_mode."""
    return None if tensor.is_inference() else tensor._version


def _written(name: str, given: Versions, kwargs: dict, result: Any) -> list[torch.Tensor]:
    """The tensors that a function has written, one of those that share their memory."""
    in_place = name.endswith("_") and not name.endswith("__") or name == "__setitem__"
    found = []
    for number, (tensor, version) in enumerate(given):
        if version is None:
            changed = number == 0 and in_place or tensor is kwargs.get("out")
        else:
            changed = tensor._version != version
        if changed:
            found.append(tensor)
    memory = {storage_of(tensor) for tensor, _ in given}
    found += [t for t in tree_leaves(result) if is_dense(t) and storage_of(t) not in memory]
    return list({storage_of(tensor): tensor for tensor in reversed(found)}.values())
