"""Reads of global memory, for writes that come after them with nothing to order the two.

Most memory that a launch reads it never writes. So a read leaves only an entry in a list of its
allocation, and the entries become a shadow when something is written there: for each word the
latest reads by a few warps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from b200 import sparse
from b200.checker.agent import Agent
from b200.checker.memory.parts import part_words
from b200.checker.memory.shadow import distinct
from b200.checker.vector_clocks import GPU, scope_of
from b200.chip.global_memory import GlobalMemory, Region
from b200.chip.state import Cluster
from b200.program.module import Instr

WORD = 4  # bytes of an entry of the shadow
LEAST_SORTED = 1 << 12  # bytes of reads of parts of words that are sorted at a time
READERS = 4  # warps told apart as readers of a word
KEPT = 1 << 16  # reads of an allocation that are kept as a list
KEPT_ABREAST = 1 << 28  # bytes of addresses that are kept of reads of clusters abreast


class ByteNumbers:
    """Bytes, as numbers (int64), of many executions."""

    __slots__ = ("_sorted", "_new", "_size")

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.int64)
        self._new: list[np.ndarray] = []
        self._size = 0  # of what is not sorted yet

    def add(self, places: np.ndarray) -> None:
        self._new.append(places)
        self._size += places.size
        if self._size > max(LEAST_SORTED, self._sorted.size):  # so each is sorted a few times
            self._sort()

    def meet(self, places: np.ndarray) -> bool:
        """Whether some of these are among them."""
        if self._new:
            self._sort()
        if not self._sorted.size:
            return False
        at = np.searchsorted(self._sorted, places)
        return bool((self._sorted[np.minimum(at, self._sorted.size - 1)] == places).any())

    def _sort(self) -> None:
        self._sorted = np.unique(np.concatenate([self._sorted, *self._new]))
        self._new, self._size = [], 0


class GlobalRead:
    """A read that a write may follow. strong: it and a strong write do not conflict. component,
    step: it is complete for a warp whose clock has this step of this component. places: of a read
    of parts of words, its bytes, as offsets in the allocation; None of one of whole words.
    """

    __slots__ = ("agent", "ins", "strong", "scope", "component", "epoch", "step", "places")

    def __init__(self, agent: Agent, ins: Instr, strong: bool = False):
        self.agent, self.ins, self.strong = agent, ins, strong
        self.scope = scope_of(ins, GPU)
        self.component, self.epoch = agent.component, agent.now()
        self.step = self.epoch
        self.places: ByteNumbers | None = None

    @property
    def by_copy(self) -> bool:
        return self.component != self.agent.component


class Boxes(NamedTuple):
    """What a TMA load reads; rows are looked for only where somebody writes. number: the read's."""

    number: int
    access: Any

    def each(self) -> list[tuple[int, np.ndarray, int]]:
        return [(self.number, rows, nbytes) for rows, nbytes in self.access.spans()]


class ReadsAbreast:
    """Reads of clusters that have run abreast. each: (a number for each cluster, which of them
    read, their addresses [these or 1, lanes], bytes at each) in the order of the steps.
    """

    def __init__(self, each: list[tuple[list[int], np.ndarray, np.ndarray, int]]):
        self.each = each
        self.nbytes = sum(at.nbytes for *_, at, _ in each)

    def one_by_one(self) -> Iterator[tuple[int, np.ndarray, int]]:
        """The reads as if the clusters had come one after the other."""
        rows = [r for read in self.each for r in rows_of(read[1], read[2], read)]
        for i, at, (numbers, *_, nbytes) in sorted(rows, key=itemgetter(0)):
            yield numbers[i], at, nbytes


def rows_of(clusters: np.ndarray, at: np.ndarray, of: Any) -> Iterator[tuple[int, np.ndarray, Any]]:
    """(number of a cluster, its addresses, of) for each cluster of an access of several."""
    for i, row in zip(clusters.tolist(), np.broadcast_to(at, (clusters.size, at.shape[1]))):
        yield i, row, of


def _one_by_one(reads: tuple | Boxes | ReadsAbreast) -> Iterable[tuple[int, np.ndarray, int]]:
    if isinstance(reads, Boxes):
        return reads.each()
    return reads.one_by_one() if isinstance(reads, ReadsAbreast) else (reads,)


class GlobalReads:
    def __init__(self, memory: GlobalMemory):
        self.memory = memory
        self.reads: list[GlobalRead | None] = [None]  # by number
        self._numbers: dict[tuple, int] = {}
        self._slots: dict[Agent, int] = {}
        # base of an allocation -> (number, addresses, bytes at each)
        self._lists: dict[int, list[tuple[int, np.ndarray, int] | Boxes | ReadsAbreast]] = {}
        self._abreast = 0  # bytes of the addresses of those abreast
        self._shadows: dict[int, np.ndarray] = {}  # base -> number of the read, [READERS, words]
        # the allocation seen last, its list
        self._near: tuple[int, int, list] = 0, 0, []

    def add(
        self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr, strong: bool
    ) -> None:
        """Note reads of `nbytes` at each of the addresses (int64)."""
        while addresses.size:
            first = int(addresses[0])
            low, high, reads = self._near
            if not low <= first < high:
                region = self.memory.find(first, nbytes)
                if region is None or region.behind:
                    addresses = addresses[1:]
                    continue
                reads = self._lists.setdefault(region.base, [])
                self._near = low, high, _ = region.base, region.base + region.size, reads
            inside = (addresses >= low) & (addresses < high)
            number = self._number(agent, ins, strong)
            reads.append((number, addresses[inside], nbytes))
            if len(reads) >= KEPT:
                self._fold(self.memory.region(first, nbytes))
            addresses = addresses[~inside]

    def add_copy(self, read: GlobalRead, addresses: np.ndarray, nbytes: int) -> None:
        """Note what a copy reads: `nbytes` at each of the addresses (int64), in one allocation."""
        region = self.memory.find(int(addresses[0]), nbytes)
        if region is not None and not region.behind:
            self.reads.append(read)
            entry = len(self.reads) - 1, addresses, nbytes
            self._lists.setdefault(region.base, []).append(entry)

    def add_boxes(self, read: GlobalRead, access: Any) -> None:
        self.reads.append(read)
        boxes = Boxes(len(self.reads) - 1, access)
        self._lists.setdefault(access.region.base, []).append(boxes)

    def numbers(self, agents: list[Agent], ins: Instr) -> list[int]:
        """The numbers of weak reads by an instruction of several warps."""
        return [self._number(agent, ins, strong=False) for agent in agents]

    def add_abreast(self, region: Region, reads: ReadsAbreast) -> None:
        """Note the reads of clusters that have run abreast, in one allocation."""
        self._lists.setdefault(region.base, []).append(reads)
        self._abreast += reads.nbytes
        if self._abreast > KEPT_ABREAST:
            self._fold(region)

    def _number(self, agent: Agent, ins: Instr, strong: bool) -> int:
        key = agent, ins.key, agent.now()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.reads)
            self.reads.append(GlobalRead(agent, ins, strong))
        return number

    def any(self, region: Region, offsets: np.ndarray, nbytes: int) -> bool:
        """Whether some words at these offsets of an allocation were read, int64 [lanes, 1]."""
        return bool(self._at(region, offsets, nbytes).any())

    def of(self, region: Region, offsets: np.ndarray, nbytes: int) -> list[GlobalRead]:
        """The reads of words at these offsets."""
        cells = self._at(region, offsets, nbytes)
        found = (self.reads[number] for number in distinct(cells)) if cells.any() else ()
        return [read for read in found if read is not None]

    def _at(self, region: Region, offsets: np.ndarray, nbytes: int) -> np.ndarray:
        shadow = self._folded(region)
        index = offsets // WORD + np.arange(-(-nbytes // WORD))
        return np.zeros(0, np.uint32) if shadow is None else shadow[:, index]

    def over_lanes(self, region: Region, at: np.ndarray, nbytes: int) -> list[GlobalRead]:
        """The reads of what is about to be written, `nbytes` at each of the offsets."""
        words = (at // WORD)[:, None] + np.arange(-(-nbytes // WORD))
        if nbytes >= WORD:
            return self.over(region, words)
        part, places = part_words(at, nbytes)
        whole = self.over(region, words[~part])
        others = self.over(region, words[part])
        met = (read for read in others if read.places is None or read.places.meet(places))
        return [*whole, *(read for read in met if read not in whole)]

    def over(self, region: Region, index: np.ndarray | slice) -> list[GlobalRead]:
        """The reads of words that are about to be written, which are forgotten then."""
        shadow = self._folded(region)
        if shadow is None:
            return []
        cells = shadow[:, index]
        if not cells.any():
            return []
        found = [self.reads[number] for number in distinct(cells)]
        shadow[:, index] = 0  # cells is a view where index is a slice
        return [read for read in found if read is not None]

    @property
    def is_large(self) -> bool:
        """Whether what is kept of clusters abreast takes much memory."""
        return self._abreast > KEPT_ABREAST >> 4

    def has(self, region: Region) -> bool:
        """Whether anybody has read of an allocation."""
        return region.base in self._lists or region.base in self._shadows

    def bases(self) -> list[int]:
        return [*dict.fromkeys((*self._lists, *self._shadows))]

    def all_of(self, region: Region) -> Iterator[tuple[int, np.ndarray, int]]:
        """(number, offsets, bytes at each) of the reads of an allocation that nobody has written
        over. Of clusters abreast, the number of the first one's.
        """
        for row in self._shadows.get(region.base, ()):
            at = np.flatnonzero(row)
            for number in np.unique(row[at]).tolist():
                yield number, at[row[at] == number] * WORD, WORD
        for reads in self._lists.get(region.base, ()):
            if not isinstance(reads, ReadsAbreast):
                singles = reads.each() if isinstance(reads, Boxes) else [reads]
                yield from ((number, at - region.base, nbytes) for number, at, nbytes in singles)
                continue
            for numbers, clusters, addresses, nbytes in reads.each:
                yield numbers[clusters[0]], addresses - region.base, nbytes

    def _folded(self, region: Region) -> np.ndarray | None:
        if self._lists.get(region.base):
            self._fold(region)
        return self._shadows.get(region.base)

    def _fold(self, region: Region) -> None:
        """Put the list of an allocation into its shadow."""
        shadow = self._shadows.get(region.base)
        if shadow is None:
            words = region.size // WORD + 2
            shadow = self._shadows[region.base] = sparse.zeros(READERS * words, np.uint32).reshape(
                READERS, words
            )
        reads = self._lists[region.base]
        self._abreast -= sum(r.nbytes for r in reads if isinstance(r, ReadsAbreast))
        singles = (_one_by_one(r) for r in reads)
        for number, addresses, nbytes in itertools.chain.from_iterable(singles):
            read = self.reads[number]
            if read is None:
                continue
            at = addresses - region.base
            at = at[(at >= 0) & (at + nbytes <= region.size)]
            slot = self._slots.setdefault(read.agent, len(self._slots) % READERS)
            index = (at // WORD)[:, None] + np.arange((nbytes + WORD - 1) // WORD)
            shadow[slot, index] = number
            if nbytes < WORD:
                read.places = read.places or ByteNumbers()
                read.places.add((at[:, None] + np.arange(nbytes)).reshape(-1))
        reads.clear()

    def forget(self, cluster: Cluster) -> None:
        for number, read in enumerate(self.reads):
            if read is not None and read.agent.cta.cluster is cluster:
                self.reads[number] = None
