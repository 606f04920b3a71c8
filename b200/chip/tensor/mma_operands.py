"""The operands of tcgen05.mma: A and B, scale factors, and the places of D.

A comes from shared or tensor memory, B from shared memory. Scale factors come from tensor memory,
and D lies there, too (PTX ISA 9.7.16.5, 9.7.16.10).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NoReturn

import numpy as np

from b200 import formats
from b200.chip.state import CTA
from b200.chip.tensor import descriptors
from b200.chip.tensor.instruction_descriptor import InstructionDescriptor
from b200.chip.tensor.narrow import unpack_fp4, unpack_fp6
from b200.chip.tensor.tmem import split
from b200.errors import Fault

K_BYTES = 32  # of a row of A or B, in every kind with dense A
TMEM_COLUMNS_OF_A = K_BYTES // 4


def decode(raw: np.ndarray, fmt: str) -> np.ndarray:
    """float64 values of elements of a number format or of "u8", "s8"."""
    if fmt == "s8":
        return raw.view(np.int8).astype(np.float64)
    return raw.astype(np.float64) if fmt == "u8" else formats.decode(raw, fmt)


@dataclass(frozen=True)
class SharedOperand:
    """A or B in shared memory, by a matrix descriptor. rows: of one CTA; fmt: element type."""

    name: str
    matrix: descriptors.MatrixDescriptor
    tile: descriptors.Tile
    mn_major: bool
    bits: int
    fmt: str

    def check(self, cta: CTA) -> None:
        descriptors.check(cta, self.matrix, self.tile, f"operand {self.name}")

    @cached_property
    def _chunks(self) -> np.ndarray:
        return descriptors.chunks_of(self.matrix, self.tile)

    def raw(self, cta: CTA) -> np.ndarray:
        """Bytes [rows, 32] of a K-major operand as they lie in shared memory."""
        return cta.smem.u128.take(self._chunks).view(np.uint8)

    def values(self, cta: CTA) -> np.ndarray:
        """float64 [rows, K]."""
        source = self.raw(cta)
        if self.fmt == "e2m1":
            source = unpack_fp4(source)
        elif self.fmt in ("e2m3", "e3m2"):
            source = unpack_fp6(source)
        elif self.bits > 8:
            source = source.view(f"u{self.bits // 8}")
        found = decode(source, self.fmt)
        return np.ascontiguousarray(found.T) if self.mn_major else found


@lru_cache(maxsize=1 << 14)
def shared_operand(
    name: str, descriptor: int, d: InstructionDescriptor, rows: int
) -> SharedOperand:
    """Operand "A" or "B" with `rows` rows in each CTA. Raises Fault for a layout that the kind does
    not allow.
    """
    matrix = descriptors.decode_matrix(descriptor, f"operand {name}:")
    mn_major = d.a_mn_major if name == "A" else d.b_mn_major
    bits = d.kind.bits
    atom_32b = matrix.mode == descriptors.ATOM_32B
    if atom_32b != (mn_major and bits == 32):
        swizzle = descriptors.SWIZZLES[matrix.mode].name
        major = "MN-major" if mn_major else "K-major"
        raise Fault(
            f"operand {name}: swizzle mode {matrix.mode} ({swizzle}) of a {major} operand of "
            f"kind::{d.kind.name}: MN-major 32-bit operands need mode {descriptors.ATOM_32B} (128B "
            "with 32B atomicity), all others cannot have it"
        )
    if mn_major:
        tile = descriptors.mn_major(matrix, rows * bits // 8, d.kind.k)
    else:
        tile = descriptors.k_major(matrix, rows, K_BYTES)
    fmt = d.a_type if name == "A" else d.b_type
    return SharedOperand(name, matrix, tile, mn_major, bits, fmt)


@dataclass(frozen=True)
class TensorOperand:
    """A in tensor memory: one row in each lane, K along 8 columns.

    half: whether the 64 rows are in the lower 16 lanes of each partition (M = 64, layout F).
    copies: how many times the lanes hold the rows (2 x 64 rows for a CTA pair's M = 128).
    """

    taddr: int
    rows: int
    half: bool
    copies: int
    bits: int
    fmt: str

    def check(self, cta: CTA) -> None:
        row, column = split(self.taddr)
        if row not in ((0, 16) if self.half else (0,)):
            raise Fault(
                f"operand A at tensor-memory address {self.taddr:#010x}: lane {row}, must be 0"
            )
        cta.check_tmem(column, TMEM_COLUMNS_OF_A)

    def raw(self, cta: CTA) -> np.ndarray:
        """Bytes [rows, 32]."""
        row, column = split(self.taddr)
        found = cta.columns(column, TMEM_COLUMNS_OF_A)[:, column : column + TMEM_COLUMNS_OF_A]
        if self.half:
            found = found.reshape(4, 32, -1)[:, row : row + 16].reshape(64, -1)
        found = np.ascontiguousarray(found[: self.rows * self.copies])
        if self.copies > 1:
            self._check_copies(found.reshape(self.copies, self.rows, -1))
        return found[: self.rows].view(np.uint8)

    def _check_copies(self, found: np.ndarray) -> None:
        if (found != found[0]).any():
            raise Fault(
                f"operand A at tensor-memory address {self.taddr:#010x}: lanes {self.rows} to "
                f"{2 * self.rows - 1} must hold a copy of lanes 0 to {self.rows - 1} (M = 128 with "
                "cta_group::2)"
            )

    def values(self, cta: CTA) -> np.ndarray:
        """float64 [rows, K]; fp4 and fp6 lie in bytes, in bits 5-2 and 6-1."""
        source = self.raw(cta)
        if self.fmt == "e2m1":
            source = source >> 2 & 15
        elif self.fmt in ("e2m3", "e3m2"):
            source = source >> 1 & 63
        elif self.bits > 8:
            source = source.view(f"u{self.bits // 8}")
        return decode(source, self.fmt)


@dataclass(frozen=True)
class Accumulator:
    """Places of D, m rows x n columns of one CTA, in tensor memory (PTX ISA 9.7.16.10.5).

    parts: D is cut along N into that many blocks of columns, stacked in the lanes; half: 64 rows
    in the lower or upper 16 lanes of each partition.
    """

    taddr: int
    rows: int
    columns: int
    parts: int
    half: bool

    def check(self, cta: CTA) -> None:
        row, column = split(self.taddr)
        if row not in ((0, 16) if self.half else (0,)):
            legal = "0 or 16" if self.half else "0"
            raise Fault(
                f"D at tensor-memory address {self.taddr:#010x}: lane {row}, must be {legal}"
            )
        try:
            cta.check_tmem(column, self.columns // self.parts)
        except Fault as fault:
            raise Fault(f"D of {self.rows} x {self.columns}: {fault}") from None

    def _blocks(self, lanes: np.ndarray) -> np.ndarray:
        """A view [parts, rows, ...] (halves: [4, 16, ...]) of an array; its axis 0 is the lanes."""
        if self.half:
            row = self.taddr >> 16
            return lanes.reshape(4, 32, *lanes.shape[1:])[:, row : row + 16]
        used = lanes[: self.parts * self.rows]
        return used.reshape(self.parts, self.rows, *lanes.shape[1:])

    def _view(self, cta: CTA) -> np.ndarray:
        column, width = self.taddr & 0xFFFF, self.columns // self.parts
        return self._blocks(cta.columns(column, width))[:, :, column : column + width]

    def read(self, cta: CTA) -> np.ndarray:
        """Cells uint32 [rows, columns], a copy."""
        view = self._view(cta)
        if not self.half:
            view = view.transpose(1, 0, 2)
        return np.ascontiguousarray(view).reshape(self.rows, self.columns)

    def write(self, cta: CTA, cells: np.ndarray, disabled: np.ndarray | None = None) -> None:
        """Write cells [rows, columns], except in lanes where `disabled`, bool [128], is set."""
        view = self._view(cta)
        if self.parts > 1:
            cells = cells.reshape(self.rows, self.parts, -1).transpose(1, 0, 2)
        else:
            cells = cells.reshape(view.shape)
        if disabled is None:
            view[...] = cells
        else:
            np.copyto(view, cells, where=~self._blocks(disabled)[..., None])


@lru_cache(maxsize=4096)
def accumulator(taddr: int, m: int, n: int, cta_group: int, ws: bool) -> Accumulator:
    """The places of one CTA's rows of an M x N result: layouts A to G of PTX ISA 9.7.16.10.5."""
    rows = m // cta_group
    parts = 1
    if ws or cta_group == 2:
        parts = 128 // rows
    return Accumulator(taddr, rows, n, parts, half=rows == 64 and parts == 1)


@dataclass(frozen=True)
class ScaleFactors:
    """Scale factors of one operand in tensor memory: row r in lane r % 32 of column r // 32.

    count: codes of a row in one K-step, from byte `first` of the word on. copies: the 32-lane
    partitions that hold the same; with 2, the second half of the rows is in partitions 2 and 3
    (SFB of a CTA pair with M = 128; reading chosen).
    """

    name: str
    column: int
    rows: int
    first: int
    count: int
    copies: int = 4

    @property
    def columns(self) -> int:
        return -(-self.rows * self.copies // 4 // 32)

    def check(self, cta: CTA) -> None:
        try:
            cta.check_tmem(self.column, self.columns)
        except Fault as fault:
            raise Fault(f"scale factors of {self.name}: {fault}") from None

    def read(self, cta: CTA) -> np.ndarray:
        """Codes uint8 [rows, count]. Raises Fault if the partitions differ."""
        return self.by_row([self._words(cta)])[:, 0, self._used]

    def fours(self, cta: CTA) -> bytes:
        """A copy of the codes for `by_row`: four for each row, one for each 16 of the 64 elements
        of a K-step. Raises Fault if the partitions differ.
        """
        found = self._words(cta)
        if self.count == 4:
            return found
        codes = np.frombuffer(found, np.uint8).reshape(-1, 4)[:, self._used]
        return codes.repeat(4 // self.count, axis=1).tobytes()

    def by_row(self, copies: list[bytes]) -> np.ndarray:
        """Codes uint8 [rows, n, 4] of n copies."""
        groups, rows = 4 // self.copies, self.rows * self.copies // 4
        words = np.frombuffer(b"".join(copies), np.uint32).reshape(len(copies), groups, 32, -1)
        words = words.transpose(1, 3, 2, 0).reshape(groups, -1, len(copies))[:, :rows]
        found = np.ascontiguousarray(words).view(np.uint8)
        return found.reshape(self.rows, len(copies), 4)

    @property
    def _used(self) -> slice:
        return slice(self.first, self.first + self.count)

    def _words(self, cta: CTA) -> bytes:
        """The words of the first partition, or of two; Fault if a copy of them differs."""
        first, end = self.column, self.column + self.columns
        block = cta.columns(first, self.columns)[:, first:end].tobytes()
        part = len(block) // 4
        if self.copies == 4:
            found, like = block[:part], block[:part] * 4
        else:
            lower, upper = block[:part], block[2 * part : 3 * part]
            found, like = lower + upper, lower * 2 + upper * 2
        if block != like:
            words = np.frombuffer(block, np.uint32)
            self._check_copies(words.reshape(4 // self.copies, self.copies, 32, -1))
        return found

    def _codes(self, words: np.ndarray) -> np.ndarray:
        codes = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
        return codes[..., self._used]

    def _check_copies(self, block: np.ndarray) -> None:
        """Fault unless what differs is in rows or bytes that the instruction does not use."""
        rows = self.rows * self.copies // 4
        words = block.transpose(0, 1, 3, 2).reshape(*block.shape[:2], -1)[:, :, :rows]
        codes = self._codes(words)
        if (codes != codes[:, :1]).any():
            self._not_replicated(codes)

    def _not_replicated(self, codes: np.ndarray) -> NoReturn:
        group, copy, row, _ = (int(i[0]) for i in np.nonzero(codes != codes[:, :1]))
        lane = row % 32 + 32 * self.copies * group
        raise Fault(
            f"scale factors of {self.name} at tensor-memory column {self.column + row // 32}: lane "
            f"{lane + 32 * copy} holds {codes[group, copy, row].tobytes().hex()} and lane {lane} "
            f"{codes[group, 0, row].tobytes().hex()}: tcgen05.mma needs the same scale factors in "
            f"{self.copies} 32-lane partitions (tcgen05.cp with .warpx4 or .warpx2)"
        )
