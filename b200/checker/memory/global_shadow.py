"""The shadow of global memory: who has written which bytes of an allocation last."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from b200 import sparse
from b200.checker.agent import Agent
from b200.checker.memory.global_conflicts import COPY, REDUCTION, Write
from b200.checker.memory.shadow import distinct
from b200.chip.copies.tma import TensorBoxes
from b200.chip.copies.tma_box import Window
from b200.chip.global_memory import Region
from b200.chip.state import Cluster
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer

UNIT = 2  # bytes of an entry
NOTHING = (0,)  # the numbers of entries that nobody has written
# What lies in an allocation: numbers of bytes, and the bytes there.
ShadowContents = tuple[Region, np.ndarray, np.ndarray]


@cache
def upto(count: int) -> np.ndarray:
    """0, 1, ... count - 1."""
    return np.arange(count)


def holds(region: Region, addresses: np.ndarray, nbytes: int) -> bool:
    """Whether accesses of `nbytes` at all the addresses lie in an allocation."""
    low, high = region.base, region.base + region.size - nbytes
    return bool(low <= np.minimum.reduce(addresses) and np.maximum.reduce(addresses) <= high)


def _contents(region: Region, at: np.ndarray, nbytes: int) -> ShadowContents:
    places = at[:, None] + upto(nbytes)
    return region, places, region.u8[places]


class GlobalShadow:
    """The latest write of each UNIT of global memory, of one launch.

    cells: base of an allocation -> the number of the write of each UNIT, uint32; 0 for none.
    writes: number -> the write; None for no write, or for one that does not count. narrow: whether
    bytes were stored alone, whose UNIT may be another thread's: of these the shadow knows nothing.
    """

    def __init__(self, observer: Observer):
        self._observer, self.memory = observer, observer.machine.memory
        self.cells: dict[int, np.ndarray] = {}
        self.writes: list[Write | None] = [None]
        self.narrow = False
        self._numbers: dict[tuple, int] = {}

    def holes(self) -> tuple[str, int, int] | None:
        """(name of a tensor with bytes never written between written ones, how many, per cent)."""
        for base, shadow in self.cells.items():
            written = np.flatnonzero(shadow)
            span = int(written[-1] - written[0]) + 1 if written.size else 0
            if written.size < span:
                empty = (span - written.size) * UNIT
                name = self.memory.region(base).name
                return name, empty, round(100 * empty / (span * UNIT))
        return None

    def of(self, region: Region) -> np.ndarray:
        """The number of the write of each UNIT of an allocation, uint32."""
        found = self.cells.get(region.base)
        if found is None or found.size < region.size // UNIT + 1:
            entries = -(-(region.size // UNIT + 1) // 4) * 4
            found = self.cells[region.base] = sparse.zeros(entries, np.uint32)
        return found

    def writer(self, address: int, nbytes: int) -> tuple[Agent, Instr] | None:
        """(agent, instruction) of a write of this launch to some of the bytes; None without one."""
        region = self.memory.region(address, nbytes)
        shadow = self.cells.get(region.base)
        if shadow is None:
            return None
        at = address - region.base
        write = self.writes[int(shadow[at // UNIT : (at + nbytes + 1) // UNIT].max())]
        return (write.agent, write.ins) if write is not None else None

    def number(self, agent: Agent, ins: Instr, kind: str, own: int = 0) -> int:
        """The number of the write that is being made. own: as in Write."""
        key = agent, ins.key, agent.now()
        found = self._numbers.get(key)
        if found is None or kind in (COPY, REDUCTION):
            found = self._numbers[key] = len(self.writes)
            lane, issue = self._observer.lane, self._observer.repeats.issue
            self.writes.append(Write(agent, ins, kind, lane, issue))
        write = self.writes[found]
        assert write is not None  # only writes of agents that are gone are forgotten
        write.lanes |= own
        return found

    def forget(self, cluster: Cluster) -> None:
        for number, write in enumerate(self.writes):
            if write is not None and write.agent.cta.cluster is cluster:
                self.writes[number] = None

    def regions(self, addresses: np.ndarray, nbytes: int) -> Iterator[tuple[Region, np.ndarray]]:
        """Sort accesses of `nbytes` each by allocation: yields (allocation, offsets in it)."""
        memory = self.memory
        while addresses.size:
            if memory.readable(int(addresses[0]), nbytes, rounded=True) != addresses[0]:
                addresses = addresses[1:]  # after a tensor, where nobody writes
                continue
            region = memory.region(int(addresses[0]), nbytes)
            if holds(region, addresses, nbytes):
                yield region, addresses - region.base
                return
            low, high = region.base, region.base + region.size - nbytes
            inside = (addresses >= low) & (addresses <= high)
            yield region, addresses[inside] - low
            addresses = addresses[~inside]

    def contested(
        self, agent: Agent, addresses: np.ndarray, nbytes: int
    ) -> list[ShadowContents] | None:
        """What lies at the addresses, by allocation; None if no other warp has written there, or
        if it may be another one's than the shadow says.
        """
        if self.narrow:
            return None
        found: list[tuple[Region, np.ndarray]] = []
        others = False
        while addresses.size:
            region = self.memory.find(int(addresses[0]), nbytes)
            if region is None:
                return None  # whoever writes says so
            at = addresses - region.base
            if holds(region, addresses, nbytes):
                addresses = addresses[:0]
            else:
                inside = (at >= 0) & (at + nbytes <= region.size)
                at, addresses = at[inside], addresses[~inside]
            others |= self.has_others(agent, region, at)
            found.append((region, at))
        return [_contents(region, at, nbytes) for region, at in found] if others else None

    def has_others(self, agent: Agent, region: Region, at: np.ndarray) -> bool:
        """Whether another warp has written at some offsets in an allocation."""
        shadow = self.cells.get(region.base)
        numbers = NOTHING if shadow is None else distinct(shadow[at // UNIT])
        if numbers == NOTHING:
            return False
        writes = (self.writes[number] for number in numbers)
        return any(w is not None and w.agent is not agent for w in writes)

    def write_of(self, agent: Agent, ins: Instr) -> Write:
        """The write that the warp has just made."""
        write = self.writes[self._numbers[agent, ins.key, agent.now()]]
        assert write is not None
        return write

    def units(self, cells: np.ndarray, region: Region) -> np.ndarray:
        """The numbers of units of an allocation that a view of its shadow has."""
        base, address = (x.__array_interface__["data"][0] for x in (self.of(region), cells))
        steps = (
            np.arange(n).reshape(-1, *(1,) * (cells.ndim - i - 1)) * (stride // 4)
            for i, (n, stride) in enumerate(zip(cells.shape, cells.strides))
        )
        return sum(steps, np.array((address - base) // 4))

    def boxes(self, access: TensorBoxes) -> Iterator[np.ndarray]:
        """The shadow of the memory that a TMA operation touches: a view for each box."""
        region, t = access.region, access.tensormap
        shadow = self.of(region)
        for coords in access.boxes:
            view = Window(t, region, coords).view
            if view is None or view.shape[-1] % UNIT:
                continue
            start = view.__array_interface__["data"][0] - region.u8.__array_interface__["data"][0]
            shape = (*view.shape[:-1], view.shape[-1] // UNIT)
            strides = (*(2 * step for step in view.strides[:-1]), 2 * UNIT)
            yield np.ndarray(shape, np.uint32, shadow, start // UNIT * 2 * UNIT, strides)
