"""Rules of shared memory: check every access against what the shadow remembers of its cells.

Asynchronous reads and writes (TMA, bulk copies, tensor core) have an index of 16-byte granules, a
slice or an array. Generic ones have an array of 4-byte words. `low` and `high` are the first and
the last granule or word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record, known
from b200.checker.finding import ERROR
from b200.checker.memory import (
    atomics,
    between_lanes,
    lane_release_rule,
    shared_proxy,
    shared_unwritten,
    weak_order,
)
from b200.checker.memory.atomics import REDUCES, STRONG, Atomics
from b200.checker.memory.shadow import GENERIC_READERS, GRANULE, WORD, SharedShadow, distinct
from b200.checker.words import place
from b200.chip.state import CTA

if TYPE_CHECKING:
    from b200.checker.observer import Observer


def granules(index: slice | np.ndarray) -> slice | np.ndarray:
    """The granules that contain the words of an index."""
    if isinstance(index, slice):
        return slice(index.start >> 2, (index.stop - 1 >> 2) + 1)
    return index >> 2


class SharedRules:
    """The rules for one CTA's shared memory."""

    def __init__(self, observer: Observer, cta: CTA, shadow: SharedShadow):
        state = observer.state(cta)
        self.cta, self.state, self.report = cta, state, observer.report
        self.shadow, self.products = shadow, observer.products
        self.strict = observer.strict
        self.atomics, self.sums = Atomics(state, STRONG), Atomics(state, REDUCES)
        # number -> swizzled TMA load whose tile does not begin where the swizzle's pattern does
        self.out_of_phase: dict[int, Record] = {}
        # (instruction, first and last granule) -> such a read by the asynchronous proxy of what
        # nobody had written, its granules, and which of them are meant
        self.unwritten: dict[tuple[int, int, int], tuple[Record, Any, np.ndarray]] = {}

    # --- conflicts ------------------------------------------------------------------------------
    def _conflict(
        self, new: Record, numbers: tuple, at: tuple, how: str, same: Callable | None = None
    ) -> None:
        """Report each of the records `numbers` that is not complete before `new`. how: "read",
        "write" or "overwrite", as in words.shared_race. same: function of (number, old) that tells
        whether both have written the same values.
        """
        for number in numbers:
            if (
                number
                and not known(new.agent, old := self.state.records[number])
                and old is not new
            ):
                if new.beside(old) or self.commute(new, old):
                    continue
                if same is not None and same(number, old):
                    continue
                if old.readers and atomics.observed(new.agent, old):
                    continue
                severity, order = ERROR, "with nothing to order the two"
                if new.kind in STRONG and old.kind in STRONG:
                    missing = atomics.narrow(new, old)
                elif old.empty:
                    missing = words.missing_wait(new, old)
                elif weak_order.executed(new.agent, old):
                    missing = weak_order.missing(self.state, new.agent, old)
                    severity = weak_order.severity(self.state, self.cta, old, reads=how == "write")
                    order = "which is over before by the order of execution only"
                elif new.kind in words.LOADS and new.barrier is not None:
                    missing = words.stage_is_free(new, old)
                else:
                    missing = words.missing_step(new.agent, old)
                self.report(
                    "race",
                    words.shared_race(new, old, how, order),
                    *words.conflict(new, old, place(self.cta, *at)),
                    missing,
                    of=(new, old),
                    severity=severity,
                )

    @staticmethod
    def commute(new: Record, old: Record) -> bool:
        """Whether two accesses are both strong, and their scopes reach; or both bulk reductions."""
        if new.kind in REDUCES:
            return old.kind in REDUCES
        return new.kind in STRONG and old.kind in STRONG and atomics.reach(new, old)

    def _one_lane(
        self,
        new: Record,
        numbers: tuple,
        cells: np.ndarray,
        by: np.ndarray,
        index: slice | np.ndarray,
        at: tuple,
        same: Callable | None = None,
    ) -> None:
        """Report accesses of other warps that a release by one lane has left out."""
        for number in numbers:
            if number and self.state.records[number].agent.lane_releases:
                lane_release_rule.shared(self, new, numbers, cells, by[index], at, same)
                return

    # --- asynchronous proxy ---------------------------------------------------------------------
    def async_read(
        self,
        new: Record,
        index: slice | np.ndarray,
        low: int,
        high: int,
        readers: np.ndarray,
        partly: bool = False,
        lane: int | None = None,
        rows: Sequence[SharedRules] | None = None,
    ) -> None:
        """Check and note an asynchronous read.

        partly: report uninitialised memory only if nothing of the source was written. lane: the
        lane that issues the read, None if it is not a single lane. rows: None, or the rules of the
        CTAs that hold the operand's other rows in the same place; index is then [rows of the
        result, granules].
        """
        shadow = self.shadow
        at, first, last = (low, high, GRANULE), low * GRANULE, high * GRANULE + 15
        written = shadow.written[index]
        numbers = self.sums.also(distinct(written), index, written)
        self._conflict(new, numbers, at, "read")
        self._stale(new, numbers, at)
        if self.strict and new.kind in words.CORE:
            shared_proxy.fenced(self, new, numbers, at)
        stored = None
        if shadow.stored_in.meet(first, last):
            stored = shadow.words(shadow.stored, index)
            by = distinct(stored)
            self._conflict(new, by, at, "read")
            shared_proxy.proxy(self, new, by, stored, shadow.lane.reshape(-1, 4), index, at)
            self._one_lane(new, by, stored, shadow.lane.reshape(-1, 4), index, at)
            if lane is not None:
                lane_of = shadow.lane.reshape(-1, 4)
                between_lanes.shared(self, new, by, stored, lane_of, index, lane, at)
        if 0 in numbers:
            empty = shadow.written[index] == 0
            if stored is not None:
                empty = empty & (stored == 0).reshape(*empty.shape, 4).all(-1)
            if empty.all() if partly else empty.any():
                shared_unwritten.granules(self, new, index, empty, at, rows)
                self.unwritten.setdefault((new.ins.key, low, high), (new, index, empty))
        readers[index] = new.number
        (shadow.copied_in if readers is shadow.copied else shadow.core_in).add(first, last)

    def _stale(self, new: Record, numbers: tuple, at: tuple) -> None:
        """Report a read of a load that one of a later phase of its mbarrier has partly replaced."""
        for number in numbers:
            old = self.state.records[number]
            if old is not None and (later := old.overwritten) is not None:
                if later.barrier is old.barrier is not None and later.step > old.step:
                    self.products.stale(new, old, place(self.cta, *at))

    def async_write(self, new: Record, index: slice | np.ndarray, low: int, high: int) -> None:
        shadow = self.shadow
        at, first, last = (low, high, GRANULE), low * GRANULE, high * GRANULE + 15
        replaced = None  # what loads have written there
        for cells, blocks, how in (
            (shadow.written, shadow.written_in, "overwrite"),
            (shadow.core, shadow.core_in, "write"),
            (shadow.copied, shadow.copied_in, "write"),
        ):
            if blocks.meet(first, last):
                numbers = distinct(cells[index])
                if cells is shadow.written:
                    numbers = self.sums.also(numbers, index, cells[index])
                self._conflict(new, numbers, at, how)
                if cells is shadow.written:
                    for number in numbers:
                        if number:
                            self.state.records[number].overwritten = new
                    replaced = cells[index].copy()
                elif cells is shadow.core and 0 in numbers and len(numbers) > 1:
                    if replaced is not None:
                        self._part_unread(replaced, cells[index])
                if numbers != (0,):
                    cells[index] = 0
        if shadow.stored_in.meet(first, last):
            stored = shadow.words(shadow.stored, index)
            self._conflict(new, numbers := distinct(stored), at, "overwrite")
            self._one_lane(new, numbers, stored, shadow.lane.reshape(-1, 4), index, at)
            by = shadow.lane.reshape(-1, 4)
            shared_proxy.proxy(self, new, numbers, stored, by, index, at, overwrites=True)
            shadow.stored.reshape(-1, 4)[index] = 0
        for slot in shadow.readers(first, last):
            loaded = shadow.loaded[slot].reshape(-1, 4)
            numbers = distinct(loaded[index])
            self._conflict(new, numbers, at, "write")
            reader = shadow.reader.reshape(-1, 4)
            self._one_lane(new, numbers, loaded[index], reader, index, at)
            shared_proxy.refill(self, new, numbers, at)
            loaded[index] = 0
        if new.kind in REDUCES:
            self.sums.add(new, index, shadow.written[index] if replaced is None else replaced)
        shadow.written[index] = new.number
        shadow.written_in.add(first, last)
        self._over_barrier(new, first, last + 1)

    def _part_unread(self, written: np.ndarray, read: np.ndarray) -> None:
        """Report loads of which the tensor core has read only a part. written: the loads of some
        granules. read: the tensor core's reads of them since.
        """
        for number in distinct(written):
            old = self.state.records[number]
            if old is None or not old.inside:
                continue
            cells = written == number
            total, used = int(cells.sum()), int((cells & (read != 0)).sum())
            if 0 < used < total * old.inside:
                self.products.part_unread(old, total, used)

    def ended(self) -> Iterator[tuple[Record, bool]]:
        """The CTA's cluster has ended: check whether the last loads were read whole. Yields reads
        of what nobody had written, and whether somebody has written it since: then the tensor core
        or the copy may find that there, or not.
        """
        shadow = self.shadow
        if shadow.core_in.bits:
            self._part_unread(shadow.written, shadow.core)
        for read, index, empty in self.unwritten.values():
            stored = shadow.words(shadow.stored, index).reshape(*empty.shape, 4).any(-1)
            yield read, bool((empty & (stored | (shadow.written[index] != 0))).any())

    # --- generic proxy --------------------------------------------------------------------------
    def generic_read(
        self, new: Record, index: np.ndarray | slice, low: int, high: int, lanes: np.ndarray
    ) -> None:
        """Check and note a generic read. lanes: the lane that reads each word."""
        shadow = self.shadow
        at, first, last = (low, high, WORD), low * WORD, high * WORD + 3
        stored = shadow.stored[index]
        numbers = self.atomics.also(distinct(stored), index, stored)
        if new.kind == "strong":
            self.atomics.received(new, numbers)
        self._conflict(new, numbers, at, "read")
        between_lanes.shared(self, new, numbers, stored, shadow.lane, index, lanes, at)
        self._one_lane(new, numbers, stored, shadow.lane, index, at)
        by_lanes = new.kind == "generic" and new.agent.lane_acquires is not None
        if by_lanes:
            lane_release_rule.unacquired(self, new, numbers, stored, lanes, at)
        by_copies = None
        if shadow.written_in.meet(first, last):
            by_copies = self._copies(index)
            self._conflict(new, by_copies, at, "read")
            if by_lanes:
                words_ = np.arange(low, high + 1) if isinstance(index, slice) else index
                cells = shadow.written[words_ >> 2]
                lane_release_rule.unacquired(self, new, by_copies, cells, lanes, at)
            if self.out_of_phase:
                for number in self.out_of_phase.keys() & set(by_copies):
                    self.products.out_of_phase(new, self.out_of_phase[number])
        if 0 in numbers and (by_copies is None or 0 in by_copies):
            shared_unwritten.reads(self, new, index, stored, at)
        slot = new.agent.index % GENERIC_READERS
        shadow.loaded[slot][index] = new.number
        shadow.reader[index] = lanes
        shadow.loaded_in[slot].add(first, last)

    def generic_write(
        self, new: Record, index: np.ndarray | slice, low: int, high: int, lanes: int | np.ndarray
    ) -> None:
        """Check and note a generic write. lanes: the lane that writes each word."""
        self.takes(new, index, low, high, lanes)
        self._over_barrier(new, low * WORD, high * WORD + WORD)

    def takes(
        self, new: Record, index: np.ndarray | slice, low: int, high: int, lanes: int | np.ndarray
    ) -> None:
        """As generic_write; it may put an mbarrier there."""
        shadow = self.shadow
        at, first, last = (low, high, WORD), low * WORD, high * WORD + 3
        for cells, blocks, how in (
            (shadow.written, shadow.written_in, "overwrite"),
            (shadow.core, shadow.core_in, "write"),
            (shadow.copied, shadow.copied_in, "write"),
        ):
            if blocks.meet(first, last):
                copied = cells is shadow.written
                numbers = self._copies(index) if copied else distinct(cells[granules(index)])
                self._conflict(new, numbers, at, how)
                if cells is shadow.copied and new.kind == "generic":
                    between_lanes.sent(self, new, numbers, index, lanes, at)
        if shadow.stored_in.meet(first, last):
            stored = shadow.stored[index]
            same = self._same_values(new, index, stored)
            numbers = self.atomics.also(distinct(stored), index, stored)
            if new.kind == "atomic":
                self.atomics.received(new, numbers)
            self._conflict(new, numbers, at, "overwrite", same)
            if not self._rewrites(new, numbers, same):
                args = stored, shadow.lane, index, lanes, at, "overwrite"
                between_lanes.shared(self, new, numbers, *args)
            self._one_lane(new, numbers, stored, shadow.lane, index, at, same)
            if new.kind == "generic" and new.agent.lane_acquires is not None:
                lane_release_rule.unacquired(self, new, numbers, stored, lanes, at)
        for slot in shadow.readers(first, last):
            loaded = shadow.loaded[slot][index]
            numbers = distinct(loaded)
            if numbers != (0,):
                self._conflict(new, numbers, at, "write")
                self._one_lane(new, numbers, loaded, shadow.reader, index, at)
                if new.kind == "generic" and new.agent.lane_acquires is not None:
                    lane_release_rule.unacquired(self, new, numbers, loaded, lanes, at)
                if slot == new.agent.index % GENERIC_READERS:
                    args = shadow.reader, index, lanes, at, "write"
                    between_lanes.shared(self, new, numbers, loaded, *args)
                shadow.loaded[slot][index] = 0
        if shared_unwritten.updates(new):
            shared_unwritten.reads(self, new, index, shadow.stored[index], at)
        if new.kind in STRONG:
            self.atomics.add(new, index, shadow.stored[index])
        shadow.stored[index] = new.number
        shadow.values[index] = self.cta.smem.u32[index]
        shadow.lane[index] = lanes
        shadow.stored_in.add(first, last)

    def _copies(self, index: np.ndarray | slice) -> tuple:
        """The numbers of the copies that have written some words."""
        at = granules(index)
        written = self.shadow.written[at]
        return self.sums.also(distinct(written), at, written)

    def _rewrites(self, new: Record, numbers: tuple, same: Callable) -> bool:
        """Whether a store leaves what the warp itself has stored by the same instruction."""
        records = self.state.records
        return all(n and records[n].agent is new.agent and same(n, records[n]) for n in numbers)

    def _same_values(self, new: Record, index: slice | np.ndarray, stored: np.ndarray):
        """A function that tells whether a store before has left what `new` writes, by the same
        instruction. Such a race is of uniform size, so PTX's model holds for it [8.7]: either write
        may be the last one, and the words have the same values.
        """

        def same(number: int, old: Record) -> bool:
            generic = old.kind == new.kind == "generic"
            if not generic or old.ins.effect != new.ins.effect:
                return False
            here = stored == number
            before, now = self.shadow.values[index], self.cta.smem.u32[index]
            return bool((before[here] == now[here]).all())

        return same

    def _over_barrier(self, new: Record, low: int, high: int) -> None:
        """Report a write to bytes [low, high) if they include an mbarrier."""
        if not self.shadow.barriers_in.meet(low, high - 1):
            return
        for offset in self.cta.mbarriers:
            if low < offset + 8 and offset < high:
                barrier = self.state.barriers.get((self.cta.rank, offset))
                name = barrier.name() if barrier is not None else f"mbarrier at {offset:#x}"
                self.report(
                    "protocol",
                    f"{words.thing(new)} writes over the {name}",
                    f"this access: {words.act(new)}",
                    f"it writes bytes [{low:#x}, {high:#x})",
                    "missing: room of its own for the buffer, or for the barrier",
                    of=(new, None),
                )
                return
