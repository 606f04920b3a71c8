"""ldmatrix and stmatrix: matrices between shared memory and a warp's registers.

PTX ISA 9.7.14.5.15, 9.7.14.5.16. A matrix is 8 or 16 rows of 16 bytes. The lanes of a group hold
the addresses of the rows. Every form is a fixed map from (lane, byte of its registers) to (row,
byte of the row); the 4-bit and 6-bit forms first widen each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.memory.loads_stores import space_of
from b200.chip.memory.places import address_array, read_columns, write_columns
from b200.effects import MatrixLoads, MatrixStores
from b200.program.module import Instr, Vec
from b200.registry import LaneValues, Run, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

ROW_BYTES = 16
_LANE = np.arange(32)[:, None]


@dataclass(frozen=True)
class MatrixLayout:
    """The layout of matrices in registers.

    rows: of a matrix; the first `rows * count` lanes hold their addresses. registers: of a matrix,
    in each lane. row, byte: places of a lane's bytes in a matrix, [32 lanes, 4 * registers].
    """

    rows: int
    registers: int
    row: np.ndarray
    byte: np.ndarray

    def places(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, byte) of all matrices: [32, 4 * registers * count]."""
        row = np.concatenate([self.row + i * self.rows for i in range(count)], axis=1)
        return row, np.tile(self.byte, (1, count))

    def sources(self, count: int) -> np.ndarray:
        """The inverse of `places`: for each byte of the rows of all matrices, [rows * 16], its
        index among the bytes of the registers, [count * registers, 32 lanes, 4].
        """
        row, byte = self.places(count)
        register, part = np.divmod(np.arange(row.shape[1], dtype=np.int64), 4)
        found = np.empty(self.rows * count * ROW_BYTES, np.int64)
        found[row * ROW_BYTES + byte] = (register * 32 + _LANE) * 4 + part
        return found


OfPlace = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of a thread and a byte of its registers


def _form(rows: int, registers: int, row: OfPlace, byte: OfPlace) -> MatrixLayout:
    at = np.arange(4 * registers)[None, :]
    places = (np.broadcast_to(of(_LANE, at), (32, 4 * registers)) for of in (row, byte))
    return MatrixLayout(rows, registers, *places)


# A lane's bytes are the four that begin at 4 * (lane % 4) in row lane // 4.
PLAIN = _form(8, 1, lambda t, j: t // 4 + 0 * j, lambda t, j: 4 * (t % 4) + j)
# The same of the transposed matrix of 16-bit elements.
TRANSPOSED = _form(8, 1, lambda t, j: 2 * (t % 4) + j // 2, lambda t, j: 2 * (t // 4) + j % 2)
# Of the transposed 16 x 16 bytes: row lane // 4 in the first register, that + 8 in the second.
WIDE = _form(16, 2, lambda t, j: 4 * (t % 4) + j % 4, lambda t, j: t // 4 + 8 * (j // 4))
# Of 16 x 8 bytes that are stored transposed: the accumulator layout of mma.m16n8.
NARROW = _form(8, 1, lambda t, j: 2 * (t % 4) + j % 2, lambda t, j: t // 4 + 8 * (j // 2))


_SHAPES = {"m8n8": PLAIN, "m16n16": WIDE, "m8n16": PLAIN, "m16n8": NARROW}


def _choose(ins: Instr) -> tuple[MatrixLayout, int]:
    """(form, number of matrices)."""
    shape, count = ins.one(*_SHAPES), int(ins.one("x1", "x2", "x4")[1:])
    return TRANSPOSED if shape == "m8n8" and ins.has("trans") else _SHAPES[shape], count


def _widen(rows: np.ndarray, bits: int) -> np.ndarray:
    """[n, 16] bytes with 16 elements of 4 or 6 bits in front -> the elements, a byte each."""
    flat = np.unpackbits(rows[:, : 2 * bits], axis=1, bitorder="little")
    return np.packbits(flat.reshape(len(rows), 16, bits), axis=2, bitorder="little")[:, :, 0]


def matrix_space(space: str, addresses: np.ndarray) -> str:
    """The state space of the rows' addresses. space: that of the opcode.

    SASS (ptxas 13.0: LDSM, STSM) takes 32 bits of an address and always means shared memory. So an
    address that fits in 32 bits is a shared one even if the PTX names no space: the CuTe DSL stores
    matrices like that.
    """
    if space != "generic":
        return space
    narrow = addresses.itemsize <= 4 or int(addresses.max()) < 1 << 32
    return "shared" if narrow else space


def _accesses(ins: Instr) -> MatrixLoads | MatrixStores:
    form, count = _choose(ins)
    kind = MatrixLoads if ins.mods[0] == "ldmatrix" else MatrixStores
    addresses = form.rows * count
    return kind(order="weak", space=space_of(ins), nbytes=ROW_BYTES, bits=8, addresses=addresses)


@warp("ldmatrix", states=_accesses, out=1)
def ldmatrix(ins: Instr) -> Run:
    """ldmatrix.sync.aligned.shape.num{.trans}{.shared}.type {r..}, [p]; shape and type: m8n8.b16,
    m16n16.trans.b8, and of 4-bit and 6-bit elements m8n16 and m16n16.trans with .b8x16.format. The
    elements of the latter lie in the low bits of their bytes."""
    form, count = _choose(ins)
    row, byte = form.places(count)
    suppliers, space = (1 << form.rows * count) - 1, space_of(ins)
    bits = 4 if ins.has("b4x16_p64") else 6 if ins.has("b6x16_p32") else 8

    def run(warp: Fragment, mask: int, address: LaneValues):
        at = address_array(address)
        words = read_columns(warp, suppliers, matrix_space(space, at), at, 4, np.uint32)
        rows = np.stack(words, axis=1).view(np.uint8)
        if bits != 8:
            rows = _widen(rows, bits)
        out = rows[row, byte].view(np.uint32)
        registers = tuple(np.ascontiguousarray(out[:, i]) for i in range(out.shape[1]))
        return registers if isinstance(ins.operands[0], Vec) else registers[0]

    return run


@warp("stmatrix", states=_accesses)
def stmatrix(ins: Instr) -> Run:
    """stmatrix.sync.aligned.{m8n8|m16n8}.num{.trans}{.shared}.{b16|b8} [p], {r..}"""
    form, count = _choose(ins)
    sources = form.sources(count)
    given = form.rows * count  # lanes with the address of a row
    suppliers, space = (1 << given) - 1, space_of(ins)
    rows = np.zeros(32, np.complex128)  # of 16 bytes; those of other lanes are not written

    def run(
        warp: Fragment, mask: int, address: LaneValues, regs: LaneValues | tuple[LaneValues, ...]
    ) -> None:
        at = address_array(address)
        regs = regs if isinstance(regs, tuple) else (regs,)
        registers = np.array([lanes(reg, np.uint32) for reg in regs]).view(np.uint8)
        rows[:given] = registers.reshape(-1).take(sources).view(np.complex128)
        write_columns(warp, suppliers, matrix_space(space, at), at, [rows])

    return run
