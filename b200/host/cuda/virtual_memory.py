"""Virtual memory management of the driver: each call of shim/virtual_memory.cpp.

Addresses are reserved closed. Memory is a file without a name, so that it can be mapped at several
places, and lives as long as one of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from b200.chip.unwritten import fill
from b200.hardware import MEMORY_BYTES
from b200.host import refusals
from b200.host.cuda.modules import Modules
from b200.host.poke import poke
from b200.host.refusals import Refused

GRANULARITY = 2 << 20  # bytes: of what is reserved, made and mapped; CUDA says so for a B200's kind
_CLOSED, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_WRITE
_FIXED, _NORESERVE = 0x10, 0x4000  # of Linux's mmap
_ALLOWED = {0: _CLOSED, 1: _READ, 3: _READ | _WRITE}  # by CUmemAccess_flags


class VirtualMemory:
    """Reserved addresses and memory of a process. Addresses are those of the program."""

    def __init__(self, modules: Modules):
        self._modules = modules
        self._reserved: dict[int, int] = {}  # first byte -> bytes
        self._files: dict[int, tuple[int, int]] = {}  # by handle: file, bytes
        self._mapped: dict[int, int] = {}  # first byte -> bytes
        self._c = ctypes.CDLL(None, use_errno=True)
        self._c.mmap.restype = ctypes.c_void_p

    def granularity(self, out: int) -> None:
        poke(out, "<Q", GRANULARITY)

    def reserve(self, out: int, nbytes: int, alignment: int) -> None:
        """Addresses with nothing behind them."""
        _check_size("cuMemAddressReserve", nbytes)
        if alignment & (alignment - 1):
            raise Refused(
                refusals.INVALID_VALUE, f"an alignment of {alignment} bytes, expected 2^n"
            )
        step = max(alignment, GRANULARITY)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        start = self._map(None, nbytes + step, _CLOSED, flags, -1, 0)
        first = -(-start // step) * step
        self._c.munmap(ctypes.c_void_p(start), ctypes.c_size_t(first - start))
        behind = ctypes.c_void_p(first + nbytes)
        self._c.munmap(behind, ctypes.c_size_t(start + step - first))
        self._reserved[first] = nbytes
        poke(out, "<Q", first)

    def unreserve(self, first: int, nbytes: int) -> None:
        used = any(first <= a < first + nbytes for a in self._mapped)
        if used or self._reserved.get(first) != nbytes:
            raise Refused(refusals.INVALID_VALUE, f"{nbytes} bytes at {first:#x} are not reserved")
        del self._reserved[first]
        self._c.munmap(ctypes.c_void_p(first), ctypes.c_size_t(nbytes))

    def create(self, out: int, nbytes: int) -> None:
        """Memory without an address, which nobody has written."""
        _check_size("cuMemCreate", nbytes)
        made = sum(size for _, size in self._files.values())
        if self._modules.used + made + nbytes > MEMORY_BYTES:
            raise Refused(refusals.OUT_OF_MEMORY, f"out of memory: cuMemCreate of {nbytes} bytes")
        file = os.memfd_create("b200", os.MFD_CLOEXEC)
        os.ftruncate(file, nbytes)
        with mmap.mmap(file, nbytes, mmap.MAP_SHARED | _NORESERVE) as pages:
            data = np.frombuffer(pages, np.uint8)
            fill(data)
            del data
        handle = self._modules.handle()
        self._files[handle] = file, nbytes
        poke(out, "<Q", handle)

    def release(self, handle: int) -> None:
        """The handle goes; what is mapped stays."""
        os.close(self._file(handle)[0])
        del self._files[handle]

    def map(self, address: int, nbytes: int, offset: int, handle: int) -> None:
        file, size = self._file(handle)
        _check_size("cuMemMap", nbytes)
        free = not any(a < address + nbytes and address < a + n for a, n in self._mapped.items())
        reserved = any(
            a <= address and address + nbytes <= a + n for a, n in self._reserved.items()
        )
        if not (free and reserved) or offset + nbytes > size:
            said = f"cuMemMap of {nbytes} bytes at {address:#x}, from byte {offset} of {size}"
            raise Refused(refusals.INVALID_VALUE, f"{said}: not within what was reserved and made")
        self._mapped[address] = nbytes
        self._map(address, nbytes, _CLOSED, mmap.MAP_SHARED | _FIXED | _NORESERVE, file, offset)

    def allow(self, address: int, nbytes: int, access: int) -> None:
        """access: a CUmemAccess_flags. The memory becomes legal for kernels, or illegal."""
        self._mappings("cuMemSetAccess", address, nbytes)
        if access not in _ALLOWED:
            raise Refused(refusals.INVALID_VALUE, f"cuMemSetAccess with flags {access}")
        at, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        self._c.mprotect(at, size, _ALLOWED[access])
        self._modules.unmapped(address, nbytes)
        if access:
            self._modules.mapped(address, nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        for first in self._mappings("cuMemUnmap", address, nbytes):
            del self._mapped[first]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _NORESERVE
        self._map(address, nbytes, _CLOSED, flags, -1, 0)
        self._modules.unmapped(address, nbytes)

    def _file(self, handle: int) -> tuple[int, int]:
        if handle not in self._files:
            raise Refused(refusals.INVALID_VALUE, f"no memory has the handle {handle:#x}")
        return self._files[handle]

    def _mappings(self, by: str, address: int, nbytes: int) -> list[int]:
        """The first bytes of the mappings that a range consists of."""
        found, end = [], address
        while end < address + nbytes and end in self._mapped:
            found.append(end)
            end += self._mapped[end]
        if not nbytes or end != address + nbytes:
            said = f"{by} of {nbytes} bytes at {address:#x}, which are not whole mappings"
            raise Refused(refusals.INVALID_VALUE, said)
        return found

    def _map(self, at: int | None, nbytes: int, how: int, flags: int, file: int, skip: int) -> int:
        size, offset = ctypes.c_size_t(nbytes), ctypes.c_long(skip)
        found = self._c.mmap(ctypes.c_void_p(at), size, how, flags, file, offset)
        if found in (None, ctypes.c_void_p(-1).value):
            said = os.strerror(ctypes.get_errno())
            raise Refused(refusals.OUT_OF_MEMORY, f"{nbytes} bytes cannot be mapped: {said}")
        return found


def _check_size(by: str, nbytes: int) -> None:
    if not nbytes or nbytes % GRANULARITY:
        said = f"{by} of {nbytes} bytes, expected a multiple of {GRANULARITY}"
        raise Refused(refusals.INVALID_VALUE, said)
