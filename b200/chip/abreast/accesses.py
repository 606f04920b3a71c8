"""ld and st of CTAs abreast: one gather or scatter for the lanes of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.abreast.dropped import NotAbreast
from b200.chip.abreast.ledger import typed_items
from b200.chip.global_memory import Region
from b200.chip.memory.loads_stores import extended
from b200.effects import Loads, Stores
from b200.hardware import SMEM_BASE
from b200.program.module import TYPE_BITS, Instr, Vec
from b200.registry import DTYPES, LaneValues, Run, as_bools
from b200.spaces import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_MASK

if TYPE_CHECKING:
    from b200.chip.abreast.machine import AbreastFragment

WINDOWS = {0: "global", SHARED_WINDOW: "shared", LOCAL_WINDOW: "local"}
SPACES = {"shared::cta": "shared", "shared::cluster": "shared", "const": "global"}


@dataclass(frozen=True, slots=True, eq=False)
class AccessPlace:
    """Where the lanes of an access go. space: "global", "shared" or "local". region: the allocation
    in global memory. items: the memory as an array of elements. index: of the first element of each
    active lane. at: the active lanes' addresses in that space, int64. nbytes: of a lane.
    """

    space: str
    region: Region | None
    items: np.ndarray
    index: np.ndarray
    at: np.ndarray
    nbytes: int


AccessSeen = Callable[..., None]  # of (warp, mask, AccessPlace, the instruction's other arguments)


@lru_cache(maxsize=1024)
def chosen_lanes(mask: int, width: int) -> np.ndarray | None:
    """The numbers of the lanes in a mask; None if all are."""
    return None if mask == (1 << width) - 1 else np.flatnonzero(as_bools(mask, width))


def place_of(
    warp: AbreastFragment,
    space: str,
    address: LaneValues,
    chosen: np.ndarray | None,
    nbytes: int,
    size: int,
) -> AccessPlace:
    """The place of an access of `nbytes` a lane, as items of `size` bytes. Raises NotAbreast where
    it is not aligned, and where it is not inside one allocation; Fault where it is in none.
    """
    machine = warp.machine
    every = np.full(machine.width, address, np.uint64) if isinstance(address, int) else address
    at = (every if chosen is None else every[chosen]).astype(np.int64)
    low, high = int(at.min()), int(at.max()) + nbytes
    if space == "generic":
        window = low & ~WINDOW_MASK
        if high - 1 & ~WINDOW_MASK != window or window not in WINDOWS:
            raise NotAbreast("a generic access in several spaces")
        space = WINDOWS[window]
        at, low, high = at - window, low - window, high - window
    if int(np.bitwise_or.reduce(at)) & nbytes - 1:
        raise NotAbreast("an access that is not aligned")
    if space == "shared":
        if low < SMEM_BASE or high > machine.lead.smem_end:
            raise NotAbreast("an access outside of shared memory")
        offset, memory, region = machine.smem_offset, machine.smem, None
    elif space == "local":
        memory, region = machine.local_of(warp), None
        if low < 0 or high > machine.local_bytes:
            raise NotAbreast("an access outside of local memory")
        offset = machine.local_offset
    else:
        region = machine.memory.region(low, high - low)
        if region.behind or region.base % size:
            raise NotAbreast("an access that is not inside one allocation")
        return AccessPlace(
            space, region, typed_items(region, size), (at - region.base) // size, at, nbytes
        )
    index = (at + (offset if chosen is None else offset[chosen])) // size
    return AccessPlace(space, region, typed_items(memory, size), index, at, nbytes)


def _size_of(ins: Instr) -> tuple[str, int]:
    kind = ins.types[-1]
    if TYPE_BITS[kind] > 64:
        raise NotAbreast(f"{ins.opcode}: registers of 128 bits")
    return kind, TYPE_BITS[kind] // 8


def _elements(index: np.ndarray, n: int) -> np.ndarray:
    """The index of n neighbouring items of each lane: [n, lanes]."""
    return index[None, :] + np.arange(n)[:, None] if n > 1 else index[None, :]


def load(ins: Instr, narrow: Run, seen: AccessSeen | None) -> Run:
    """narrow: the run function of one CTA, which loads what all lanes share."""
    effect = ins.effect
    assert isinstance(effect, Loads)
    space = SPACES.get(effect.space, effect.space)
    kind, size = _size_of(ins)
    dst = ins.operands[0]
    items = dst.items if isinstance(dst, Vec) else (dst,)
    n, dtype, nbytes = len(items), DTYPES[8 * size], effect.nbytes
    widths = [TYPE_BITS.get(r.type, 32) if r is not None else 8 * size for r in items]

    def common(warp: AbreastFragment, mask: int, address: int):
        """All lanes of all CTAs read one address of global memory."""
        region = warp.machine.memory.region(address, nbytes)
        if region.behind:
            raise NotAbreast("an access that is not inside one allocation")
        warp.machine.ledger.reads(region)
        if seen is not None:
            at = np.array([address], np.int64)
            seen(
                warp, mask, AccessPlace(space, region, region.u8, at - region.base, at, nbytes), ()
            )
        return narrow(warp, mask, address)

    def own(warp: AbreastFragment, mask: int, address: int):
        """All lanes read one address of the shared memory of their CTA."""
        machine = warp.machine
        if address < SMEM_BASE or address + nbytes > machine.lead.smem_end or address % nbytes:
            raise NotAbreast("an access outside of shared memory, or one that is not aligned")
        items, first = machine.smem_items[size], address // size
        if seen is not None:
            index = machine.smem_begins[size] + first
            seen(
                warp, mask, AccessPlace(space, None, items, index, np.array([address]), nbytes), ()
            )
        return results(np.repeat(items[:, first : first + n].T, 32, 1))

    def results(found: np.ndarray):
        columns = [extended(c, kind, bits) for c, bits in zip(found, widths, strict=True)]
        return tuple(columns) if isinstance(dst, Vec) else columns[0]

    def run(
        warp: AbreastFragment, mask: int, address: LaneValues, policy: LaneValues | None = None
    ):
        machine = warp.machine
        if not isinstance(address, np.ndarray) and space in ("global", "shared"):
            return common(warp, mask, address) if space == "global" else own(warp, mask, address)
        chosen = chosen_lanes(mask, machine.width)
        place = place_of(warp, space, address, chosen, nbytes, size)
        index = _elements(place.index, n)
        if place.region is not None:
            machine.ledger.reads(place.region, size, index, chosen)
        if seen is not None:
            seen(warp, mask, place, ())
        found = place.items[index]
        if chosen is not None:
            whole = np.zeros((n, machine.width), dtype)
            whole[:, chosen] = found
            found = whole
        return results(found)

    return run


def store(ins: Instr, seen: AccessSeen | None) -> Run:
    effect = ins.effect
    assert isinstance(effect, Stores)
    space = SPACES.get(effect.space, effect.space)
    _, size = _size_of(ins)
    dtype, ones, nbytes = DTYPES[8 * size], (1 << 8 * size) - 1, effect.nbytes

    def run(
        warp: AbreastFragment,
        mask: int,
        address: LaneValues,
        value: LaneValues | tuple[LaneValues, ...],
        policy: LaneValues | None = None,
    ) -> None:
        machine = warp.machine
        items = value if isinstance(value, tuple) else (value,)
        chosen = chosen_lanes(mask, machine.width)
        place = place_of(warp, space, address, chosen, nbytes, size)
        if seen is not None:
            seen(warp, mask, place, items)
        index = _elements(place.index, len(items))
        stored = [chosen_values(x, chosen) for x in items]
        if place.region is not None:
            machine.ledger.writes(place.region, place.items, index, chosen, stored)
        for row, x in zip(index, stored, strict=True):
            place.items[row] = x

    def chosen_values(x: LaneValues, chosen: np.ndarray | None) -> Any:
        if not isinstance(x, np.ndarray):
            return dtype(x & ones)
        return (x if chosen is None else x[chosen]).astype(dtype, copy=False)

    return run
