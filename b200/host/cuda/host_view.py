"""What a program's host code may touch of the memory that CUDA has given it.

Each allocation is mapped twice: where the program's pointer stands, and where the emulator reads
and writes it. The program's view of `cudaMalloc` is closed for good, as on a GPU that does not
share its page tables with the host. The view of pinned and managed memory is closed while work that
the host has not waited for uses it. A touch of a closed page faults (shim/guard.cpp) and is judged
here. Addresses are never given out twice, so that freed memory is known by name.

Only programs with a `main` are looked at in this way: in a torch extension the tensors of the GPU
are the CPU's memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from b200.checker.launches.dependent_launch import units
from b200.checker.launches.other_queues import Act, ActAccess
from b200.errors import EmulatorError
from b200.host.cuda.host_lines import HostLines
from b200.host.queues import HOST
from b200.host.runtime import Runtime

_ROOM = 1 << 43  # bytes of addresses that are set aside; none takes memory
_BETWEEN = 1 << 16  # bytes between two allocations that belong to neither
_CLOSED, _OPEN = 0, mmap.PROT_READ | mmap.PROT_WRITE
_FIXED, _NORESERVE = 0x10, 0x4000  # of Linux's mmap

_ASKED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int
)


@dataclass
class View:
    """One allocation. mapped: bytes of its pages. bytes: what the emulator reads and writes, uint8
    [size]. shared: whether the host may touch it. how: the protection of the program's pages; None
    where a touch has opened some.
    """

    first: int
    mapped: int
    bytes: np.ndarray
    shared: bool
    how: int | None


class HostView:
    """The allocations of a program with a `main`. name_of: the name of the one at an address, freed
    ones included. failed: told of the error that ends the program.
    """

    def __init__(
        self,
        runtime: Runtime,
        lines: HostLines,
        name_of: Callable[[int], str],
        failed: Callable[[EmulatorError], None],
    ):
        self._runtime, self._lines, self._name_of, self._failed = runtime, lines, name_of, failed
        self._c = ctypes.CDLL(None, use_errno=True)
        self._c.mmap.restype = ctypes.c_void_p
        self.first = self._map(None, _ROOM, _CLOSED, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self.end = self.first + _ROOM
        self._next = self.first + _BETWEEN
        self._views: dict[int, View] = {}
        self._depth = 0  # calls of CUDA, and functions of the host in a queue, that are under way
        self.asked = _ASKED(self._touched)

    # --- memory
    def reserve(self, nbytes: int, shared: bool) -> View:
        """A new allocation, zero."""
        mapped = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create("b200", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, mapped)
            pages = mmap.mmap(file, mapped, mmap.MAP_SHARED | _NORESERVE)
            how = _OPEN if shared else _CLOSED
            self._map(self._next, mapped, how, mmap.MAP_SHARED | _FIXED | _NORESERVE, file)
        finally:
            os.close(file)
        data = np.frombuffer(pages, np.uint8)[: max(nbytes, 1)]
        view = View(self._next, mapped, data, shared, how)
        self._views[view.first] = view
        self._next += -(-(mapped + _BETWEEN) // _BETWEEN) * _BETWEEN
        return view

    def release(self, first: int) -> None:
        """The memory goes; its addresses stay closed for good."""
        view = self._views.pop(first)
        how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _NORESERVE
        self._map(first, view.mapped, _CLOSED, how, -1)

    def own(self, address: int) -> int:
        """Where the emulator reads and writes what the program has at an address."""
        view = self._view(address)
        return address if view is None else view.bytes.ctypes.data + address - view.first

    def bytes_at(self, first: int) -> np.ndarray | None:
        view = self._views.get(first)
        return None if view is None else view.bytes

    def _view(self, address: int) -> View | None:
        if not self.first <= address < self.end:
            return None
        return next((v for v in self._views.values() if 0 <= address - v.first < v.mapped), None)

    # --- what the host may touch
    def __enter__(self) -> None:
        """A call of CUDA begins, or a function of the host that a queue has come to."""
        self._depth += 1

    def __exit__(self, *_exception: object) -> None:
        """It has ended: what the host may touch now."""
        self._depth -= 1
        if self._depth == 0:
            self._close_in_use()

    def in_queue(self, begins: bool) -> None:
        """A function of the host that a queue has come to may touch what its queue may."""
        if begins:
            self.__enter__()
            for view in self._shared():
                self._protect(view, _OPEN)
        else:
            self.__exit__()

    def _shared(self) -> list[View]:
        return [view for view in self._views.values() if view.shared]

    def _close_in_use(self) -> None:
        shared = self._shared()
        if not shared:
            return
        unordered = self._runtime.queues.unordered(HOST)
        used = {address for _, footprint in unordered for address in footprint.places}
        for view in shared:
            self._protect(view, _CLOSED if view.first in used else _OPEN)

    def _protect(self, view: View, how: int) -> None:
        if view.how != how:
            self._c.mprotect(ctypes.c_void_p(view.first), ctypes.c_size_t(view.mapped), how)
            view.how = how

    def _touched(self, address: int, writes: int, frames, count: int) -> int:
        """The host has touched a closed page: whether it may go on."""
        view = self._view(address)
        if view is not None and (view.shared or self._depth):
            if not self._depth:
                self._judge(view, address, writes == 1, self._lines.own(frames[:count]))
            page = address // mmap.PAGESIZE * mmap.PAGESIZE
            self._c.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _OPEN)
            view.how = None
            return 1
        line = self._lines.line(self._lines.own(frames[:count]))
        self._failed(EmulatorError("fault", self._refusal(address, writes, line)))
        return 0

    def _judge(self, view: View, address: int, writes: bool, frames: tuple[int, ...]) -> None:
        act = Act("the host's own access", self._lines.line(frames))
        region = self._runtime.gpu.memory.region(view.first)
        at = units(address - view.first, 1)
        self._runtime.works.by_host(act, [ActAccess(region, at, writes)])

    def _refusal(self, address: int, writes: int, line: str) -> str:
        does = {1: "writes", 0: "reads"}.get(writes, "touches")
        name = self._name_of(address)
        text = f"{line}: host code {does} {name or f'{address:#x}, which is no allocation'}"
        if self._view(address) is None:
            return text
        cure = "missing: cudaMemcpy to memory of the host, or cudaMallocManaged"
        return f"{text}, which only kernels may touch: on a GPU a segmentation fault\n  {cure}"

    def _map(self, at: int | None, nbytes: int, how: int, flags: int, file: int) -> int:
        found = self._c.mmap(
            ctypes.c_void_p(at), ctypes.c_size_t(nbytes), how, flags, file, ctypes.c_long(0)
        )
        if found in (None, ctypes.c_void_p(-1).value):
            said = os.strerror(ctypes.get_errno())
            raise MemoryError(f"{nbytes} bytes of addresses cannot be mapped: {said}")
        return found
