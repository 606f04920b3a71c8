"""Who stored what: for each 2 bytes of global memory, the CTA and warp that wrote them last.

The shapes of the launch's MMAs are kept here, too. All this is kept only on request
(`Checker.keep_stores`). A report uses it to tell what a kernel left out, and which part of its
result each CTA and each warp has written.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200 import sparse
from b200.checker.agent import Agent
from b200.checker.memory.parts import by_region
from b200.chip.copies.tma_box import Window

if TYPE_CHECKING:
    from b200.chip.copies.tma import TensorBoxes
    from b200.chip.global_memory import GlobalMemory, Region

UNIT = 2  # bytes of an entry


class StoringWarp(NamedTuple):
    """A warp that stores. cta: its CTA's index in the grid. warp: its number in the CTA; for a copy
    out of shared memory, the warp that issued the copy.
    """

    cta: tuple[int, ...]
    warp: int


class LaunchStores:
    """The stores and the MMA shapes of a launch.

    writers: number -> Writer; number 0 is nobody. copied: some stores came from shared memory (TMA,
    bulk copies), so the warp does not say who computed a value.
    mmas: (M of a CTA, N, CTAs) -> number of MMAs.
    """

    def __init__(self) -> None:
        self.writers: list[StoringWarp | None] = [None]
        self.copied = False
        self.mmas: Counter[tuple[int, int, int]] = Counter()
        self._numbers: dict[StoringWarp, int] = {}
        self._shadows: dict[int, np.ndarray] = {}  # base of an allocation -> number of each UNIT

    def written(self, address: int, nbytes: int) -> np.ndarray:
        """The number of the warp that wrote each UNIT from an address on, uint32; 0: nobody."""
        found = np.zeros(nbytes // UNIT, np.uint32)
        for base, shadow in self._shadows.items():
            first = (address - base) // UNIT
            low, high = max(0, first), min(shadow.size, first + found.size)
            if low < high:
                part = found[low - first : high - first]
                np.copyto(part, shadow[low:high], where=shadow[low:high] != 0)
        return found

    # --- called while the launch runs -------------------------------------------------------------
    def lanes(self, memory: GlobalMemory, agent: Agent, addresses: np.ndarray, nbytes: int) -> None:
        """Note stores of `nbytes` at each of the addresses (int64)."""
        number = self._number(agent)
        for region, at in by_region(memory, addresses, nbytes):
            first, last = at // UNIT, (at + nbytes - 1) // UNIT
            shadow = self._shadow(region)
            for step in range(-(-nbytes // UNIT)):
                shadow[np.minimum(first + step, last)] = number

    def span(self, region: Region, agent: Agent, address: int, nbytes: int) -> None:
        """Note a copy out of shared memory to contiguous bytes of an allocation."""
        self.copied = True
        at = address - region.base
        self._shadow(region)[at // UNIT : -(-(at + nbytes) // UNIT)] = self._number(agent)

    def boxes(self, agent: Agent, access: TensorBoxes) -> None:
        """Note the boxes that a TMA store or reduction writes."""
        self.copied = True
        region, number = access.region, self._number(agent)
        shadow = self._shadow(region)
        for coords in access.boxes:
            view = Window(access.tensormap, region, coords).view
            if view is None:
                continue
            start = view.__array_interface__["data"][0] - region.u8.__array_interface__["data"][0]
            rows = np.zeros(view.shape[:-1], np.int64) + start
            for axis, step in enumerate(view.strides[:-1]):
                index = np.arange(view.shape[axis]) * step
                rows += index.reshape(-1, *[1] * (rows.ndim - axis - 1))
            units = np.arange(-(-view.shape[-1] // UNIT))
            shadow[rows.reshape(-1, 1) // UNIT + units] = number

    def mma(self, m: int, n: int, ctas: int) -> None:
        self.mmas[m // ctas, n, ctas] += 1

    def _number(self, agent: Agent) -> int:
        writer = StoringWarp(tuple(agent.cta.index), agent.index)
        if writer not in self._numbers:
            self._numbers[writer] = len(self.writers)
            self.writers.append(writer)
        return self._numbers[writer]

    def _shadow(self, region: Region) -> np.ndarray:
        found = self._shadows.get(region.base)
        if found is None or found.size < -(-region.size // UNIT):
            found = self._shadows[region.base] = sparse.zeros(-(-region.size // UNIT), np.uint32)
        return found
