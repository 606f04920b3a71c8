"""CPU tensors of this process as global memory.

An address is legal while a tensor holds the storage it lies in.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from b200.chip.state import GlobalMemory, Region

_PACKAGE = str(Path(__file__).resolve().parent.parent)
LONGEST = 64  # list or tuple of tensors that is looked into


class LiveTensors:
    """Finds the storages of live CPU tensors and makes them legal global memory.

    A search goes over all objects of the process (tens of milliseconds), so what it found is kept
    from launch to launch for as long as the tensor it was found through lives and has not moved.
    """

    def refresh(self, memory: GlobalMemory) -> None:
        """Forget the storages that may be gone; called before a launch."""
        memory.retain(self._is_held)

    @staticmethod
    def _is_held(region: Region) -> bool:
        tensor = region.owner() if region.owner is not None else None
        if tensor is None:
            return False
        storage = tensor.untyped_storage()
        return storage.data_ptr() == region.base and storage.nbytes() == region.size

    @staticmethod
    def held(base: int, nbytes: int) -> Iterator[tuple[str, Any]]:
        """(variable, tensor) for each variable through which a running function holds a storage:
        the innermost function's first, and a variable of its own before a place in a list.
        """
        import torch

        def holds(value) -> bool:
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
                return False
            return value.layout == torch.strided and base <= value.data_ptr() < base + nbytes

        frame = sys._getframe(1)
        with torch._C.DisableTorchFunctionSubclass():
            while frame is not None:
                if not frame.f_code.co_filename.startswith(_PACKAGE):
                    variables = list(frame.f_locals.items())
                    yield from ((name, value) for name, value in variables if holds(value))
                    for name, value in variables:
                        if isinstance(value, (list, tuple)) and len(value) <= LONGEST:
                            items = enumerate(value)
                            yield from ((f"{name}[{i}]", item) for i, item in items if holds(item))
                frame = frame.f_back

    @staticmethod
    def variable(base: int, nbytes: int) -> str:
        """The first of the names that `held` finds, "" if there is none."""
        return next((name for name, _ in LiveTensors.held(base, nbytes)), "")

    @staticmethod
    def pitches(base: int, nbytes: int) -> list[tuple[int, ...]]:
        """Strides in bytes of each tensor that `held` finds, without dimensions of size 1 or
        stride 0.
        """
        found = []
        for _, tensor in LiveTensors.held(base, nbytes):
            pairs = zip(tensor.shape, tensor.stride())
            found.append(tuple(step * tensor.element_size() for n, step in pairs if n > 1 and step))
        return found

    def find(self, memory: GlobalMemory, address: int) -> None:
        """Register the storages of all live CPU tensors (a `find_more` of GlobalMemory)."""
        self._search(memory)
        if memory.find(address, 1) is None and gc.get_freeze_count():
            gc.collect()  # of what is garbage by now, which would be frozen, too
            gc.unfreeze()  # objects that are frozen are not among those of the collector
            self._search(memory)
            gc.freeze()

    def _search(self, memory: GlobalMemory):
        import torch

        kinds, work = set(), [torch.Tensor]
        while work:
            kinds.add(kind := work.pop())
            work.extend(k for k in kind.__subclasses__() if k not in kinds)
        # A subclass may say that it is elsewhere (host/torch_devices.py): its memory counts.
        with torch._C.DisableTorchFunctionSubclass():
            for thing in gc.get_objects():
                if (
                    type(thing) in kinds
                    and thing.device.type == "cpu"
                    and thing.layout == torch.strided
                ):
                    self._register(memory, thing)

    def _register(self, memory: GlobalMemory, tensor) -> None:
        storage = tensor.untyped_storage()
        start, nbytes = storage.data_ptr(), storage.nbytes()
        known = memory.find(start, nbytes)
        if known is not None and known.size == nbytes and self._is_held(known):
            return
        if start:
            name = f"a tensor of {tuple(tensor.shape)} {tensor.dtype}"
            memory.register(start, nbytes, name, weakref.ref(tensor))
