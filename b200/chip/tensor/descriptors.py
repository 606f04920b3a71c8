"""Shared-memory matrix descriptors and the byte addresses they mean (PTX ISA 9.7.16.3 - 9.7.16.5).

A descriptor of 64 bits names a tile in the CTA's own shared memory: start, two strides, swizzle.
Everything in it is a multiple of 16 bytes, and every swizzle moves whole 16-byte chunks. So a tile
is read as an array of chunks. `k_major` and `mn_major` give the chunks of a tile as a `Tile`, which
is cached by the parameters that shape it; `chunks_of` gives their places for one start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from b200.chip.state import CTA
from b200.errors import Fault, Unsupported

CHUNK = 16  # bytes that no swizzle separates
VERSION = 1  # of tcgen05's descriptors, in PTX ISA table 40
LEGAL_VERSIONS = (0, VERSION)  # 0: as wgmma's; Triton to 3.5 had it on B200s
PERIOD = 1024  # bytes after which every swizzle pattern repeats


@dataclass(frozen=True)
class Swizzle:
    """XOR of address bits: `bits` bits from bit 7 on are added (XOR) to the bits from `into` on.

    span: bytes of a row; atom: bytes moved as a whole.
    """

    name: str
    span: int
    bits: int
    into: int = 4


SWIZZLES = {
    0: Swizzle("none", CHUNK, 0),
    1: Swizzle("128B with 32B atomicity", 128, 2, into=5),
    2: Swizzle("128B", 128, 3),
    4: Swizzle("64B", 64, 2),
    6: Swizzle("32B", 32, 1),
}
ATOM_32B = 1  # the swizzle that 32-bit MN-major operands need


@dataclass(frozen=True)
class MatrixDescriptor:
    """Fields of a matrix descriptor, addresses and strides in bytes.

    start: offset in the CTA's shared memory; lbo, sbo: leading and stride byte offset;
    base_offset: (pattern start >> 7) & 7 where the pattern is off its natural boundary;
    mode: swizzle code, a key of SWIZZLES; version: one of LEGAL_VERSIONS, which mean the same.
    """

    start: int
    lbo: int
    sbo: int
    base_offset: int
    mode: int
    version: int = VERSION


@lru_cache(maxsize=1 << 14)
def decode_matrix(descriptor: int, operand: str = "matrix") -> MatrixDescriptor:
    """The fields of a 64-bit matrix descriptor (PTX ISA table 40). Raises Fault if one of them is
    illegal.
    """
    where = f"{operand} descriptor {descriptor:#018x}"
    version = descriptor >> 46 & 7
    if version not in LEGAL_VERSIONS:
        raise Fault(f"{where}: version (bits 46-48) is {version}, must be {VERSION} for tcgen05")
    for first, last in ((14, 15), (30, 31), (53, 60)):
        value = descriptor >> first & ((1 << (last - first + 1)) - 1)
        if value:
            raise Fault(f"{where}: reserved bits {first}-{last} are {value:#x}, must be 0")
    mode = descriptor >> 61 & 7
    if mode not in SWIZZLES:
        legal = ", ".join(f"{code} ({s.name})" for code, s in SWIZZLES.items())
        raise Fault(f"{where}: swizzle mode (bits 61-63) is {mode}, must be one of {legal}")
    if descriptor >> 52 & 1:
        raise Unsupported(f"{where}: absolute leading-byte-offset mode (bit 52) is for sm_103a")
    return MatrixDescriptor(
        start=(descriptor & 0x3FFF) << 4,
        lbo=(descriptor >> 16 & 0x3FFF) << 4,
        sbo=(descriptor >> 32 & 0x3FFF) << 4,
        base_offset=descriptor >> 49 & 7,
        mode=mode,
        version=version,
    )


def swizzled(address: np.ndarray, mode: int, base_offset: int = 0) -> np.ndarray:
    """Address bits after the swizzle of an absolute shared-memory address (bytes).

    The pattern is a function of the final address, not of the offset in the tile; a base offset is
    subtracted from the row bits (reading chosen; descriptors of the DSL have 0).
    """
    s = SWIZZLES[mode]
    row = address >> 7 if mode == ATOM_32B else (address >> 7) - base_offset
    return address ^ (row & ((1 << s.bits) - 1)) << s.into


@dataclass(frozen=True, eq=False)
class Tile:
    """The places of a tile's chunks.

    chunks: int64 [rows, chunks], chunk index counted from the last 1024-byte boundary at or below
        the descriptor's start.
    low, high: first byte and end of the bytes touched, from the same boundary.
    again: makes the tile that another descriptor means for this operand.
    """

    chunks: np.ndarray
    low: int
    high: int
    again: Callable[[MatrixDescriptor], Tile]


def _tile(
    address: np.ndarray, d: MatrixDescriptor, again: Callable[[MatrixDescriptor], Tile]
) -> Tile:
    """The tile of linear byte addresses of chunks."""
    chunks = swizzled(address, d.mode, d.base_offset) // CHUNK
    chunks.flags.writeable = False
    return Tile(chunks, int(chunks.min()) * CHUNK, int(chunks.max() + 1) * CHUNK, again)


@lru_cache(maxsize=4096)
def _k_major(start: int, d: MatrixDescriptor, rows: int, nbytes: int) -> Tile:
    row, column = np.ogrid[0:rows, 0 : nbytes // CHUNK]
    if d.mode == 0:
        address = start + row // 8 * d.sbo + row % 8 * CHUNK + column * d.lbo
    else:
        span = SWIZZLES[d.mode].span
        address = start + row // 8 * d.sbo + row % 8 * span + column * CHUNK
    return _tile(address, d, lambda other: k_major(other, rows, nbytes))


@lru_cache(maxsize=4096)
def _mn_major(start: int, d: MatrixDescriptor, nbytes: int, ks: int) -> Tile:
    k, column = np.ogrid[0:ks, 0 : nbytes // CHUNK]
    if d.mode == 0:
        address = start + column * d.sbo + k % 8 * CHUNK + k // 8 * d.lbo
    else:
        span = SWIZZLES[d.mode].span
        per_span = span // CHUNK
        address = start + column // per_span * d.lbo + column % per_span * CHUNK
        address = address + k % 8 * span + k // 8 * d.sbo
    return _tile(address, d, lambda other: mn_major(other, nbytes, ks))


def _shape(d: MatrixDescriptor) -> MatrixDescriptor:
    """The descriptor without its start, of which a tile depends on start % 1024 only."""
    return MatrixDescriptor(0, d.lbo, d.sbo, d.base_offset, d.mode)


def k_major(d: MatrixDescriptor, rows: int, nbytes: int) -> Tile:
    """Chunks [rows, nbytes / 16] of a K-major operand whose rows have `nbytes` bytes along K."""
    return _k_major(d.start % PERIOD, _shape(d), rows, nbytes)


def mn_major(d: MatrixDescriptor, nbytes: int, ks: int) -> Tile:
    """Chunks [ks, nbytes / 16] of an MN-major operand with `nbytes` bytes along M or N."""
    return _mn_major(d.start % PERIOD, _shape(d), nbytes, ks)


def check(cta: CTA, d: MatrixDescriptor, tile: Tile, operand: str) -> None:
    """Raise Fault unless all of a tile lies in the CTA's shared memory."""
    try:
        _within(cta, d, tile)
    except Fault as fault:
        offsets = f"leading byte offset {d.lbo}, stride byte offset {d.sbo}"
        said = f"{operand} (descriptor start {d.start:#x}, {offsets}): {fault}"
        raise Fault(said + _exchanged(cta, d, tile)) from None


def _within(cta: CTA, d: MatrixDescriptor, tile: Tile) -> None:
    cta.check(d.start - d.start % PERIOD + tile.low, tile.high - tile.low)


def _exchanged(cta: CTA, d: MatrixDescriptor, tile: Tile) -> str:
    """What is said where a tile would lie in shared memory if its offsets changed places."""
    other = replace(d, lbo=d.sbo, sbo=d.lbo)
    try:
        _within(cta, other, tile.again(other))
    except Fault:
        return ""
    return "; it fits with the two offsets exchanged: perhaps they are (bits 16-29 and 32-45)"


def chunks_of(d: MatrixDescriptor, tile: Tile) -> np.ndarray:
    """Indices of a tile's chunks in shared memory, int64 [rows, chunks]."""
    return tile.chunks + (d.start - d.start % PERIOD) // CHUNK
