"""The state of a launch that the units work on: global memory, cluster, CTA, warp.

Nothing here depends on an instruction. A 32-bit shared address is (rank in cluster << 24) | offset,
as measured on an H200. A CTA's own offsets start at 0x400; the first KB is the system's.
"""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.heap import Heap
from b200.errors import Fault
from b200.hardware import OFFSET_MASK, RANK_SHIFT, SMEM_BASE, TMEM_COLUMNS, TMEM_LANES

if TYPE_CHECKING:
    from b200.chip.copies.async_groups import Groups
    from b200.chip.fragment import ClusterBarrier, WarpState
    from b200.chip.launch import Launch
    from b200.chip.sync.barriers import NamedBarrier
    from b200.chip.sync.mbarrier import MBarrier
    from b200.chip.sync.registers import RegisterPool
    from b200.chip.tensor.running_sum import RunningSum
    from b200.chip.tensor.tmem_alloc import Pool


OF_A_PEER = "; .shared::cluster reaches it (in CuTe DSL ss='cluster')"
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
        "base",
        "size",
        "name",
        "behind",
        "within",
        "owner",
        "constant",
        "shared",
        "u8",
        "u16",
        "u32",
        "u64",
        "u128",
        "mem",
    )

    def __init__(
        self,
        base: int,
        data: np.ndarray,
        name: str,
        behind: bool = False,
        within: bool = False,
        owner: weakref.ref | None = None,
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


class GlobalMemory:
    """Host memory as global memory: an address is legal if it lies in a registered allocation.

    `find_more` is called when an address is in no registered allocation; it may register more (the
    runtime looks up live torch storages there), and registers all there is where the address is in
    none. `also_search` adds another function, which looks for the address alone. heap: what kernels
    allocate.
    """

    def __init__(self, find_more: Callable | None = None):
        self._bases: list[int] = []
        self._regions: list[Region] = []
        self._find_all = (find_more,) if find_more is not None else ()
        self.heap = Heap()
        self._find_one: list = [self.heap.find]  # each looks for one address alone
        self._said: list[Callable[[int], str]] = [self.heap.freed_at]
        self.behind = 0xFF  # a byte behind an allocation, or of the heap where it was freed
        self._gaps: list[tuple[int, int]] = []  # where find_more found nothing in this launch

    def also_search(self, find_more: Callable) -> None:
        """Also call find_more(memory, address), after the functions that are called already."""
        self._find_one.append(find_more)

    def also_tell(self, said: Callable[[int], str]) -> None:
        """Also call said(address) for an address in no allocation: what it was in, or ""."""
        self._said.append(said)

    def register(
        self,
        address: int,
        nbytes: int,
        name: str,
        owner: weakref.ref | None = None,
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

    def _insert(self, region: Region):
        end = region.base + region.size
        keep = [r for r in self._regions if r.base + r.size <= region.base or r.base >= end]
        keep.append(region)
        keep.sort(key=lambda r: r.base)
        self._regions, self._bases = keep, [r.base for r in keep]

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
        self._regions = [r for r in self._regions if not r.behind]
        self._bases = [r.base for r in self._regions]

    def retain(self, keep: Callable) -> None:
        """Drop the allocations for which keep(region) is false. A search finds what has been
        allocated since.
        """
        self._gaps.clear()
        self._regions = [r for r in self._regions if keep(r)]
        self._bases = [r.base for r in self._regions]

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
        for find_more in (*(() if searched else self._find_all), *self._find_one):
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


class CTA:
    """A CTA: shared memory, tensor memory, barriers, warps.

    smem: Region whose base is 0: index with an offset (address & OFFSET_MASK). Offsets below
        SMEM_BASE and from `smem_end` on are not the CTA's, but for the first `smem_lent` where a
        kernel asks for the system's part.
    tmem: uint32 array [128 lanes, 512 columns], made at the first access; an access to some columns
        only gets the array from `columns`.
    Both start as all ones (NaN as a number), so that a read of unwritten memory shows in the
    result. They start with another byte if the machine has one in `unwritten_smem` or
    `unwritten_tmem`.
    mbarriers: offset -> mbarrier object. async_groups: ("bulk" or "cp.async", warp, lane) -> copies
    under way. tmem_peak: the most columns allocated at one time so far.

    sm: the SM that the CTA runs on (chip/placement.py; with a clock: clock/sm.py). shares_sm,
    tmem_neighbour: chip/tensor/tmem_alloc.py.

    The clock attaches the last attributes: number, traced, first_core and end (clock/timed.py).
    """

    def __init__(
        self,
        cluster: Cluster,
        rank: int,
        index: tuple[int, int, int],
        smem_bytes: int,
        sm: Any = None,
        unwritten: int = 0xFF,
    ):
        self.cluster, self.rank, self.index, self.sm = cluster, rank, index, sm
        self.smem_end, self.smem_lent = SMEM_BASE + smem_bytes, 0
        self.smem = Region(
            0, np.full((self.smem_end + 15) // 16 * 16, unwritten, np.uint8), "shared memory"
        )
        self._tmem: np.ndarray | None = None
        self.sums: list[RunningSum] = []  # that are not in tensor memory yet
        self.tmem_allocations: dict[int, int] = {}  # first column -> number of columns
        self.tmem_freed: dict[int, int] = {}  # likewise, until somebody allocates there
        self.legal: set = set()  # places and operands found to be inside of these
        self.tmem_permit = True
        self.tmem_peak = 0
        self.unwritten_tmem = 0xFF  # a byte of a fresh column
        self.freed_tmem: int | None = None  # likewise, of a deallocated one; None: it keeps them
        self.shares_sm = False  # with a CTA of the launch that was there before
        self.tmem_neighbour = 0  # the first columns, which that CTA has
        self.tmem_pool: Pool | None = None
        self.registers: RegisterPool | None = None  # from the first setmaxnreg on
        self.mbarriers: dict[int, MBarrier] = {}
        self.named_barriers: dict[int, NamedBarrier] = {}
        self.async_groups: dict[tuple[str, int, int], Groups] = {}
        self.warps: list[WarpState] = []
        self.threads = 0
        self.exited_warps = 0
        self.number, self.traced = -1, False  # in the order in which CTAs start
        self.first_core = 0
        self.end: float | None = None  # clk

    @property
    def tmem(self) -> np.ndarray:
        """Tensor memory, with the sums of all MMAs so far put into it."""
        return self.columns(0, TMEM_COLUMNS)

    def columns(self, first: int, count: int) -> np.ndarray:
        """The array of tensor memory, for an access to columns [first, first + count). Sums of
        these columns that were kept elsewhere (chip/tensor/running_sum.py) are put into it first.
        """
        while met := [s for s in self.sums if s.first < first + count and first < s.end]:
            met[0].settle()
        if self._tmem is None:
            self._tmem = np.full((TMEM_LANES, TMEM_COLUMNS), 0xFFFFFFFF, np.uint32)
        return self._tmem

    @property
    def pair(self) -> tuple[CTA, CTA]:
        """The even and the odd CTA of this CTA's MMA pair (their ranks differ in bit 0)."""
        ctas = self.cluster.ctas
        even = self.rank & ~1
        if even + 1 >= len(ctas):
            raise Fault(f"cta_group::2 needs a peer CTA, but the cluster has {len(ctas)} CTA(s)")
        return ctas[even], ctas[even + 1]

    def smem_offset(self, address: int, nbytes: int, align: int = 1) -> int:
        """Offset of a shared::cta address of this CTA (rank bits of another CTA are a fault)."""
        rank = address >> RANK_SHIFT
        if rank and rank != self.rank:
            raise Fault(
                f"shared::cta access at {address:#x}, an address of CTA rank {rank}, from rank"
                f" {self.rank}{OF_A_PEER}"
            )
        return self.check(address & OFFSET_MASK, nbytes, align)

    def check(self, at: int, nbytes: int, align: int = 1) -> int:
        """Check an offset into this CTA's shared memory; returns it."""
        outside = at < SMEM_BASE or at + nbytes > self.smem_end
        if outside and at + nbytes > self.smem_lent:
            raise Fault(
                f"access of {nbytes} bytes at shared-memory offset {at:#x} is outside the CTA's"
                f" shared memory [{SMEM_BASE:#x}, {self.smem_end:#x})"
            )
        if at % align:
            raise Fault(f"access at shared-memory offset {at:#x} is not aligned to {align} bytes")
        return at

    def check_tmem(self, lane: int, column: int, columns: int) -> None:
        """Check that columns [column, column + columns) lie inside one allocation.

        A freed allocation counts, too: the chip does not check this, and the columns keep their
        contents until they are allocated again. The checker reports such an access.
        """
        if (column, columns) in self.legal:
            return
        for first, n in (*self.tmem_allocations.items(), *self.tmem_freed.items()):
            if first <= column and column + columns <= first + n:
                self.legal.add((column, columns))
                return
        have = (
            ", ".join(f"[{f}, {f + n})" for f, n in sorted(self.tmem_allocations.items())) or "none"
        )
        raise Fault(
            f"tensor memory columns [{column}, {column + columns}) are not inside an allocation;"
            f" allocated: {have}; PTX leaves this undefined, and a B200 looks at it only in code"
            " assembled with ptxas -g-tmem-access-check: alone on its SM such a kernel may be right"
            f" there{self._neighbour(column)}"
        )

    def _neighbour(self, column: int) -> str:
        if column >= self.tmem_neighbour:
            return ""
        return (
            f"; columns [0, {self.tmem_neighbour}) are those of another CTA of its SM (missing: the"
            " address that tcgen05.alloc has written, as the base)"
        )


class Cluster:
    """CTAs launched together; `ctas[rank]`, rank = x + y*nx + z*nx*ny inside the cluster.

    barrier: the cluster barrier, made when the cluster becomes resident.
    """

    barrier: ClusterBarrier

    def __init__(self, grid: Launch, index: tuple[int, int, int], shape: tuple[int, int, int]):
        self.grid, self.index, self.shape = grid, index, shape
        self.ctas: list[CTA] = []

    def locate(self, address: int, nbytes: int, align: int = 1) -> tuple[CTA, int]:
        """CTA and offset of a shared::cluster address. The address names the rank, so an address
        below 1 << 24 is in rank 0 even if another CTA uses it.
        """
        rank = address >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise Fault(
                f"shared::cluster address {address:#x} names CTA rank {rank}, the cluster has"
                f" {len(self.ctas)}"
            )
        cta = self.ctas[rank]
        return cta, cta.check(address & OFFSET_MASK, nbytes, align)
