"""What the cp.async of a warp have copied to each place of shared memory last."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from b200.chip.operations import CpAsync
from b200.hardware import OFFSET_MASK

WORD = 4  # bytes: no cp.async copies less, and its destination is a multiple of what it copies


@lru_cache(maxsize=1024)
def _places_at(destinations: bytes) -> tuple[np.ndarray, int, bool]:
    """(the words at these addresses, int64; the end of the highest; whether no two are one): a loop
    comes back to the same ones, and so do the CTAs of a grid.
    """
    places = (np.frombuffer(destinations, np.int64) & OFFSET_MASK) // WORD
    return places, int(places.max()) + 1, len(set(places.tolist())) == places.size


class LatestCopies:
    """For each word of shared memory at which a copy of a thread began: its source, and the number
    of what all threads of the instruction had in common.
    """

    def __init__(self) -> None:
        self._sources = np.zeros(0, np.int64)
        self._whats = np.zeros(0, np.int32)
        self._numbers: dict[tuple, int] = {}

    def again(self, what: tuple, copy: CpAsync, destinations: bytes) -> np.ndarray:
        """Which threads of a copy do what was done last at their places, by a thread before them or
        by an instruction before; and note it. what: the same of all threads but for their sources.
        destinations: the bytes of the copy's array of that name.
        """
        places, end, distinct = _places_at(destinations)
        if (missing := end - self._whats.size) > 0:
            missing += self._whats.size
            self._sources = np.concatenate((self._sources, np.zeros(missing, np.int64)))
            self._whats = np.concatenate((self._whats, np.zeros(missing, np.int32)))
        number = self._numbers.setdefault(what, len(self._numbers) + 1)
        if distinct:
            return self._again(places, copy.sources, number)
        each = zip(places[:, None], copy.sources[:, None], strict=True)
        return np.concatenate([self._again(*one, number) for one in each])

    def _again(self, places: np.ndarray, sources: np.ndarray, number: int) -> np.ndarray:
        """Of different places."""
        found = (self._whats[places] == number) & (self._sources[places] == sources)
        self._whats[places], self._sources[places] = number, sources
        return found
