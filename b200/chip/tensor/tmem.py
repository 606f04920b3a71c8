"""Tensor memory and registers: tcgen05.ld, st, shift, wait, fence (PTX ISA 9.7.16.8 - 9.7.16.11).

An address has the lane in bits 16-31 and the column in bits 0-15. A warp reaches only the quarter
of the 128 lanes that its index names: lanes 32 * (warp % 4) to 32 * (warp % 4) + 31. What the lane
field says of another quarter is not looked at (docs/reference/semantics.md, reading 10).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from b200.chip.operations import TmemShift
from b200.chip.state import CTA
from b200.chip.tensor.tmem_alloc import group_of, uniform, whole_warp
from b200.effects import Effect, FencesTensor, ShiftsRows, TensorLoads, TensorStores, WaitsForTensor
from b200.errors import Fault
from b200.hardware import TMEM_LANES
from b200.program.module import Instr, Operand, Vec
from b200.registry import LaneValues, Run, lane, lanes, no_effect, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

# shape -> registers of .x1 (times the repetition) and lanes from the base lane on
SHAPES = {
    "32x32b": (1, 32),
    "16x64b": (1, 16),
    "16x128b": (2, 16),
    "16x256b": (4, 16),
    "16x32bx2": (1, 16),
}


def split(taddr: int) -> tuple[int, int]:
    """(lane, column) of a tensor-memory address."""
    return taddr >> 16, taddr & 0xFFFF


@lru_cache(maxsize=512)
def cells(shape: str, repeat: int, packed: bool, second_half: int) -> tuple[np.ndarray, np.ndarray]:
    """(lane, column), int [registers, 32], of the cell that register i of thread t holds, relative
    to the address. With `packed` a register holds two neighbouring cells; these are the first ones.

    second_half: columns from the first to the second half of 16x32bx2.
    """
    i = np.arange(SHAPES[shape][0] * repeat)[:, None]
    t = np.arange(32)[None, :]
    if shape == "32x32b":
        row, column = t, i
    elif shape == "16x64b":
        row, column = 8 * (t % 2) + t // 4, 2 * i + t // 2 % 2
    elif shape == "16x128b":
        row, column = t // 4 + 8 * (i % 2), 4 * (i // 2) + t % 4
    elif shape == "16x256b":
        row, column = t // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2
    else:
        row, column = t % 16, i
    column = column * (2 if packed else 1)
    if shape == "16x32bx2":
        column = column + np.where(t >= 16, second_half, 0)
    row, column = np.broadcast_arrays(row, column)
    return np.ascontiguousarray(row), np.ascontiguousarray(column)


@lru_cache(maxsize=512)
def _width(shape: str, repeat: int, packed: bool, second_half: int) -> int:
    return int(cells(shape, repeat, packed, second_half)[1].max()) + 1 + packed


_ROW_OF_LANE = np.arange(32, dtype=np.uint32) << 16  # after the address of lane 0


class TmemAccess:
    """The part of the tensor memory that a tcgen05.ld or .st of a given form reaches."""

    def __init__(self, ins: Instr, registers: Vec, packed: bool):
        self.ins, self.opcode, self.packed = ins, ins.opcode, packed
        self.shape = ins.one(*SHAPES)
        self.repeat = next(int(m[1:]) for m in ins.mods if m[0] == "x" and m[1:].isdigit())
        self.count = SHAPES[self.shape][0] * self.repeat
        given = _count(registers)
        if given != self.count or self.count > 128:
            raise Fault(
                f"{ins.opcode} with {given} registers: this shape and number needs {self.count}"
            )

    def spans(self, column: int, second_half: int) -> list[slice]:
        """The columns that an access at a column reaches: one range, or the two of 16x32bx2."""
        half = self.width(0)
        if second_half <= half:
            return [slice(column, column + self.width(second_half))]
        return [slice(first, first + half) for first in (column, column + second_half)]

    def locate(self, warp: Fragment, taddr: LaneValues, second_half: int) -> tuple[int, int]:
        """(lane, column) of the address, checked against the warp's quarter and the allocations."""
        if self._names_own_rows(taddr):
            self._differing(warp, taddr)
            taddr = int(taddr[0])
        taddr = uniform(taddr, f"the tensor-memory address of {self.opcode}")
        named, column = split(taddr)
        height, quarter = SHAPES[self.shape][1], 32 * (warp.index % 4)
        row = quarter + named % 32
        if named % height or named % 32 + height > 32:
            raise Fault(
                f"{self.opcode} at address {taddr:#010x}: lane {named} is not a multiple of"
                f" {height} in the quarter of the warp"
            )
        if named % TMEM_LANES != row:
            self._other_quarter(warp, taddr, named % TMEM_LANES, height)
        warp.cta.check_tmem(column, self.width(second_half))
        return row, column

    def _names_own_rows(self, taddr: LaneValues) -> TypeGuard[np.ndarray]:
        """Whether each lane gives the address of the row that the shape gives it anyway."""
        if self.shape != "32x32b" or not isinstance(taddr, np.ndarray):
            return False
        return bool((taddr - taddr[0] == _ROW_OF_LANE).all())

    def _differing(self, warp: Fragment, taddr: np.ndarray) -> None:
        warp.machine.undefined(
            f"{self.opcode} has an address for each lane, {int(taddr[0]):#010x},"
            f" {int(taddr[1]):#010x} and so on, of the row that lane 0's gives it",
            "lane 0's address in all lanes",
            self.ins,
        )

    def width(self, second_half: int) -> int:
        """How many columns the access reaches, from its address on."""
        return _width(self.shape, self.repeat, self.packed, second_half)

    def _other_quarter(self, warp: Fragment, taddr: int, named: int, height: int) -> None:
        quarter = warp.index % 4
        warp.machine.undefined(
            f"{self.opcode} at address {taddr:#010x} (lane {named}, column {taddr & 0xFFFF}) names"
            f" tensor-memory lanes {named} to {named + height - 1}, but warp {warp.index} of the"
            f" CTA can access only lanes {32 * quarter} to {32 * quarter + 31} (quarter"
            f" {warp.index} % 4 = {quarter}), and gets its own",
            f"the lane field {32 * quarter} + lane % 32: add (warp % 4) << 21 ="
            f" {quarter << 21:#x} to the address of lane 0",
            self.ins,
        )


def _count(registers: Operand) -> int:
    return len(registers.items) if isinstance(registers, Vec) else 1


def _loads(ins: Instr) -> TensorLoads:
    return TensorLoads(packed=ins.has("pack::16b"), registers=_count(ins.operands[0]))


def _stores(ins: Instr) -> TensorStores:
    return TensorStores(packed=ins.has("unpack::16b"), registers=_count(ins.operands[-1]))


def _orders(ins: Instr) -> Effect:
    action, what = ins.mods[1].split("::")
    if action == "wait":
        return WaitsForTensor(loads=what == "ld")
    return FencesTensor(before=what == "before_thread_sync")


@warp("tcgen05.ld", states=_loads, out=1, rows=True)
def tcgen05_ld(ins: Instr) -> Run:
    """tcgen05.ld.sync.aligned.shape.num{.pack::16b}.b32 r, [taddr]{, immHalfSplitoff}"""
    registers = ins.operands[0]
    packed = ins.has("pack::16b")
    access = TmemAccess(ins, registers, packed)
    shape, repeat, count = access.shape, access.repeat, access.count
    plain = shape == "32x32b" and not packed

    def run(warp: Fragment, mask: int, taddr: LaneValues, second_half: int = 0):
        whole_warp(mask, ins.opcode)
        row, column = access.locate(warp, taddr, second_half)
        tmem = warp.cta.columns(column, access.width(second_half))
        if plain:
            found = tmem[row : row + 32, column : column + count].T.copy()
        else:
            at_lane, at_column = cells(shape, repeat, packed, second_half)
            found = tmem[row + at_lane, column + at_column]
            if packed:
                high = tmem[row + at_lane, column + 1 + at_column]
                found = (found & np.uint32(0xFFFF)) | (high << np.uint32(16))
        return found if isinstance(registers, Vec) else found[0]

    return run


@warp("tcgen05.st", states=_stores)
def tcgen05_st(ins: Instr) -> Run:
    """tcgen05.st.sync.aligned.shape.num{.unpack::16b}.b32 [taddr]{, immHalfSplitoff}, r

    .unpack::16b writes each half into a cell of its own and clears the cell's upper half (reading
    chosen: PTX does not say what the upper half becomes).
    """
    packed = _stores(ins).packed
    access = TmemAccess(ins, ins.operands[-1], packed)

    def run(warp: Fragment, mask: int, taddr: LaneValues, *rest: Any) -> None:
        whole_warp(mask, ins.opcode)
        registers: LaneValues | tuple[LaneValues, ...] = rest[-1]
        second_half = rest[0] if len(rest) == 2 else 0
        row, column = access.locate(warp, taddr, second_half)
        words = registers if isinstance(registers, tuple) else (registers,)
        values = np.stack([lanes(r, np.uint32) for r in words])
        at_lane, at_column = cells(access.shape, access.repeat, packed, second_half)
        tmem = warp.cta.columns(column, access.width(second_half))
        if packed:
            tmem[row + at_lane, column + 1 + at_column] = values >> np.uint32(16)
            values = values & np.uint32(0xFFFF)
        tmem[row + at_lane, column + at_column] = values

    return run


@warp(
    "tcgen05.wait::ld",
    "tcgen05.wait::st",
    "tcgen05.fence::before_thread_sync",
    "tcgen05.fence::after_thread_sync",
    states=_orders,
)
def tcgen05_ordering(ins: Instr) -> Run:
    """tcgen05.wait and tcgen05.fence: they have no effect here, because loads and stores of tensor
    memory are complete when they have executed.
    """
    return no_effect


def shift_down(cta: CTA, row: int, column: int) -> None:
    """Move 8 columns of lane i + 1 to lane i, in each 32-lane partition from that of lane `row` on;
    the last lane keeps its value."""
    lanes = cta.columns(column, 8).reshape(4, 32, -1)
    block = lanes[row // 32 :, :, column : column + 8]
    block[:, :31] = block[:, 1:].copy()


@lane("tcgen05.shift", states=lambda ins: ShiftsRows(pair=group_of(ins) == 2))
def tcgen05_shift(ins: Instr) -> Run:
    """tcgen05.shift.cta_group.down [taddr]: 32 bytes of each row move down by one row."""
    group = group_of(ins)

    def run(warp: Fragment, lane: int, taddr: int) -> None:
        row, column = split(taddr)
        if row % 32:
            raise Fault(
                f"{ins.opcode} at address {taddr:#010x}: lane {row} is not a multiple of 32"
            )
        ctas = warp.cta.pair if group == 2 else (warp.cta,)
        for cta in ctas:
            cta.check_tmem(column, 8)

        def apply() -> None:
            for cta in ctas:
                shift_down(cta, row, column)

        warp.machine.issue(TmemShift(ctas, row, column), warp, apply)

    return run
