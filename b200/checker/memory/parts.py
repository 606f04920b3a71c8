"""The lanes of an access by where their addresses lie: memories, allocations, CTAs, words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from b200.checker.memory.shadow import ALL_LANES, EACH_LANE
from b200.chip.global_memory import GlobalMemory, Region
from b200.registry import LaneValues, active, lanes
from b200.spaces import SHARED_WINDOW, WINDOW_MASK

WINDOW = ~WINDOW_MASK & (1 << 64) - 1
WINDOW_BITS = WINDOW_MASK.bit_length()
SHARED_BITS = (1 << 32) - 1  # of an address of shared memory


def lane_addresses(mask: int, address: LaneValues) -> np.ndarray:
    """The active lanes' addresses as int64; a single one if all lanes have the same."""
    if not isinstance(address, np.ndarray):
        return np.array([address], np.int64)
    return (address if mask == 0xFFFFFFFF else address[active(mask)]).astype(np.int64)


def of_first_lane(mask: int, x: LaneValues) -> int:
    """An operand that all lanes have alike, of the first one that is active."""
    return x if isinstance(x, int) else int(lanes(x, x.dtype)[active(mask)[0]])


@lru_cache(maxsize=4096)
def shadow_lanes(mask: int, uniform: bool, write: bool) -> np.ndarray:
    """The lanes of `lane_addresses`; where several have one address, a marker (shadow.py)."""
    if uniform and mask & mask - 1:
        return EACH_LANE if write else ALL_LANES
    return np.array(active(mask), np.uint8)


class SpacePart(NamedTuple):
    """Lanes of an access whose addresses lie in one state space. where: "shared" or "global", None
    for a space that is not checked. at: their addresses in that space, as lane_addresses has them.
    """

    where: str | None
    mask: int
    at: np.ndarray


def parts_of(space: str, mask: int, address: LaneValues) -> list[SpacePart]:
    """An access by each address's space: one part, unless generic addresses differ in it."""
    if not isinstance(address, np.ndarray):
        return _parts_of_one(space, mask, address)
    return _parts_at(space, mask, lane_addresses(mask, address))


@lru_cache(maxsize=4096)
def _parts_of_one(space: str, mask: int, address: int) -> list[SpacePart]:
    """Of an access by lanes that have one address: in most loops the same ones again and again."""
    return _parts_at(space, mask, lane_addresses(mask, address))


def _parts_at(space: str, mask: int, at: np.ndarray) -> list[SpacePart]:
    if space != "generic":
        if space.startswith("shared"):
            return [SpacePart("shared", mask, at & SHARED_BITS)]
        return [SpacePart("global" if space == "global" else None, mask, at)]
    windows = at >> WINDOW_BITS
    first = int(windows[0])
    if at.size == 1 or (windows == first).all():
        return [_of_window(first, mask, at)]
    lanes = np.array(active(mask))
    found = []
    for window in np.unique(windows):
        inside = windows == window
        part = sum(1 << lane for lane in lanes[inside].tolist())
        found.append(_of_window(int(window), part, at[inside]))
    return found


def _of_window(window: int, mask: int, at: np.ndarray) -> SpacePart:
    if window == SHARED_WINDOW >> WINDOW_BITS:
        return SpacePart("shared", mask, at & WINDOW_MASK)
    return SpacePart("global" if window == 0 else None, mask, at)


def by_region(
    memory: GlobalMemory, addresses: np.ndarray, nbytes: int
) -> Iterator[tuple[Region, np.ndarray]]:
    """(allocation, offsets in it) of accesses at these addresses (int64). Raises Fault."""
    while addresses.size:
        region = memory.region(int(addresses[0]), nbytes)
        at, last = addresses - region.base, region.size - nbytes
        if np.minimum.reduce(at) >= 0 and np.maximum.reduce(at) <= last:
            yield region, at
            return
        inside = (at >= 0) & (at <= last)
        yield region, at[inside]
        addresses = addresses[~inside]


def own_lanes(mask: int, at: np.ndarray) -> int:
    """Lanes that access memory each for itself: none where several access one address."""
    return 0 if at.size == 1 and mask & mask - 1 else mask


class WordPattern:
    """The words that accesses of `nbytes` each touch. The accesses are given as distances in bytes
    from the lowest one.

    words: number of words from the first to the last one touched. index: distances of the touched
    words from the first, None where they fill the range. order: for each touched word, the number
    of the access that touches it.
    """

    __slots__ = ("words", "index", "order")

    def __init__(self, distances: np.ndarray, nbytes: int, phase: int):
        per = max(1, nbytes // 4)
        first = (distances + phase) // 4
        index = (first[:, None] + np.arange(per)).reshape(-1)
        self.order = np.arange(distances.size).repeat(per)
        self.words = int(index.max()) + 1
        if self.words == index.size == np.unique(index).size:
            self.order = self.order[np.argsort(index)]
            index = None
        self.index = index


def part_words(at: np.ndarray, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """(which accesses leave out bytes of their words, the bytes of these). nbytes: under 4."""
    low = int(at.min()) & ~3
    part, places = _part_words((at - low).astype(np.int64).tobytes(), nbytes)
    return part, places + low


@lru_cache(maxsize=4096)
def _part_words(distances: bytes, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    at = np.frombuffer(distances, np.int64)
    words, inverse = np.unique(at >> 2, return_inverse=True)
    have = np.zeros(words.size, np.int64)  # a bit for each byte
    np.bitwise_or.at(have, inverse, ((1 << nbytes) - 1) << (at & 3))
    part = have[inverse] != 15
    return part, np.unique(at[part][:, None] + np.arange(nbytes))


_PATTERNS: dict[tuple, WordPattern] = {}
_LANES: dict[tuple, np.ndarray] = {}


def lane_words(
    at: np.ndarray, nbytes: int, lanes: np.ndarray
) -> tuple[slice | np.ndarray, int, int, np.ndarray]:
    """(index of the words, first word, last word, lane of each word) of accesses of `nbytes` each.
    The index is a slice where the words fill a range, in whatever order, as they mostly do.
    """
    if at.size == 1:
        low = int(at[0]) >> 2
        high = low + max(1, nbytes // 4) - 1
        return slice(low, high + 1), low, high, lanes
    low = int(at.min())
    key = (at - low).tobytes(), nbytes, low & 3
    pattern = _PATTERNS.get(key)
    if pattern is None:
        if len(_PATTERNS) >= 4096:
            _PATTERNS.clear()
            _LANES.clear()
        pattern = _PATTERNS[key] = WordPattern(at - low, nbytes, low & 3)
    if lanes.size > 1:
        key = id(pattern), lanes.tobytes()
        by = _LANES.get(key)
        if by is None:
            by = _LANES[key] = lanes[pattern.order]
        lanes = by
    first = low >> 2
    last = first + pattern.words - 1
    index = slice(first, last + 1) if pattern.index is None else pattern.index + first
    return index, first, last, lanes
