"""Rules of tensor memory: check every access against what the shadow remembers of its cells.

PTX ISA 9.7.16.6: some operations of the tensor core (tcgen05.mma, cp, shift) end in order
(queue_order.py). Everything else needs a commit and a wait, or tcgen05.wait::ld or wait::st.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record, issued_before, known
from b200.checker.finding import NOTE, PORTABILITY
from b200.checker.memory import weak_order
from b200.checker.memory.shadow import distinct
from b200.checker.tensor import pairs
from b200.checker.tensor.partly_written import Partly
from b200.checker.tensor.queue_order import listed, ordered
from b200.checker.tensor.tensor_shadow import (
    ALL,
    LOAD_READERS,
    ROWS,
    Halves,
    LaneChoice,
    TensorShadow,
)
from b200.checker.vector_clocks import HB, TENSOR
from b200.chip.describe import mnemonic
from b200.chip.state import CTA

if TYPE_CHECKING:
    from b200.checker.observer import Observer

MANY = 64  # loads of partly written cells that are remembered, and sums over unread ones


class TensorRules:
    """The rules for one CTA's tensor memory."""

    def __init__(self, observer: Observer, cta: CTA):
        self.cta, self.state, self.report = cta, observer.state(cta), observer.report
        self.coverage, self.taken_back = observer.coverage, observer.products.take_back
        self.shadow = TensorShadow()
        # (the MMA that starts a sum, the latest of the sum there that nobody has read, columns)
        self.over: deque[tuple[Record, Record, slice]] = deque(maxlen=MANY)

    def place(self, columns: slice) -> str:
        return f"tensor-memory columns [{columns.start}, {columns.stop}) of CTA {self.cta.index}"

    def read(
        self,
        new: Record,
        halves: Halves,
        columns: slice,
        partly: bool = False,
        keep: bool = True,
        lanes: LaneChoice = None,
    ) -> None:
        """Check a read. partly: report uninitialised memory only if nothing of the range was
        written. keep: note the read in the shadow.
        """
        if self._gone(new, columns):
            return
        writers = self.shadow.writers(halves, columns, lanes)
        numbers = distinct(writers)
        self._conflict(new, numbers, columns, "read")
        if 0 in numbers and (not partly or not writers.any()):
            self._uninitialised(new, columns, int(np.count_nonzero(writers == 0)), writers.size)
        elif 0 in numbers and partly:
            self._partly(new, halves, columns, max(numbers))
        if not keep:
            return
        if new.kind == "load":
            self.shadow.loaded[new.agent.index // 4 % LOAD_READERS, halves, columns] = new.number
        else:
            self.shadow.core[halves, columns] = new.number

    def accumulate(self, new: Record, halves: Halves, columns: slice, lanes: LaneChoice) -> None:
        """Check an MMA that adds to its accumulator."""
        self.read(new, halves, columns, keep=False, lanes=lanes)
        loaded = self.shadow.loaded[:, halves, columns]
        if not loaded.any():
            return
        for number in distinct(loaded):
            if number and ordered(new.agent, new, old := self.state.records[number], "write"):
                self._taken(new, old, columns)

    def _taken(self, new: Record, old: Record, columns: slice) -> None:
        self.report(
            "accumulator",
            f"{words.thing(new)} accumulates on values that {words.thing(old)} has taken already",
            f"this access: {words.act(new)}",
            f"taken by: {words.act(old)}",
            f"in {self.place(columns)}",
            "missing, where a new sum begins: enable-input-d false for the first MMA of the "
            "tile (the accumulate flag is never reset)",
            of=(new, old),
            severity=NOTE,
        )

    def write(self, new: Record, halves: Halves, columns: slice, lanes: LaneChoice = None) -> None:
        if self._gone(new, columns):
            return
        shadow = self.shadow
        writers = distinct(shadow.writers(halves, columns, lanes))
        self._conflict(new, writers, columns, "overwrite")
        core = shadow.core[halves, columns]
        if core.any():
            self._conflict(new, distinct(core), columns, "write")
        loaded = shadow.loaded[:, halves, columns]
        if loaded.any():
            self._conflict(new, distinct(loaded), columns, "write")
        shadow.wrote(new.number, halves, columns, lanes)

    def allocated(self, columns: slice) -> None:
        """tcgen05.alloc has handed out these columns."""
        self.shadow.freed[columns] = 0

    def _gone(self, new: Record, columns: slice) -> bool:
        """Report an access to columns that were freed before it; whether there is one."""
        number = int(self.shadow.freed[columns].max(initial=0))
        if number:
            old = self.state.records[number]
            if old.agent.cta is not self.cta:
                if new.kind in pairs.MOVES:
                    pairs.frees_in_use(self, old, new, columns)
                return False
            self.report(
                "lifetime",
                f"{words.thing(new)} uses tensor memory that is deallocated",
                f"this access: {words.act(new)}",
                f"deallocated by: {words.act(old)}",
                f"in {self.place(columns)}; another CTA of the SM may have them by now",
                "missing: a barrier with every warp that uses tensor memory before tcgen05.dealloc",
                of=(new, old),
                nobodys="freed" if new.kind == "load" else "",
            )
        return bool(number)

    def freed(self, new: Record, columns: slice) -> None:
        """tcgen05.dealloc: accesses come before it, and the tensor core's are complete."""
        shadow = self.shadow
        for cells in (shadow.writers(ALL, columns), shadow.core[:, columns]):
            self._conflict(new, distinct(cells), columns, "free")
        if (loaded := shadow.loaded[:, :, columns]).any():
            self._conflict(new, distinct(loaded), columns, "free")
            self._note_unread(columns)
        shadow.forget(columns)
        shadow.freed[columns] = new.number

    def _note_unread(self, columns: slice) -> None:
        """Note accumulators of which only some columns were loaded since they were written."""
        shadow, records = self.shadow, self.state.records
        loaded = shadow.loaded[:, :, columns].max(axis=0)
        written = shadow.written[:, columns]
        for number in distinct(written):
            if not number or records[number].kind != "mma":
                continue
            mine = written == number
            taken = (mine & (loaded != 0)).any(axis=0)
            left = np.flatnonzero(mine.any(axis=0) & ~taken)
            if left.size and taken.any():
                load = records[int(loaded[mine].max())]
                first, last = int(left[0]), int(left[-1])
                self.coverage.unread.append(
                    (records[number], load, columns.start + first, columns.start + last)
                )

    def _conflict(self, new: Record, numbers: tuple, columns: slice, how: str) -> None:
        agent = new.agent
        for number in numbers:
            if not number:
                continue
            old = self.state.records[number]
            if old is new:
                continue
            if ordered(agent, new, old, how):
                if old.agent.cta is not agent.cta and not known(agent, old):
                    self._narrow(new, old, columns)
                continue
            if old.agent is agent and old.kind in words.CORE and new.kind in words.CORE:
                self._out_of_order(new, old, columns)
                continue
            if listed(new, old, how) and issued_before(agent, old):
                self._in_turn(new, old, columns)
                continue
            executed = weak_order.executed(agent, old)
            if how == "free" and old.kind in ("load", "store") and not executed:
                if agent.knows(HB, old.agent.component, old.epoch):
                    self._freed_under_way(new, old, columns)
                    continue
            if executed and (how != "free" or old.kind in words.CORE):
                self._fences(new, old, columns)
                continue
            if how == "free" and old.kind in ("load", "store") and issued_before(agent, old):
                self._freed_behind_relaxed(new, old, columns)
                continue
            if how == "read" and old.kind == "mma" and self._came_too_soon(new, old, columns):
                continue
            self.report(
                "race",
                self._sentence(new, old, how),
                *words.conflict(new, old, self.place(columns)),
                words.missing_wait(new, old) if old.empty else words.missing_step(agent, old),
                of=(new, old),
            )

    def _in_turn(self, new: Record, old: Record, columns: slice) -> None:
        """Two operations of two warps end in order if the warps have synchronised between them."""
        old.followers.append(new)
        if not new.agent.knows(TENSOR, old.agent.component, old.epoch):
            self._fences(new, old, columns)
        elif old.agent.cta is not new.agent.cta and not new.agent.knows(
            HB, old.agent.component, old.epoch
        ):
            self._narrow(new, old, columns)

    def _came_too_soon(self, new: Record, old: Record, columns: slice) -> bool:
        """Whether a read that is not ordered after MMA `old` has waited for the sum before that of
        `old`. Then it is not the reader that is wrong: the new sum came too soon. Reports that.
        """
        for first, sum_, place in reversed(self.over):
            meet = place.start < columns.stop and columns.start < place.stop
            if not meet or first.agent is not old.agent or first.number > old.number:
                continue
            if ordered(new.agent, new, sum_, "read"):
                self.report(
                    "race",
                    self._sentence(first, new, "write"),
                    f"this access: {words.act(first)}",
                    f"conflicts with: {words.act(new)}",
                    f"it has waited for this sum: {words.act(sum_)}",
                    f"in {self.place(columns)}",
                    words.missing_step(first.agent, new),
                    of=(first, new),
                )
                self.taken_back(first, sum_)
                return True
        return False

    @staticmethod
    def _sentence(new: Record, old: Record, how: str) -> str:
        if how == "free":
            return (
                f"tensor memory is deallocated before the {words.thing(old)} that uses it is "
                "known to have finished"
            )
        if old.empty and how != "read":
            return (
                f"{words.thing(old)} reads tensor memory before {words.thing(new)} writes it, "
                "with nothing to make it wait"
            )
        if how == "read":
            if old.kind in words.CORE:
                return (
                    f"{words.thing(new)} reads tensor memory before the {words.thing(old)} that "
                    "writes it has committed"
                )
            return (
                f"{words.thing(new)} reads tensor memory before the {words.thing(old)} that "
                "writes it is complete"
            )
        if old.kind == "load":
            return (
                f"{words.thing(new)} overwrites tensor memory before the {words.thing(old)} "
                "that reads it is complete"
            )
        return f"{words.thing(new)} overwrites tensor memory that {words.thing(old)} may still use"

    def _freed_under_way(self, new: Record, old: Record, columns: slice) -> None:
        """Report columns that are freed after a barrier at which a warp arrived while its load or
        store was under way: it had not waited, nor used what it loaded.
        """
        wait = "tcgen05.wait::ld" if old.kind == "load" else "tcgen05.wait::st"
        self.report(
            "lifetime",
            f"tensor memory is deallocated before {words.thing(old)} of it is waited for",
            f"this access: {words.act(new)}",
            f"under way: {words.act(old)}",
            f"in {self.place(columns)}; another CTA of the SM may get them",
            f"missing: {wait} by {words.name(old.agent)} before it arrives at the barrier that "
            "lets them be freed",
            of=(new, old),
        )

    def _freed_behind_relaxed(self, new: Record, old: Record, columns: slice) -> None:
        """Report columns that are freed after an arrive without release. What a warp has loaded is
        in its registers, so its arrival does say that the columns are free; but PTX promises that
        only for an arrive with release.
        """
        self.report(
            "race",
            "tensor memory is deallocated after a barrier whose arrive is relaxed",
            *words.conflict(new, old, self.place(columns)),
            f"missing: release semantics of the arrive of {words.name(old.agent)} "
            "(barrier.cluster.arrive without .relaxed)",
            of=(new, old),
            severity=PORTABILITY,
        )

    def _fences(self, new: Record, old: Record, columns: slice) -> None:
        """Report accesses that a barrier orders, but without tcgen05 fences no tensor memory."""
        self.report(
            "race",
            f"{words.thing(new)} uses tensor memory after a barrier without tcgen05 fences",
            *words.conflict(new, old, self.place(columns)),
            f"missing: tcgen05.fence::before_thread_sync by {words.name(old.agent)} before the "
            f"barrier, or tcgen05.fence::after_thread_sync by {words.name(new.agent)} after it",
            of=(new, old),
            severity=PORTABILITY,
        )

    def _out_of_order(self, new: Record, old: Record, columns: slice) -> None:
        """Report an operation that relies on one before it to end first, against PTX."""
        if new.kind == "mma":
            relies = (
                f"uses the sum of {words.thing(old)} before it in the queue, with another "
                "accumulator or shape"
            )
        else:
            relies = f"relies on {words.thing(old)} before it in the queue to end first"
        self.report(
            "race",
            f"{words.thing(new)} {relies}",
            *words.conflict(new, old, self.place(columns)),
            "missing: tcgen05.commit behind the first, and a wait for its mbarrier",
            of=(new, old),
            severity=PORTABILITY,
        )

    def _narrow(self, new: Record, old: Record, columns: slice) -> None:
        """Report tensor memory that an arrive of CTA scope hands to another CTA. Tensor memory
        needs only the order of execution (9.7.16.6.4 has .relaxed.cluster), but an arrive of CTA
        scope does not promise it to another CTA.
        """
        edge = weak_order.edge_of(self.state, old)
        if edge is None or edge.relaxed:
            return
        self.report(
            "race",
            f"{words.thing(new)} uses tensor memory that an arrive of CTA scope hands to another "
            "CTA",
            *words.conflict(new, old, self.place(columns)),
            f"missing: .relaxed.cluster or .release.cluster for the {mnemonic(edge.ins)} at "
            f"{words.line(edge.ins)}, by {words.name(edge.agent)}",
            of=(new, old),
            severity=NOTE,
        )

    def _partly(self, new: Record, halves: Halves, columns: slice, writer: int) -> None:
        """Note a load of which some cells were written and some were not (partly_written.py).
        writer: the record number of the latest write.
        """
        if len(self.coverage.partly) < MANY:
            empty, old = self.shadow.empty(halves, columns), self.state.records[writer]
            row = int(ROWS[halves][0])
            self.coverage.partly.append(Partly(new, old, row, columns, empty))

    def _uninitialised(self, new: Record, columns: slice, cells: int, of: int) -> None:
        new.empty = True
        self.report(
            "uninitialised",
            f"{words.thing(new)} reads tensor memory that nothing has written",
            f"this access: {words.act(new)}",
            f"{cells * 100 // of} % of {self.place(columns)} was never written since it was "
            "allocated",
            "missing: the MMA without accumulation (enable-input-d false) that starts the tile, "
            "the tcgen05.cp or tcgen05.st that fills it, or a wait for it; or the columns are "
            f"wrong{words.latest_wait(new.agent)}",
            of=(new, None),
            nobodys="tensor",
        )
