"""Patterns of a warp's addresses: the distances between lanes, worked out once for each pattern.

A loop and the clusters of a grid come back to the same few patterns: other addresses, the same
distances. A pattern is found by the distances themselves, so it is right wherever it is used. The
start of the access, and whether all of it lies in one memory, are checked each time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from b200.registry import FULL, active, as_bools


class Pattern(NamedTuple):
    """The pattern of one access, relative to the address of the lowest active lane.

    low, high: bytes to where the access begins and ends. elements: where each element lies,
    counted in elements, int64 [elements of a lane, 32]; inactive lanes have those of the lowest
    active lane.
    """

    low: int
    high: int
    elements: np.ndarray


def pattern_of(
    mask: int, address: np.ndarray, nbytes: int, size: int
) -> tuple[int, Pattern | None]:
    """(address of the lowest active lane, the pattern) of an access of `nbytes` a lane as elements
    of `size` bytes, both powers of two; None if a lane's address is not a multiple of `nbytes`.
    """
    first = address[0] if mask & 1 else address[(mask & -mask).bit_length() - 1]
    distances = address - first
    if mask != FULL:
        distances[~as_bools(mask)] = 0
    start = int(first)
    if start & nbytes - 1:
        return start, None
    return start, _pattern(distances.tobytes(), address.itemsize, nbytes, size)


@lru_cache(maxsize=1024)
def _pattern(distances: bytes, itemsize: int, nbytes: int, size: int) -> Pattern | None:
    """distances: modulo 2 to the bits of an address, so that after 0 the negative ones lie."""
    signed = np.frombuffer(distances, f"i{itemsize}").astype(np.int64)
    if (signed % nbytes).any():
        return None
    index = np.arange(nbytes // size)[:, None] + signed // size
    index.flags.writeable = False
    return Pattern(int(signed.min()), int(signed.max()) + nbytes, index)


@lru_cache(maxsize=2048)
def pattern_at(mask: int, address: bytes, itemsize: int, nbytes: int, size: int) -> Pattern | None:
    """The pattern of an access relative to address 0, of addresses as the bytes of an array: for
    shared memory, in which all CTAs of a grid go to the same places.
    """
    first, found = pattern_of(mask, np.frombuffer(address, f"u{itemsize}"), nbytes, size)
    if found is None:
        return None
    index = found.elements + first // size
    index.flags.writeable = False
    return Pattern(first + found.low, first + found.high, index)


@lru_cache(maxsize=1024)
def active_lanes(mask: int) -> np.ndarray:
    """The numbers of the lanes in a mask, as an index array."""
    return np.array(active(mask))
