"""CPU tensors of this process as global memory, and arrays of numpy that launches are given.

An address is legal while a tensor holds the storage it lies in. Where PyTorch is not loaded, there
are none.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import operator
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from b200.chip.global_memory import GlobalMemory, Region

_INSTALLED = f"{os.sep}site-packages{os.sep}"
_PACKAGE = str(Path(__file__).resolve().parent.parent)
LONGEST = 64  # list or tuple of tensors that is looked into


def _as_they_are(torch: Any) -> Any:
    """Within it, a subclass of Tensor that says it is elsewhere is the tensor on the CPU it is."""
    return getattr(torch._C, "DisableTorchFunctionSubclass", contextlib.nullcontext)()


def _tensors(objects: list[Any]) -> list[Any]:
    """The tensors among them, of all devices."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    kinds: set[type] = set()
    work: list[type] = [torch.Tensor]
    while work:
        kinds.add(kind := work.pop())
        work.extend(k for k in kind.__subclasses__() if k not in kinds)
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))


def _address(tensor: Any) -> int:
    """Of a tensor or storage; 0 of those that torch.compile traces with, which have no memory."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _is_gone(tensor: Any) -> bool:
    """Whether the object outlives its tensor, as it may with torch 2.9."""
    try:
        return tensor.device is None
    except RuntimeError:
        return True


def _frames() -> list[FrameType]:
    """The functions that run, but for ours: the program's own, then those of installed packages,
    both innermost first.
    """
    found: list[FrameType] = []
    frame = inspect.currentframe()
    frame = frame.f_back if frame is not None else None
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            found.append(frame)
        frame = frame.f_back
    return sorted(found, key=lambda f: _INSTALLED in f.f_code.co_filename)


class _Frozen:
    """The tensors among the objects that gc.freeze() has set apart: the collector lists no others.

    To list these takes gc.unfreeze() and a look at all objects of the process. So their tensors are
    remembered, and looked for again only where somebody else has frozen more since. The mark shows
    that: it is made after the freeze, so the collector lists it until another freeze sets it apart.
    """

    def __init__(self) -> None:
        self._mark: list[Any] | None = None
        self._found: list[weakref.ref[Any]] = []

    def is_marked(self, objects: list[Any]) -> bool:
        """Whether the mark is among them."""
        return self._mark is not None and any(map(operator.is_, objects, repeat(self._mark)))

    def tensors(self, marked: bool) -> list[Any]:
        """marked: the collector lists the mark."""
        if not marked:
            self._found.clear()
            if gc.get_freeze_count():  # which goes over all of them
                gc.collect()  # of what is garbage by now, which would be frozen, too
                gc.unfreeze()
                self._freeze(gc.get_objects())
        return [tensor for found in self._found if (tensor := found()) is not None]

    def add(self) -> None:
        """Freeze what the collector lists by now."""
        kept = self.tensors(self.is_marked(gc.get_objects()))
        self._found = list(map(weakref.ref, kept))
        self._freeze(gc.get_objects())

    def _freeze(self, objects: list[Any]) -> None:
        self._found += map(weakref.ref, _tensors(objects))
        gc.freeze()
        self._mark = []


_frozen = _Frozen()  # of the process, as what is frozen


def set_apart() -> None:
    """gc.collect() and gc.freeze(), where what is there stays and launches follow here or in forks.
    None of them has to look through all of it for tensors. That takes a tenth of a second or more,
    and copies what a fork shares with its parent.
    """
    gc.collect()
    _frozen.add()


class LiveTensors:
    """Finds the storages of live CPU tensors and makes them legal global memory.

    A search may go over all objects of the process (tens of milliseconds), so what it found is kept
    from launch to launch for as long as the tensor it was found through lives and has not moved.
    """

    def refresh(self, memory: GlobalMemory) -> None:
        """Forget the storages that may be gone; called before a launch."""
        memory.retain(self._is_held)

    def make_legal(self, memory: GlobalMemory, arguments: Sequence[Any]) -> None:
        """Register the storages of the tensors among a launch's arguments, so that nobody has to
        search for what it most likely accesses, and the memory of the arrays: of a view, all of its
        array.

        Raises TypeError for an array that a kernel could not read, or must not write: of objects,
        or read-only.
        """
        for index, given in enumerate(arguments):
            if isinstance(given, np.ndarray):
                array = cast(np.ndarray, given)
                if array.dtype.hasobject or not array.flags.writeable:
                    what = "of objects" if array.dtype.hasobject else "read-only: pass a copy"
                    raise TypeError(f"argument {index}: the array is {what}")
                _register_array(memory, array)
        if (torch := sys.modules.get("torch")) is not None:
            kind = torch.Tensor
            self._register_all(memory, [given for given in arguments if isinstance(given, kind)])

    @staticmethod
    def _is_held(region: Region) -> bool:
        tensor: Any = region.owner() if region.owner is not None else None
        if tensor is None:
            return False
        if isinstance(tensor, np.ndarray):
            low, high = byte_bounds(cast(np.ndarray, tensor))
            return (region.base, region.size) == (low, high - low)
        if _is_gone(tensor):
            return False
        storage = tensor.untyped_storage()
        return storage.data_ptr() == region.base and storage.nbytes() == region.size

    @staticmethod
    def held(base: int, nbytes: int) -> Iterator[tuple[str, Any]]:
        """(variable, tensor) for each variable through which a running function holds a storage:
        those of installed packages last, the innermost function's first, and a variable of its own
        before a place in a list.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            return

        def holds(value: Any) -> bool:
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
                return False
            return value.layout == torch.strided and base <= _address(value) < base + nbytes

        with _as_they_are(torch):
            for frame in _frames():
                variables = list(frame.f_locals.items())
                yield from ((name, value) for name, value in variables if holds(value))
                for name, value in variables:
                    items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
                    if len(items) <= LONGEST:
                        numbered = enumerate(items)
                        yield from ((f"{name}[{i}]", item) for i, item in numbered if holds(item))

    @staticmethod
    def variable(base: int, nbytes: int) -> str:
        """The first of the names that `held` finds, "" if there is none."""
        return next((name for name, _ in LiveTensors.held(base, nbytes)), "")

    @staticmethod
    def pitches(base: int, nbytes: int) -> list[tuple[int, ...]]:
        """Strides in bytes of each tensor that `held` finds, without dimensions of size 1 or
        stride 0.
        """
        found: list[tuple[int, ...]] = []
        for _, tensor in LiveTensors.held(base, nbytes):
            pairs = zip(tensor.shape, tensor.stride())
            found.append(tuple(step * tensor.element_size() for n, step in pairs if n > 1 and step))
        return found

    def find(self, memory: GlobalMemory, address: int) -> None:
        """Register the storages of live CPU tensors, of all of them if `address` is in none (a
        `find_more` of GlobalMemory).
        """
        if "torch" not in sys.modules:
            return
        marked = False
        for generation in range(3):  # of the collector: the youngest, which are few, first
            objects = gc.get_objects(generation)
            self._register_all(memory, _tensors(objects))
            marked |= _frozen.is_marked(objects)
            if memory.find(address, 1) is not None:
                return
        self._register_all(memory, _frozen.tensors(marked))

    def _register_all(self, memory: GlobalMemory, tensors: list[Any]) -> None:
        if not tensors:
            return
        torch = sys.modules["torch"]
        with _as_they_are(torch):
            for tensor in tensors:
                if _is_gone(tensor):
                    continue
                if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                    self._register(memory, tensor)

    def _register(self, memory: GlobalMemory, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        start, nbytes = _address(storage), storage.nbytes()
        known = memory.find(start, nbytes)
        if known is not None and known.size == nbytes and self._is_held(known):
            return
        if start:
            name = f"a tensor of {tuple(tensor.shape)} {tensor.dtype}"
            memory.register(start, nbytes, name, weakref.ref(tensor))


def _register_array(memory: GlobalMemory, array: np.ndarray) -> None:
    while isinstance(array.base, np.ndarray):  # what a view looks into
        array = array.base
    low, high = byte_bounds(array)
    known = memory.find(low, high - low) if array.size else None
    if known is None or known.owner is None or known.owner() is not array:
        name = f"an array of {array.shape} {array.dtype}"
        memory.register(low, high - low if array.size else 0, name, weakref.ref(array))
