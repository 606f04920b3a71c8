"""Global memory: the allocations of a process, by their addresses."""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from b200.chip.heap import Heap
from b200.errors import Fault

SEGMENT = 2 << 20  # bytes; the driver maps global memory, and torch takes it, in units of 2 MiB
ROUNDING = 512  # bytes; what an allocation of PyTorch's is a multiple of (kMinBlockSize)
NEARBY = (1, 16, 256, 4096, 1 << 16)  # bytes below an address where an allocation is looked for
WRAP = 1 << 32  # what an offset is off by that was computed in 32 bits
BEHIND = 1 << 60  # added to an address after an allocation: in no window, and no host's


class Region:
    """A guarded range of bytes; `u8` .. `u64` are numpy views of it, `base` its first address.
    `u128` has items of 16 bytes for copies only; its type is complex128, because numpy has no
    integer of 16 bytes.

    behind: whether this stands for memory in no allocation, of which `name` says where it is.
    within: whether a chip reads that without a fault: it ends within the size to which PyTorch on a
    GPU rounds an allocation up, or lies in the heap of kernels. owner: a weak reference to what
    keeps the memory allocated, None if that outlives any launch. constant: whether it is a .const
    variable. shared: whether the host may change it while a kernel runs.
    """

    __slots__ = (
        *("base", "size", "name", "behind", "within", "owner", "constant", "shared"),
        *("u8", "u16", "u32", "u64", "u128", "mem"),
    )

    def __init__(
        self,
        base: int,
        data: np.ndarray,
        name: str,
        behind: bool = False,
        within: bool = False,
        owner: weakref.ref[Any] | None = None,
        constant: bool = False,
        shared: bool = False,
    ):
        self.constant, self.shared = constant, shared
        self.base, self.size, self.name = base, data.size, name
        self.behind, self.within, self.owner = behind, within, owner
        self.u8 = data
        self.mem = data.data
        self.u16, self.u32, self.u64, self.u128 = (
            data[: data.size // n * n].view(t)
            for n, t in ((2, np.uint16), (4, np.uint32), (8, np.uint64), (16, np.complex128))
        )

    def is_again(self, other: Region) -> bool:
        """Whether this is the allocation that `other` describes, as another search has found it:
        by its place, since a search may find another tensor that holds it.
        """
        return self.base == other.base and self.size == other.size

    def offset(self, address: int, nbytes: int, align: int = 1) -> int:
        """Offset of an access, checked against the range and the alignment."""
        at = address - self.base
        if at < 0 or at + nbytes > self.size:
            raise Fault(
                f"access of {nbytes} bytes at {address:#x} is outside {self.name}, which is "
                f"[{self.base:#x}, {self.base + self.size:#x})"
            )
        if address % align:
            raise Fault(f"access at {address:#x} in {self.name} is not aligned to {align} bytes")
        return at


FindMore = Callable[["GlobalMemory", int], object]  # registers what it knows near an address


class GlobalMemory:
    """Host memory as global memory: an address is legal if it lies in a registered allocation.

    `find_more` is called when an address is in no registered allocation; it may register more (the
    runtime looks up live torch storages there), and registers all there is where the address is in
    none. `also_search` adds another function, which looks for the address alone, and `search_first`
    one that knows what no tensor holds, and need not look far. heap: what kernels allocate.
    """

    def __init__(self, find_more: FindMore | None = None):
        self._bases: list[int] = []
        self._regions: list[Region] = []
        self._find_first: list[FindMore] = []
        self._find_all: tuple[FindMore, ...] = (find_more,) if find_more is not None else ()
        self.heap = Heap()
        self._find_one: list[FindMore] = [self.heap.find]  # each looks for one address alone
        self._said: list[Callable[[int], str]] = [self.heap.freed_at]
        self.behind = 0xFF  # a byte behind an allocation, or of the heap where it was freed
        self._gaps: list[tuple[int, int]] = []  # where find_more found nothing in this launch

    def also_search(self, find_more: FindMore) -> None:
        """Also call find_more(memory, address), after the functions that are called already."""
        self._find_one.append(find_more)

    def search_first(self, find_more: FindMore) -> None:
        """Call find_more(memory, address) before all other functions."""
        self._find_first.append(find_more)

    def also_tell(self, said: Callable[[int], str]) -> None:
        """Also call said(address) for an address in no allocation: what it was in, or ""."""
        self._said.append(said)

    def register(
        self,
        address: int,
        nbytes: int,
        name: str,
        owner: weakref.ref[Any] | None = None,
        constant: bool = False,
        shared: bool = False,
        data: np.ndarray | None = None,
    ) -> None:
        """Make [address, address + nbytes) legal, and drop the allocations that it overlaps: they
        have been freed.

        owner, constant, shared: as in Region. data: its bytes, uint8 [nbytes]; None where they lie
        at the address.
        """
        if nbytes <= 0:
            return
        if data is None:
            data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        self._insert(Region(address, data, name, owner=owner, constant=constant, shared=shared))

    def _insert(self, region: Region) -> None:
        end = region.base + region.size
        kept = [r for r in self._regions if r.base + r.size <= region.base or r.base >= end]
        self._become(sorted([*kept, region], key=lambda r: r.base))

    def _become(self, regions: list[Region]) -> None:
        self._regions, self._bases = regions, [r.base for r in regions]

    def readable(self, address: int, nbytes: int, rounded: bool = False) -> int:
        """The address where a load or copy of `nbytes` reads: `address`, or one in a region that
        stands for what lies behind an allocation.

        The chip maps global memory in units of SEGMENT. So a copy that begins in a tensor or after
        it does not fault, unless the tensor lies at a segment's end; it reads what lies there. Here
        it reads bytes of `behind` after the tensor, at an address that no host memory has. rounded:
        allow only what PyTorch rounds the allocation up to. Raises Fault beyond. What a kernel has
        freed of the heap stays mapped, so that it reads as `behind`, too; what the host has freed
        may be unmapped.
        """
        i = bisect.bisect_right(self._bases, address) - 1
        if i >= 0 and self._regions[i].base + self._regions[i].size >= address + nbytes:
            return address
        if self._found(address, nbytes, self._searched(address, nbytes)) is None:
            if freed := self.heap.freed_at(address):
                data = np.full(nbytes, self.behind, np.uint8)
                return self._stands_in(address, data, f"from {freed}")
            i = bisect.bisect_right(self._bases, address) - 1
            before = self._regions[i] if i >= 0 else None
            after = self._bases[i + 1] if i + 1 < len(self._bases) else BEHIND
            if before is None or before.behind:
                raise self._refusal(address, nbytes)
            self._gaps.append((before.base + before.size, after))
            within = address + nbytes <= before.base + -(-before.size // ROUNDING) * ROUNDING
            if not within and (rounded or address + nbytes > before.base + before.size + SEGMENT):
                raise self._refusal(address, nbytes)
            data = np.full(nbytes, self.behind, np.uint8)
            inside = before.u8[address - before.base : address - before.base + nbytes]
            data[: inside.size] = inside
            where = f"after the end of {before.name}"
            if within:
                where += ", inside of what PyTorch rounds its allocation up to"
            return self._stands_in(address, data, where, within)
        return address

    def _stands_in(self, address: int, data: np.ndarray, where: str, within: bool = True) -> int:
        """Where a read at an address in no allocation finds these bytes."""
        data.setflags(write=False)
        self._insert(Region(BEHIND + address, data, where, True, within))
        return BEHIND + address

    def _searched(self, address: int, nbytes: int) -> bool:
        """Whether this launch has called `find_more` where an access reaches. It had registered all
        there was, and what a kernel allocates is registered at once.
        """
        end = address + nbytes
        return any(low < end and address < high for low, high in self._gaps)

    def allocations(self) -> list[Region]:
        """All allocations that can be found, whether a kernel has accessed them or not."""
        for find_more in (*self._find_all, *self._find_one):
            find_more(self, 0)
        return [r for r in self._regions if not r.behind]

    def known(self) -> list[Region]:
        """The allocations registered so far, by address."""
        return list(self._regions)

    def put_behind(self, byte: int) -> None:
        """Let another byte lie behind all allocations."""
        self.behind = byte
        self._become([r for r in self._regions if not r.behind])

    def retain(self, keep: Callable[[Region], bool]) -> None:
        """Drop the allocations for which keep(region) is false. A search finds what has been
        allocated since.
        """
        self._gaps.clear()
        self._become([r for r in self._regions if keep(r)])

    def region(self, address: int, nbytes: int = 1) -> Region:
        """The allocation that holds [address, address + nbytes); Fault if none does."""
        found = self._found(address, nbytes)
        if found is None:
            raise self._refusal(address, nbytes)
        return found

    def _found(self, address: int, nbytes: int, searched: bool = False) -> Region | None:
        """The allocation that holds [address, address + nbytes), searched for if it is not
        registered. searched: `find_more` need not be called.
        """
        found = self.find(address, nbytes)
        find_all = () if searched else self._find_all
        for find_more in (*self._find_first, *find_all, *self._find_one):
            if found is not None:
                break
            find_more(self, address)
            found = self.find(address, nbytes)
        return found

    def _refusal(self, address: int, nbytes: int) -> Fault:
        return Fault(
            f"global access of {nbytes} bytes at {address:#x} is in no tensor's allocation"
            f"{self._was(address) or self._wrapped(address, nbytes) or self._nearest(address)}"
        )

    def _was(self, address: int) -> str:
        """What is said of an address in an allocation that has been freed, else ""."""
        was = next((text for said in self._said if (text := said(address))), "")
        return f"; it lies in {was}" if was else ""

    def find(self, address: int, nbytes: int) -> Region | None:
        """The allocation that holds [address, address + nbytes), if it is registered."""
        i = bisect.bisect_right(self._bases, address) - 1
        if i >= 0:
            r = self._regions[i]
            if address + nbytes <= r.base + r.size:
                return r
        return None

    def _wrapped(self, address: int, nbytes: int) -> str:
        """What is said of an address that is 2^32 away from one in an allocation, else ""."""
        for away, how in ((WRAP, "plus"), (-WRAP, "minus")):
            r = self.find(address + away, nbytes)
            if r is not None and not r.behind:
                return (
                    f"; {how} 2^32 it is byte {address + away - r.base} of {r.name}: perhaps its"
                    " offset was computed in 32 bits (missing: a 64-bit index)"
                )
        return ""

    def _nearest(self, address: int) -> str:
        """What lies below an address in no allocation. `find_more` has registered all there is; the
        other functions, which look for one address, are asked for some nearby.
        """
        for step in NEARBY:
            for find_more in self._find_one if self.find(address - step, 1) is None else ():
                find_more(self, address - step)
        i = bisect.bisect_right(self._bases, address) - 1
        if i < 0:
            return ""
        r = self._regions[i]
        return (
            f"; it is {address - r.base - r.size} bytes behind the end of the nearest below,"
            f" {r.name}, [{r.base:#x}, {r.base + r.size:#x})"
        )
