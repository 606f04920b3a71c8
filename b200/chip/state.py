"""The state of a launch that the units work on: cluster, CTA, warp. Memory: global_memory.py.

Nothing here depends on an instruction. A 32-bit shared address is (rank in cluster << 24) | offset,
as measured on an H200. A CTA's own offsets start at 0x400; the first KB is the system's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.global_memory import Region
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
    from b200.chip.tensor.tmem_alloc import TmemPool


OF_A_PEER = "; .shared::cluster reaches it (in CuTe DSL ss='cluster')"


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
        self.legal: set[object] = set()  # places and operands found to be inside of these
        self.tmem_permit = True
        self.tmem_peak = 0
        self.unwritten_tmem = 0xFF  # a byte of a fresh column
        self.freed_tmem: int | None = None  # likewise, of a deallocated one; None: it keeps them
        self.shares_sm = False  # with a CTA of the launch that was there before
        self.tmem_neighbour = 0  # the first columns, which that CTA has
        self.tmem_pool: TmemPool | None = None
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

    def check_tmem(self, column: int, columns: int) -> None:
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
