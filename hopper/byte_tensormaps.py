"""Converts tensormaps of a B200 into tensormaps that Hopper accepts.

Hopper has no 4-bit elements. A map of such elements becomes a map of bytes with half the extent in
dimension 0. It is also marked, so that the rewritten program halves coordinate 0 where it uses the
map. Hints that only Blackwell's encoder sets are cleared. The hardware reads only the first 64 of
the 128 bytes; the mark is in the last four.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

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
from b200.program.parse import parse
from hopper.errors import HopperError

MARK_OFFSET = BYTES - 4
MARK = 0x4234_5048  # "HP4B"
FOUR_BIT = next(i for i, e in enumerate(ELEMENT_TYPES) if e.name == "b4x16")
U8 = 0
L2_PROMOTION = (81, 2)  # first bit and width; a hint


def to_hopper(raw: bytes) -> bytes:
    """The 128 bytes of a tensormap for Hopper. Raises HopperError for a map that has none there."""
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
    """A map of bytes for a map of 4-bit elements: the same memory, the same boxes."""
    dims = ((four_bit.dims[0] + 1) // 2, *four_bit.dims[1:])
    box = (four_bit.box[0] // 2, *four_bit.box[1:])
    return replace(four_bit, format=U8, dims=dims, box=box)


def maps_in(params: bytes, places: list[tuple[int, int, int]]) -> list[int]:
    """Offsets in bytes of the tensormaps in the parameters, also of those inside structures.
    places: (offset, size, alignment) of each parameter, in bytes.
    """
    found = []
    for start, size, align in places:
        at, end = start, start + size
        while align >= ALIGN and at + BYTES <= end:
            here = _is_map(params, at)
            found += [at] * here
            at += BYTES if here else ALIGN
    return found


def four_bit_maps(params: bytes, text: str, kernel: str) -> dict[str, bool]:
    """Parameter name -> whether its tensormap has 4-bit elements, for each parameter that is a
    tensormap. params: as packed for a B200. text: the PTX module that `kernel` is in.
    """
    declared = parse(text).kernels[kernel].params
    alone = {p.offset: p.name for p in declared if p.size == BYTES}
    maps = maps_in(params, [(p.offset, p.size, p.align) for p in declared])
    return {alone[at]: is_four_bit(params[at : at + BYTES]) for at in maps if at in alone}


def _is_map(params: bytes, offset: int) -> bool:
    """A map of something: zeros, which lie in structures, would be one of bytes at address 0."""
    try:
        return decode(params[offset : offset + BYTES]).address != 0
    except Fault:
        return False


@dataclass(frozen=True)
class LaunchFacts:
    """The facts of a launch that help to rewrite its kernel, if all its tensormaps are parameters.

    first: name of the first parameter. cluster: CTAs of a cluster. maps: (offset from the first
    parameter in bytes, whether of 4-bit elements, bytes of the box), by offset. From the address of
    a map a rewritten program tells which one it is, without a load.
    """

    first: str
    cluster: int
    maps: tuple[tuple[int, bool, int], ...]

    @staticmethod
    def of(
        first: str, cluster: int, params: bytes, places: list[tuple[int, int, int]]
    ) -> LaunchFacts:
        """The facts of a launch with these parameters, as packed for a B200."""
        found = []
        for at in maps_in(params, places):
            t = decode(params[at : at + BYTES])
            found.append((at, t.format == FOUR_BIT, prod(t.counts) * t.element.bits // 8))
        return LaunchFacts(first, cluster, tuple(found))

    def steps(self, which: int) -> list[tuple[int, int]]:
        """(offset, value) of each map whose item `which` differs from that of the map before it."""
        found: list[tuple[int, int]] = []
        for one in self.maps:
            if not found or found[-1][1] != one[which]:
                found.append((one[0], int(one[which])))
        return found
