"""Allocation of tensor memory: tcgen05.alloc, dealloc, relinquish_alloc_permit (PTX ISA 9.7.16.7).

An allocation gets the first free columns that fit, from column 0 on. If it does not fit, it waits
for a deallocation. Tensor memory is the SM's. A CTA that shares its SM finds the first columns
taken by a neighbour, which has made the same first allocation. Another CTA never makes it wait: the
neighbour may have left by then, so where nothing else fits it gets those columns, too.

With cta_group::2 a warp of each CTA of the pair executes each instruction, and both CTAs get the
same columns. The even CTA takes the columns in both CTAs and goes on; the odd CTA waits for the
even one (CUTLASS #3435: on a B300 a late odd CTA does not hold back the even one).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.memory.addressing import resolver, space_of
from b200.chip.state import CTA
from b200.effects import AllocatesTensor, EndsAllocation, FreesTensor
from b200.errors import Fault
from b200.hardware import TMEM_COLUMNS
from b200.program.module import Instr
from b200.registry import FULL, Blocked, LaneValues, Run, Waitable, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

SIZES = (32, 64, 128, 256, 512)


class TmemPool(Waitable):
    """The warps that wait for tensor memory of a CTA, or of a pair (then the even CTA's pool).

    last: columns of the CTA's latest allocation. requests: CTA rank -> columns asked for by a warp
    that waits. granted: (first column, columns) of a pair's allocations that the odd CTA has not
    executed yet. allocated: for reports, (warp, instruction) that has allocated in the CTA, by
    first column.
    """

    __slots__ = ("cta", "last", "requests", "granted", "allocated")

    def __init__(self, cta: CTA):
        super().__init__()
        self.cta, self.last = cta, TMEM_COLUMNS
        self.requests: dict[int, int] = {}
        self.granted: deque[tuple[int, int]] = deque()
        self.allocated: dict[int, tuple[int, Instr]] = {}

    def holders(self) -> set[tuple[CTA, int]]:
        """The warps, as (CTA, index), that have allocated what is taken."""
        ctas = {self.cta, *(self.cta.cluster.ctas[rank] for rank in self.requests)}
        return {(cta, warp) for cta in ctas for warp, _ in pool_of(cta).allocated.values()}

    def describe(self) -> str:
        asked = ", ".join(f"{n} columns by CTA rank {r}" for r, n in sorted(self.requests.items()))
        return f"tensor-memory allocation: asked for {asked}; allocated: {_allocated(self.cta)}"


def pool_of(cta: CTA) -> TmemPool:
    if cta.tmem_pool is None:
        cta.tmem_pool = TmemPool(cta)
    return cta.tmem_pool


def group_of(ins: Instr) -> int:
    """The number, 1 or 2, in the modifier `.cta_group::`."""
    return 2 if ins.has("cta_group::2") else 1


def whole_warp(mask: int, opcode: str) -> None:
    """Raise Fault unless all lanes execute a `.sync.aligned` instruction together."""
    if mask != FULL:
        raise Fault(
            f"{opcode} is executed by lanes {mask:#010x} of the warp: .sync.aligned needs all 32"
        )


def uniform(value: LaneValues, what: str) -> int:
    """A warp operand that must be the same in all lanes, as an int."""
    if isinstance(value, np.ndarray):
        first = int(value[0])
        if (value != value[0]).any():
            other = int(value[value != value[0]][0])
            raise Fault(f"{what} differs between lanes of the warp: {first:#x} and {other:#x}")
        return first
    return value


def _allocated(cta: CTA) -> str:
    taken = sorted(cta.tmem_allocations.items())
    return ", ".join(f"[{c}, {c + n})" for c, n in taken) or "nothing"


def _free_columns(ctas: tuple[CTA, ...], columns: int) -> int | None:
    """First column of a range that is free in all the CTAs."""
    used = np.zeros(TMEM_COLUMNS, bool)
    for cta in ctas:
        for first, n in cta.tmem_allocations.items():
            used[first : first + n] = True
    neighbour = max(cta.tmem_neighbour for cta in ctas)
    free = [
        first
        for first in range(0, TMEM_COLUMNS - columns + 1, SIZES[0])
        if not used[first : first + columns].any()
    ]
    return next((first for first in free if first >= neighbour), free[0] if free else None)


def _meet_neighbour(cta: CTA, columns: int) -> None:
    """The CTA's first allocation is about to be made: another CTA of its SM has made the same."""
    if cta.shares_sm and cta.tmem_peak == 0 and 2 * columns <= TMEM_COLUMNS:
        cta.tmem_neighbour = columns


def _take(cta: CTA, first: int, columns: int) -> None:
    cta.tmem_allocations[first] = columns
    cta.legal.clear()
    freed = cta.tmem_freed.items()
    cta.tmem_freed = {f: n for f, n in freed if f + n <= first or first + columns <= f}
    cta.tmem_peak = max(cta.tmem_peak, sum(cta.tmem_allocations.values()))
    _fill(cta, first, columns, cta.unwritten_tmem)


def _fill(cta: CTA, first: int, columns: int, byte: int) -> None:
    cta.columns(first, columns)[:, first : first + columns] = byte * 0x01010101


def _check_request(cta: CTA, columns: int) -> None:
    last = pool_of(cta).last
    if columns not in SIZES:
        raise Fault(f"tcgen05.alloc of {columns} columns: must be a power of two from 32 to 512")
    if not cta.tmem_permit:
        raise Fault(f"tcgen05.alloc of {columns} columns after tcgen05.relinquish_alloc_permit")
    if columns > last:
        raise Fault(
            f"tcgen05.alloc of {columns} columns after one of {last}: the number of columns must "
            "not grow from one allocation of a CTA to the next"
        )


def _allocate_one(cta: CTA, columns: int) -> int:
    pool = pool_of(cta)
    _meet_neighbour(cta, columns)
    first = _free_columns((cta,), columns)
    if first is None:
        pool.requests[cta.rank] = columns
        raise Blocked(pool)
    pool.requests.pop(cta.rank, None)
    _take(cta, first, columns)
    return first


def _allocate_pair(cta: CTA, columns: int) -> int:
    """The calling CTA's part of a pair's allocation: the even CTA allocates for both."""
    even, odd = pair = cta.pair
    pool = pool_of(even)
    pool.requests[cta.rank] = columns
    if cta is odd:
        if not pool.granted:
            raise Blocked(pool)
        first, granted = pool.granted.popleft()
        if granted != columns:
            raise Fault(
                f"tcgen05.alloc.cta_group::2 of {columns} columns in CTA rank {odd.rank} and of "
                f"{granted} in its peer, rank {even.rank}: must be the same"
            )
    else:
        _meet_neighbour(cta, columns)
        found = _free_columns(pair, columns)
        if found is None:
            raise Blocked(pool)
        first = found
        for member in pair:
            _take(member, first, columns)
        pool.granted.append((first, columns))
        pool.notify()
    del pool.requests[cta.rank]
    return first


@warp("tcgen05.alloc", states=lambda ins: AllocatesTensor(pair=group_of(ins) == 2), may_block=True)
def tcgen05_alloc(ins: Instr) -> Run:
    """tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32 [dst], nCols

    Writes the tensor-memory address (lane 0, first column) to shared memory.
    """
    locate = resolver(space_of(ins))
    allocate = _allocate_pair if group_of(ins) == 2 else _allocate_one

    def run(warp: Fragment, mask: int, address: LaneValues, columns: LaneValues) -> None:
        whole_warp(mask, ins.opcode)
        cta, columns = warp.cta, uniform(columns, "the number of columns of tcgen05.alloc")
        target, at = locate(warp, uniform(address, "the address of tcgen05.alloc"), 4, 4)
        _check_request(cta, columns)
        first = allocate(cta, columns)
        pool = pool_of(cta)
        pool.last = columns
        pool.allocated[first] = warp.index, ins
        target.smem.u32[at // 4] = first

    return run


@warp("tcgen05.dealloc", states=lambda ins: FreesTensor(pair=group_of(ins) == 2))
def tcgen05_dealloc(ins: Instr) -> Run:
    """tcgen05.dealloc.cta_group.sync.aligned.b32 taddr, nCols: the whole of one allocation."""
    group = group_of(ins)

    def run(warp: Fragment, mask: int, taddr: LaneValues, columns: LaneValues) -> None:
        whole_warp(mask, ins.opcode)
        cta = warp.cta
        taddr = uniform(taddr, "the address of tcgen05.dealloc")
        columns = uniform(columns, "the number of columns of tcgen05.dealloc")
        if cta.tmem_allocations.get(taddr) != columns:
            raise Fault(
                f"tcgen05.dealloc of {columns} columns at address {taddr:#010x}, which is no "
                f"allocation of CTA rank {cta.rank}; allocated: {_allocated(cta)}"
            )
        cta.tmem_freed[taddr] = cta.tmem_allocations.pop(taddr)
        pool_of(cta).allocated.pop(taddr, None)
        if cta.freed_tmem is not None:
            _fill(cta, taddr, columns, cta.freed_tmem)
        pool_of(cta.pair[0] if group == 2 else cta).notify()

    return run


@warp("tcgen05.relinquish_alloc_permit", states=EndsAllocation())
def tcgen05_relinquish_alloc_permit(ins: Instr) -> Run:
    """tcgen05.relinquish_alloc_permit: from now on the CTA may not allocate tensor memory."""

    def run(warp: Fragment, mask: int) -> None:
        whole_warp(mask, ins.opcode)
        warp.cta.tmem_permit = False

    return run
