"""Which reads may find something else in another order: those of words that several warps write.

The checker finds plain accesses that are not ordered. It lets strong ones be: of two strong stores
the one that comes last decides what a later read finds, ordered or not. So the writers of each word
of shared and global memory are noted in the run, for the few reads whose values decide over
synchronisation (control.deciding_reads). Another order may change what such a read finds, if its
word

  * is written by several warps, or
  * is written by another warp with a strong store, an atomic or an asynchronous store, or
  * is one of global memory and is written by another warp at all: the checker keeps no reads there.

The stores of each word are noted, too: a read hands on only what they have left there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker.memory.parts import by_region
from b200.chip import operations as ops
from b200.chip.fragment import WarpState
from b200.chip.state import CTA
from b200.effects import Access, MatrixStores, Stores
from b200.explore.addresses import accessed, sources, targets
from b200.program.module import Instr
from b200.registry import LaneValues

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.explore.record import RecordedFragment

NOBODY, SEVERAL = -1, -2
WORD = 4  # bytes


@dataclass(eq=False)
class MemoryWords:
    """One CTA's shared memory or one allocation, a word an entry. writers: warps, by number.
    telling: words of which a single writer is enough (see above). stores: the instructions that
    have written a word, by number of the set.
    """

    writers: np.ndarray
    telling: np.ndarray
    stores: np.ndarray

    @classmethod
    def of(cls, nbytes: int, far: bool) -> MemoryWords:
        count = -(-nbytes // WORD) + 1
        writers, stores = np.full(count, NOBODY, np.int32), np.zeros(count, np.int32)
        return cls(writers, np.full(count, far), stores)

    def write(self, words: np.ndarray, warp: int, strong: bool) -> None:
        before = self.writers[words]
        self.writers[words] = np.where((before == NOBODY) | (before == warp), warp, SEVERAL)
        if strong:
            self.telling[words] = True

    def mixed(self, words: np.ndarray, reader: int) -> bool:
        """Whether another order may change what a warp reads there."""
        writers = self.writers[words]
        others = (writers != NOBODY) & (writers != reader) & self.telling[words]
        return bool(((writers == SEVERAL) | others).any())


class WordsSeen:
    """The writers of each word of a launch. deciding: id() of the reads that are looked at."""

    def __init__(self, deciding: frozenset[int]):
        self.deciding = deciding
        self.memories: dict[Any, MemoryWords] = {}
        self.warps: dict[WarpState, int] = {}
        # which words each of the reads has read: (its id(), memory, warp) -> a bool for each word
        self.reads: dict[tuple[int, MemoryWords, int], np.ndarray] = {}
        self.sets: list[frozenset[int]] = [frozenset()]  # of stores, by id()
        self.grown: dict[tuple[int, int], int] = {}  # (a set, a store) -> the set with it

    # --- what the launch does ---------------------------------------------------------------------
    def written(
        self, warp: RecordedFragment, mask: int, address: LaneValues, ins: Instr, effect: Access
    ) -> None:
        """Lanes of a warp have stored, or have updated."""
        strong = not isinstance(effect, (Stores, MatrixStores)) or effect.strong
        for memory, words in self._accessed(warp, mask, address, effect):
            self._write(memory, words, warp.state, ins, strong)

    def read(
        self, warp: RecordedFragment, mask: int, address: LaneValues, ins: Instr, effect: Access
    ) -> None:
        """Lanes of a warp have loaded."""
        for memory, words in self._accessed(warp, mask, address, effect):
            self._note(ins, memory, warp.state, words)

    def issued(self, operation: ops.Operation, warp: Fragment, ins: Instr | None) -> None:
        """A warp has issued an asynchronous operation."""
        for address, nbytes, cta in sources(operation, warp.cta):
            for memory, words in self._span(warp, address, nbytes, cta) if nbytes else ():
                self._note(ins, memory, warp.state, words)
        strong = isinstance(operation, (ops.StAsync, ops.RedAsync))
        for address, nbytes, cta in targets(operation, warp.cta):
            for memory, words in self._span(warp, address, nbytes, cta) if nbytes else ():
                self._write(memory, words, warp.state, ins, strong)

    def mixed(self) -> set[int]:
        """id() of the reads that may find something else in another order."""
        return {
            number
            for (number, memory, warp), read in self.reads.items()
            if memory.mixed(read, warp)
        }

    def flows(self) -> dict[int, set[int]]:
        """For each of the reads, the stores that have written its words: id() -> id()s."""
        found: dict[int, set[int]] = {}
        for (number, memory, *_), words in self.reads.items():
            numbers: list[int] = np.unique(memory.stores[words]).tolist()
            sets = (self.sets[i] for i in numbers)
            found.setdefault(number, set()).update(*sets)
        return found

    def _write(
        self,
        memory: MemoryWords,
        words: np.ndarray,
        state: WarpState,
        ins: Instr | None,
        strong: bool,
    ) -> None:
        memory.write(words, self._number(state), strong)
        before = memory.stores[words]
        for old in np.unique(before):
            memory.stores[words[before == old]] = self._with(
                int(old), ins.key if ins is not None else 0
            )

    def _with(self, old: int, store: int) -> int:
        new = self.grown.get((old, store))
        if new is None:
            stores = self.sets[old] | {store}
            if stores not in self.sets:
                self.sets.append(stores)
            new = self.grown[old, store] = self.sets.index(stores)
        return new

    # --- where ------------------------------------------------------------------------------------
    def _number(self, state: WarpState) -> int:
        return self.warps.setdefault(state, len(self.warps))

    def _note(
        self, ins: Instr | None, memory: MemoryWords, state: WarpState, words: np.ndarray
    ) -> None:
        if ins is not None and ins.key in self.deciding:
            key = ins.key, memory, self._number(state)
            if key not in self.reads:
                self.reads[key] = np.zeros(memory.writers.size, bool)
            self.reads[key][words] = True

    def _span(
        self, warp: Fragment, address: np.ndarray, nbytes: int, cta: CTA | None
    ) -> Iterator[tuple[MemoryWords, np.ndarray]]:
        """(memory, words) of bytes at each of some addresses, of shared memory if there is a CTA"""
        if cta is not None:
            if address.size:
                yield self._memory(cta, cta.smem.size, far=False), _words(address, nbytes)
            return
        for region, at in by_region(warp.machine.memory, address, nbytes):
            yield self._memory(region.base, region.size, far=True), _words(at, nbytes)

    def _accessed(
        self, warp: RecordedFragment, mask: int, address: LaneValues, effect: Access
    ) -> Iterator[tuple[MemoryWords, np.ndarray]]:
        """(memory, words) of an access of lanes."""
        for at, nbytes, cta in accessed(warp, mask, address, effect):
            yield from self._span(warp, at, nbytes, cta)

    def _memory(self, key: CTA | int, nbytes: int, far: bool) -> MemoryWords:
        if key not in self.memories:
            self.memories[key] = MemoryWords.of(nbytes, far)
        return self.memories[key]


def _words(at: np.ndarray, nbytes: int) -> np.ndarray:
    """The words of accesses of `nbytes` at some offsets, each once."""
    first = at // WORD
    count = int(((at + nbytes - 1) // WORD - first).max()) + 1
    return np.unique(first[:, None] + np.arange(count)) if count > 1 else np.unique(first)
