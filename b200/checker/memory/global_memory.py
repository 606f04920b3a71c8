"""Global memory: conflicts between warps.

A conflict is a write of one warp and a read or a write of another warp, with no
order of memory between the two (PTX ISA 8.9). Barriers order (vector_clocks.py), and so do flags
(global_order.py). Two strong accesses whose scopes include each other's thread do not conflict.
Who has written what last is in global_shadow.py, who has read it before that in global_reads.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.between_lanes import GlobalLanes
from b200.checker.memory.global_conflicts import (
    ATOMIC,
    COPY,
    MORAL,
    REDUCTION,
    STRONG,
    WEAK,
    AccessMade,
    GlobalConflicts,
    Write,
    is_bulk,
    width,
)
from b200.checker.memory.global_order import GlobalOrder
from b200.checker.memory.global_reads import WORD, GlobalRead, GlobalReads
from b200.checker.memory.global_shadow import UNIT, GlobalShadow, upto
from b200.checker.memory.parts import by_region
from b200.checker.memory.reductions import FirstSum
from b200.checker.memory.release_acquire import tells
from b200.checker.memory.shadow import distinct
from b200.checker.memory.tensormaps import TensorMaps
from b200.checker.memory.writes_beneath import Beneath
from b200.checker.vector_clocks import GPU, scope_of
from b200.chip.copies.tma import TensorBoxes
from b200.chip.global_memory import Region
from b200.chip.operations import BulkStore
from b200.chip.state import Cluster
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer

WIDE = 4 * UNIT  # bytes of four entries, which are written as one


def _whole_units(places: np.ndarray) -> np.ndarray:
    """The addresses of the entries of which every byte is among some."""
    first = places[places % UNIT == 0]
    return np.unique(first[np.isin(first + 1, places)])


class GlobalRules:
    """The rules for the global memory of one launch."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.shadow = GlobalShadow(observer)
        self.order = GlobalOrder()
        self.conflicts = GlobalConflicts(observer, self.order, self.shadow.writes)
        self.beneath = Beneath(self.conflicts)
        self.reads = GlobalReads(observer.machine.memory)
        self.lanes = GlobalLanes(observer)
        self.widths: set[int] = set()  # of strong accesses
        # warp -> what its latest strong read of one address has seen
        self.polled: dict[Agent, tuple] = {}
        self.maps = TensorMaps(observer)
        self.reductions: dict[int, FirstSum] = {}  # base of an allocation -> who has added to it

    def finish(self) -> None:
        self.shadow.cells.clear()

    def forget(self, cluster: Cluster) -> None:
        self.reads.forget(cluster)
        self.shadow.forget(cluster)

    # --- reads ----------------------------------------------------------------------------------
    def loaded_lanes(self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr) -> None:
        """Reads of `nbytes` at each of the addresses (int64)."""
        self.reads.add(agent, addresses, nbytes, ins, strong=False)
        for region, at in self.shadow.regions(addresses, nbytes) if self.shadow.cells else ():
            if (shadow := self.shadow.cells.get(region.base)) is not None:
                access = AccessMade(agent, ins, region)
                units = (at // UNIT)[:, None] + upto(-(-nbytes // UNIT))
                cells = shadow[units]
                if self.observer.replicates and cells.any():
                    cells = self._without_replicas(agent, cells, region.base + at, ins)
                self.conflicts.check(cells, access)
                self.conflicts.check_adds(region.base + at, nbytes, access)
                self.beneath.check(units, access)

    def _without_replicas(self, agent: Agent, cells: np.ndarray, addresses: np.ndarray, ins: Instr):
        """The cells without those that a warp of the CTA has stored which had loaded them by the
        same instruction. The two are replicas: both hold these elements, one of them stores what
        it makes of its own copy, and what the other one reads now counts for nothing.
        """
        for number in distinct(cells):
            old = self.shadow.writes[number]
            if old is None or old.agent is agent or old.agent.cta is not agent.cta:
                continue
            mine = (cells == number).any(1)
            for before in reversed(old.agent.loaded.get(ins.key, ())):
                if np.isin(addresses[mine], before).all():
                    cells = np.where(cells == number, 0, cells)
                    break
        return cells

    def loaded(self, agent: Agent, address: int, nbytes: int, ins: Instr) -> None:
        """A copy reads contiguous bytes; a bulk copy reads them through the async proxy."""
        region = self.observer.machine.memory.region(address, nbytes)
        bulk = is_bulk(ins)
        if region.behind:
            self._behind(agent, nbytes, ins, region)
        elif bulk:
            self.observer.coverage.copied(agent, address, nbytes, region, ins)
        if (shadow := self.shadow.cells.get(region.base)) is not None:
            at = address - region.base
            units = slice(at // UNIT, (at + nbytes + 1) // UNIT)
            access = AccessMade(agent, ins, region, COPY if bulk else WEAK)
            self.conflicts.check(shadow[units], access)
            self.beneath.check(units, access)
            if shadow[units].any():
                self.conflicts.check_adds(np.array([address]), nbytes, access)

    def loaded_by_threads(
        self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr
    ) -> None:
        """Threads copy `nbytes` each, from each of the addresses (int64) in one allocation."""
        region = self.observer.machine.memory.region(int(addresses[0]), nbytes)
        for address in addresses.tolist() if region.base in self.shadow.cells else ():
            self.loaded(agent, address, nbytes, ins)

    def _behind(self, agent: Agent, nbytes: int, ins: Instr, region: Region) -> None:
        self.observer.found(
            "global",
            f"a bulk copy reads {region.name}",
            f"this access: {words.line(ins)}: {nbytes} bytes, by {words.name(agent)}",
            "on the chip it reads what lies there"
            + ("" if region.within else ", and faults where nothing is mapped")
            + "; here all ones",
            "missing: a guard for what is not there",
            at=ins,
            severity=PORTABILITY if region.within else ERROR,
        )
        if region.within:
            self.observer.undecided["global", words.line(ins), ""] = "behind"

    def loaded_box(self, agent: Agent, box: TensorBoxes, ins: Instr) -> None:
        access = AccessMade(agent, ins, box.region, COPY)
        for cells in self.shadow.boxes(box) if box.region.base in self.shadow.cells else ():
            self.conflicts.check(cells, access)
            if self.beneath.sums:
                self.beneath.check(self.shadow.units(cells, box.region), access)

    # --- of clusters that have run unchecked ------------------------------------------------------
    def touched_before(self, region: Region, at: np.ndarray, nbytes: int, reads: bool) -> bool:
        """Whether some bytes at these addresses (int64) were written. reads: or were read."""
        offsets = (at - region.base).reshape(-1, 1)
        cells = self.shadow.of(region)[offsets // UNIT + upto(nbytes // UNIT)]
        return bool(cells.any()) or reads and self.reads.any(region, offsets, nbytes)

    def note_store(
        self, agent: Agent, region: Region, addresses: np.ndarray, nbytes: int, ins: Instr, own: int
    ) -> None:
        """Note writes of which there is nothing to find."""
        offsets = (addresses - region.base)[:, None]
        agent.touched |= own
        self.reads.over(region, offsets // WORD + upto(-(-nbytes // WORD)))
        index = offsets // UNIT + upto(nbytes // UNIT)
        self.shadow.of(region)[index] = self.shadow.number(agent, ins, WEAK, own)

    # --- writes ---------------------------------------------------------------------------------
    def stored(self, agent: Agent, address: int, nbytes: int, ins: Instr, kind: str = COPY) -> None:
        """A bulk copy or reduction writes contiguous bytes."""
        region = self.observer.machine.memory.region(address, nbytes)
        shadow = self.shadow.of(region)
        if self.maps.uses:
            self.maps.stored(agent, address, address + nbytes)
        at = address - region.base
        if region.base not in self.observer.given.whole:
            self.observer.given.look(agent, region, np.array([at]), nbytes, ins, "writes")
        units = slice(at // UNIT, (at + nbytes + 1) // UNIT)
        cells = shadow[units]
        access = AccessMade(agent, ins, region, kind, writes=True)
        if cells.any():
            self.conflicts.check(cells, access)
            self.beneath.cover(units, access, shadow)
        for read in self.reads.over(region, slice(at // WORD, -(-(at + nbytes) // WORD))):
            self.conflicts.against_read(read, access)
        cells[:] = self.shadow.number(agent, ins, kind)

    def bulk_stored(self, agent: Agent, store: BulkStore, ins: Instr) -> None:
        """A bulk store writes contiguous bytes, or those of them that its mask has."""
        first, n = store.destination, store.nbytes
        if store.mask == 0xFFFF:
            self.stored(agent, first, n, ins)
            return
        chosen = np.array([i for i in range(16) if store.mask >> i & 1], np.int64)
        written = np.arange(first, first + n, 16)[:, None] + chosen
        if written.size:
            self.stored_lanes(agent, written.ravel(), 1, ins, COPY)

    def stored_lanes(
        self,
        agent: Agent,
        addresses: np.ndarray,
        nbytes: int,
        ins: Instr,
        kind: str = WEAK,
        own: int = 0,
        same: bool = False,
    ) -> None:
        """Writes at addresses (int64). own: lanes that write alone. same: they change nothing."""
        if nbytes < UNIT:  # other threads may have the other bytes of an entry
            units = _whole_units(addresses)
            self.shadow.narrow |= units.size * UNIT < addresses.size
            addresses, nbytes = units, UNIT
            if not addresses.size:
                return
        agent.touched |= own
        number = self.shadow.number(agent, ins, kind, own)
        if self.maps.uses:
            self.maps.stored(agent, int(addresses.min()), int(addresses.max()) + nbytes)
        scope = scope_of(ins, GPU) if kind != WEAK else GPU
        for region, at in by_region(self.observer.machine.memory, addresses, nbytes):
            if region.base not in self.observer.given.whole:
                self.observer.given.look(agent, region, at, nbytes, ins, "writes")
            self._store(AccessMade(agent, ins, region, kind, scope, True, same), at, nbytes, number)

    def _store(self, access: AccessMade, at: np.ndarray, nbytes: int, number: int) -> None:
        """Check and note writes of `nbytes` at offsets of an allocation. Where the writes are
        aligned, four entries of the shadow are handled at a time.
        """
        region = access.region
        shadow, unit, value = self.shadow.of(region), UNIT, number
        if nbytes % WIDE == 0 and not (int(np.bitwise_or.reduce(at)) & WIDE - 1):
            shadow, unit = shadow.view(np.complex128), WIDE
            value = np.full(4, number, np.uint32).view(np.complex128)
        index = at // unit
        if nbytes > unit:
            index = index[:, None] + upto(nbytes // unit)
        cells = shadow[index].view(np.uint32)
        if cells.any():
            self.conflicts.check(cells, access)
            self.conflicts.check_adds(region.base + at, nbytes, access)
        if access.kind in MORAL or self.beneath.sums:
            units = (at // UNIT)[:, None] + upto(nbytes // UNIT)
            self.beneath.cover(units, access, shadow.view(np.uint32))
        for read in self.reads.over_lanes(region, at, nbytes):
            if not self._is_replica(access.agent, read, region.base + at):
                self.conflicts.against_read(read, access)
        shadow[index] = value

    def _is_replica(self, agent: Agent, read: GlobalRead, addresses: np.ndarray) -> bool:
        """Whether a warp stores what it had loaded as another has: see _without_replicas."""
        if not self.observer.replicates or read.agent.cta is not agent.cta:
            return False
        loaded = agent.loaded.get(read.ins.key, ())
        return any(np.isin(addresses, before).any() for before in reversed(loaded))

    def stored_box(self, agent: Agent, box: TensorBoxes, ins: Instr, kind: str = COPY) -> None:
        """A TMA store or reduction writes a box."""
        number, region = self.shadow.number(agent, ins, kind), box.region
        access = AccessMade(agent, ins, region, kind, writes=True)
        for cells in self.shadow.boxes(box):
            if cells.any():
                self.conflicts.check(cells, access)
                if kind == REDUCTION or self.beneath.sums:
                    units = self.shadow.units(cells, region)
                    self.beneath.cover(units, access, self.shadow.of(region))
            cells[...] = number
        for rows, nbytes in box.spans() if self.reads.has(region) else ():
            words = ((rows - region.base) // WORD)[:, None] + upto(-(-nbytes // WORD))
            for read in self.reads.over(region, words):
                self.conflicts.against_read(read, access)

    # --- strong accesses ------------------------------------------------------------------------
    def _check_widths(
        self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr, writes: bool = False
    ) -> None:
        """Check a strong access, before it receives a signal, against those of other widths."""
        self.widths.add(width(ins))
        if len(self.widths) == 1:
            return
        for region, at in self.shadow.regions(addresses, nbytes):
            if (shadow := self.shadow.cells.get(region.base)) is not None:
                cells = shadow[at[:, None] // UNIT + upto(-(-nbytes // UNIT))]
                access = AccessMade(agent, ins, region, STRONG, writes=writes)
                self.conflicts.check_widths(cells, access)

    def strongly_loaded(self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr) -> None:
        """ld.relaxed, ld.acquire, ld.volatile: the warp receives signals."""
        polled = self.polled.get(agent)
        if polled is not None and addresses.size == 1:
            of, lanes, address, base, shadow, unit, number, count = polled
            same = of is ins and lanes == agent.lanes and address == addresses[0]
            if same and shadow[unit] == number:
                if len(self.order.signals(address, base)) == count:
                    return  # it has seen this before
        self.reads.add(agent, addresses, nbytes, ins, strong=True)
        self._check_widths(agent, addresses, nbytes, ins)
        for region, at in self.shadow.regions(addresses, nbytes):
            if (shadow := self.shadow.cells.get(region.base)) is not None:
                access = AccessMade(agent, ins, region, STRONG, scope_of(ins, GPU))
                for offset in set(at.tolist()):
                    cells = shadow[offset // UNIT : (offset + nbytes + 1) // UNIT]
                    self._receive(agent, region.base, offset, cells, ins)
                    self.conflicts.check(cells, access)
                self.beneath.check(at[:, None] // UNIT, access)
                if addresses.size == 1:
                    address, unit = int(addresses[0]), int(at[0]) // UNIT
                    count, base = len(self.order.signals(address, region.base)), region.base
                    number, lanes = int(shadow[unit]), agent.lanes
                    self.polled[agent] = ins, lanes, address, base, shadow, unit, number, count

    def strongly_stored(
        self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr, lanes: int
    ) -> None:
        """st.relaxed, st.release, st.volatile: the warp sends a signal."""
        if nbytes < UNIT:
            self.shadow.narrow = True
            return
        self._check_widths(agent, addresses, nbytes, ins, writes=True)
        signal = self.order.signal(agent, ins, lanes, addresses)
        self.stored_lanes(agent, addresses, nbytes, ins, STRONG)
        self.shadow.write_of(agent, ins).signal = signal
        agent.release(lanes, ins)

    def updated(
        self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr, lanes: int
    ) -> None:
        """atom, red: the warp receives signals, and passes them on with one of its own."""
        found = []
        self._check_widths(agent, addresses, nbytes, ins)
        for region, at in self.shadow.regions(addresses, nbytes):
            shadow = self.shadow.of(region)
            for offset in set(at.tolist()):
                cells = shadow[offset // UNIT : (offset + nbytes + 1) // UNIT]
                latest = self._receive(agent, region.base, offset, cells, ins)
                found.append((region.base, offset, latest))
        signal = self.order.signal(agent, ins, lanes, addresses)
        for base, offset, latest in found:
            stored = latest.signal if latest is not None and latest.kind != ATOMIC else None
            passes_on = partial(self.order.passes_on, base + offset, signal, stored)
            if self.order.has_put_off(base):
                self.order.put_off(base, passes_on)
            else:
                passes_on()
        self.stored_lanes(agent, addresses, nbytes, ins, ATOMIC)
        signal.write = self.shadow.write_of(agent, ins)
        signal.write.signal = signal
        agent.release(lanes, ins)

    def passed_on(
        self, agent: Agent, ins: Instr, lanes: int, number: int, addresses: np.ndarray
    ) -> None:
        """What `updated` does beside for a warp abreast: it passes on. number: of the write."""
        signal = self.order.signal(agent, ins, lanes, addresses)
        for address in set(addresses.tolist()):
            self.order.passes_on(address, signal, None)
        signal.write = write = self.shadow.writes[number]
        if write is not None:
            write.signal = signal

    def _receive(
        self, agent: Agent, base: int, offset: int, cells: np.ndarray, ins: Instr
    ) -> Write | None:
        """Receive the signals of a place. Returns the latest write there, None without one."""
        address = base + offset
        number = int(cells[0])
        write = self.shadow.writes[number] if number else None
        if write is None:
            return None
        if write.kind == ATOMIC:
            if tells(ins):
                self.order.receive(agent, self.order.signals(address, base), ins, address)
            return write
        if write.signal is None and write.agent is not agent:
            write.signal = self.order.flag(write.agent, write.ins, write.fenced)
        if write.signal is not None:
            self.order.receive(agent, (write.signal,), ins, address)
        return write
