"""Tensormaps of a B200 as Hopper takes them.

Hopper has no 4-bit elements: such a map becomes one of bytes with half the extent in dimension 0,
and is marked, so that the rewritten program halves coordinate 0 where it uses it. Hints that only
Blackwell's encoder sets are cleared. Only the first 64 of the 128 bytes matter to the hardware; the
mark is in the last four.
"""

from __future__ import annotations

from dataclasses import replace

from b200.chip.copies.tensormap import (
    ALIGN,
    BYTES,
    ELEMENT_TYPES,
    TensorMap,
    decode,
    get_field,
    put_field,
)
from b200.errors import Fault
from b200.hopper.errors import HopperError
from b200.program.parse import parse

MARK_OFFSET = BYTES - 4
MARK = 0x4234_5048  # "HP4B"
FOUR_BIT = next(i for i, e in enumerate(ELEMENT_TYPES) if e.name == "b4x16")
U8 = 0
L2_PROMOTION = (81, 2)  # first bit and width; a hint


def to_hopper(raw: bytes) -> bytes:
    """The 128 bytes of a tensormap for Hopper. Raises HopperError for a map that it cannot have."""
    found = decode(raw)
    if found.element.bits == 6 or found.element.padded:
        raise HopperError(
            "unsupported", f"{found}: element type {found.element.name} does not exist on Hopper"
        )
    if found.atomicity:
        raise HopperError(
            "unsupported", f"{found}: swizzle atoms other than 16 bytes do not exist on Hopper"
        )
    mark = 0
    if found.format == FOUR_BIT:
        found, mark = as_bytes(found), MARK
    hint = get_field(int.from_bytes(raw, "little"), L2_PROMOTION)
    bits = put_field(int.from_bytes(found.encode(), "little"), L2_PROMOTION, hint)
    return bits.to_bytes(BYTES, "little")[:MARK_OFFSET] + mark.to_bytes(4, "little")


def is_four_bit(raw: bytes) -> bool:
    return decode(raw).format == FOUR_BIT


def as_bytes(four_bit: TensorMap) -> TensorMap:
    """A map of 4-bit elements as one of bytes: the same memory, the same boxes."""
    dims = ((four_bit.dims[0] + 1) // 2, *four_bit.dims[1:])
    box = (four_bit.box[0] // 2, *four_bit.box[1:])
    return replace(four_bit, format=U8, dims=dims, box=box)


def maps_in(params: bytes, places: list[tuple[int, int, int]]) -> list[int]:
    """Offsets of the tensormaps among parameters. places: (offset, size, alignment) of each."""
    return [
        offset
        for offset, size, align in places
        if size == BYTES and align >= ALIGN and _is_map(params, offset)
    ]


def four_bit_maps(params: bytes, text: str, kernel: str) -> dict[str, bool]:
    """Whether each parameter that is a tensormap, as packed for a B200, is of 4-bit elements. text:
    the PTX module that `kernel` is in.
    """
    declared = parse(text).kernels[kernel].params
    at = {p.offset: p.name for p in declared}
    maps = maps_in(params, [(p.offset, p.size, p.align) for p in declared])
    return {at[offset]: is_four_bit(params[offset : offset + BYTES]) for offset in maps}


def _is_map(params: bytes, offset: int) -> bool:
    try:
        decode(params[offset : offset + BYTES])
    except Fault:
        return False
    return True
