"""What clusters abreast do to global memory, and what the rules for all clusters are told."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from b200.checker.agent import Agent
from b200.checker.memory import reductions
from b200.checker.memory.global_conflicts import ATOMIC, WEAK
from b200.checker.memory.global_reads import WORD, ReadsAbreast, rows_of
from b200.checker.memory.global_shadow import UNIT
from b200.checker.memory.parts import own_lanes
from b200.checker.memory.shadow import distinct
from b200.checker.memory.stores_at_once import as_items, wide_items
from b200.checker.observer import Observer
from b200.checker.vector_clocks import GPU, scope_of
from b200.chip.abreast.dropped import NotAbreast
from b200.chip.fragment import Fragment
from b200.chip.global_memory import Region
from b200.effects import Stores, Updates
from b200.program.module import Instr
from b200.registry import FULL


class GlobalAccess(NamedTuple):
    """A load, store or atomic. lanes: of each CTA, 0 where they differ. ctas: the numbers of the
    CTAs that make it. at: their addresses, int64 [CTAs, lanes], or [CTAs, 1] if all lanes of a CTA
    have one, or [1, 1] if all CTAs have. A CTA of fewer lanes than others repeats an address.
    changed: of an atomic, in which of all CTAs it changes what is there.
    """

    ins: Instr
    warp: Fragment
    lanes: int
    ctas: np.ndarray
    at: np.ndarray
    nbytes: int
    region: Region
    changed: np.ndarray | None = None

    @property
    def write(self) -> bool:
        return isinstance(self.ins.effect, Stores)

    @property
    def update(self) -> bool:
        return isinstance(self.ins.effect, Updates)


class GlobalAccesses:
    """Those of one run, in their order. in_place: bases of what is read and written. unsure: those
    that may read what nobody has written.
    """

    def __init__(self, observer: Observer, in_place: frozenset[int]):
        self.observer, self.in_place = observer, in_place
        self.made: list[GlobalAccess] = []
        self.unsure: list[GlobalAccess] = []
        self._undo: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._numbers: dict[tuple, np.ndarray] = {}
        # those that were told, with their numbers in the shadow
        self._stores: list[tuple[GlobalAccess, np.ndarray]] = []

    def add(self, access: GlobalAccess) -> None:
        self.made.append(access)
        if not access.write and not self.observer.unwritten.is_known(access.region):
            self.unsure.append(access)

    def agents(self, warp: Fragment) -> list[Agent]:
        state: Any = warp.state
        return [self.observer.agent(seat) for seat in state.seats]

    def _each(
        self, accesses: list[GlobalAccess]
    ) -> Iterator[tuple[GlobalAccess, Agent, np.ndarray]]:
        """(access, agent, its addresses) of each CTA, in the order of the CTAs."""
        agents = {a.warp: self.agents(a.warp) for a in accesses}
        rows = [row for a in accesses for row in rows_of(a.ctas, a.at, a)]
        for i, at, access in sorted(rows, key=itemgetter(0)):
            yield access, agents[access.warp][i], at

    # --- telling ----------------------------------------------------------------------------------
    def tell(self) -> None:
        """Tell the rules for all clusters what these have done, in the order of the clusters.
        Raises NotAbreast where that says too little, Departed where there is something to find.
        """
        rules, unwritten = self.observer.globals, self.observer.unwritten
        if rules.maps.uses:
            raise NotAbreast("tensormaps are edited")
        self._tell_in_place()
        others = [a for a in self.made if a.region.base not in self.in_place]
        stores = [a for a in others if a.write]
        loads = [a for a in others if not a.write and not a.update]
        for store in stores:
            self._stored(store)
        narrow = [store for store in stores if store.nbytes < UNIT]
        if not all(store.lanes for store in narrow):
            raise NotAbreast("other lanes of each CTA store bytes")
        for (ins, _, lanes, _, _, nbytes, *_), agent, row in self._each(narrow and stores):
            rules.lanes.access(agent, lanes, row, nbytes, ins, True)
        for region in dict.fromkeys(load.region for load in loads):
            reads = ReadsAbreast([self._reads(a) for a in loads if a.region is region])
            rules.reads.add_abreast(region, reads)
        for access, agent, row in self._each(self.unsure):
            unwritten.lanes(agent, row, access.nbytes, access.ins)
        self._tell_updates([a for a in self.made if a.update])

    def take_back(self) -> None:
        for shadow, index, cells in reversed(self._undo):
            shadow[index] = cells

    def _reads(self, load: GlobalAccess) -> tuple[list[int], np.ndarray, np.ndarray, int]:
        numbers = self.observer.globals.reads.numbers(self.agents(load.warp), load.ins)
        return numbers, load.ctas, load.at, load.nbytes

    def _tell_in_place(self) -> None:
        """Note, one by one, the accesses to allocations that are read and written: among those of a
        cluster itself there is nothing to find, as they are in order; nobody else may have written
        where it reads, nor have been where it writes.
        """
        rules, given = self.observer.globals, self.observer.given
        mine = [a for a in self.made if a.region.base in self.in_place]
        for access in mine:
            region, nbytes = access.region, access.nbytes
            if nbytes < UNIT or rules.touched_before(region, access.at, nbytes, access.write):
                raise NotAbreast("another cluster was at a place that is read and written")
            if region.base not in given.whole:
                raise NotAbreast("a part of an allocation is read and written")
        for access, agent, row in self._each(mine):
            ins, nbytes = access.ins, access.nbytes
            if access.write:
                own = own_lanes(access.lanes, row)
                rules.note_store(agent, access.region, row, nbytes, ins, own)
            else:
                rules.reads.add(agent, row, nbytes, ins, strong=False)

    def _given(self, access: GlobalAccess) -> None:
        given, agents = self.observer.given, self.agents(access.warp)
        if access.region.base in given.whole:
            return
        region = access.region
        for i, row, _ in rows_of(access.ctas, access.at, None):
            at = row - region.base
            given.look(agents[i], region, at, access.nbytes, access.ins, "writes")

    def _written_by(self, access: GlobalAccess, kind: str, own: int) -> np.ndarray:
        """The numbers of the writes that an access makes, one for each of its CTAs."""
        key = access.ins.key, access.warp.index
        if key not in self._numbers:
            rules, agents = self.observer.globals, self.agents(access.warp)
            found = [rules.shadow.number(agent, access.ins, kind, own) for agent in agents]
            self._numbers[key] = np.array(found, np.uint32)
        return self._numbers[key][access.ctas]

    def _stored(self, store: GlobalAccess) -> None:
        """Note stores of CTAs in the shadow, where nobody else has stored."""
        _, warp, lanes, _, at, nbytes, region, _ = store
        self._given(store)
        if nbytes < UNIT:
            self.observer.globals.shadow.narrow = True
            return
        own = own_lanes(lanes, at[0])
        mine = self._written_by(store, WEAK, own)
        for agent in self.agents(warp):
            agent.touched |= own
        offsets = at - region.base
        items, index = wide_items(self.observer.globals.shadow.of(region), offsets, nbytes)
        cells = items[index]
        before = cells.view(np.uint32).reshape(len(mine), -1)
        others = (before != 0) & (before != mine[:, None])
        if others.any() and not self._are_own(store, before[others], others):
            raise NotAbreast("a place is stored to twice")
        self._stores.append((store, mine))
        self._undo.append((items, index, cells))
        items[index] = as_items(mine, items)[:, :, None]

    def _are_own(self, store: GlobalAccess, before: np.ndarray, where: np.ndarray) -> bool:
        """Whether numbers in the shadow are of the same lanes' earlier stores at the same places.
        where: the cells that have them.
        """
        at = np.sort(store.at, 1)
        if not store.lanes or (at[:, 1:] == at[:, :-1]).any():
            return False  # other lanes may have stored there
        left = np.ones(before.size, bool)
        for old, numbers in self._stores:
            same = old.warp is store.warp and old[2:3] + old[5:7] == store[2:3] + store[5:7]
            if same and np.array_equal(old.at, store.at):
                left &= before != np.broadcast_to(numbers[:, None], where.shape)[where]
        return not left.any()

    # --- atomics ----------------------------------------------------------------------------------
    def _tell_updates(self, updates: list[GlobalAccess]) -> None:
        """Note atomics at whose places there were only atomics before, whose scopes reach each
        other: among these there is nothing to find, so that this does not raise once it has begun.
        Later accesses are held against them.
        """
        for update in updates:
            self._given(update)
            self._among_atomics(update)
            self._sums(update)
        for region in dict.fromkeys(update.region for update in updates):
            mine = [update for update in updates if update.region is region]
            if all(map(_changes_all, mine)):
                self._updated_at_once(region, mine)
            else:
                self._updated_in_turn(mine)

    def _among_atomics(self, update: GlobalAccess) -> None:
        rules, region = self.observer.globals, update.region
        if scope_of(update.ins, GPU) < GPU or region.base in self.in_place:
            raise NotAbreast("atomics of a narrow scope, or beside other accesses")
        offsets = (update.at - region.base).reshape(-1, 1)
        for read in rules.reads.of(region, offsets, update.nbytes):
            if not read.strong or read.scope < GPU:
                raise NotAbreast("atomics where others have read")
        cells = rules.shadow.of(region)[offsets // UNIT + np.arange(update.nbytes // UNIT)]
        for number in distinct(cells):
            write = rules.shadow.writes[number]
            if write is not None and (write.kind != ATOMIC or write.scope < GPU):
                raise NotAbreast("atomics where others have written")

    def _sums(self, update: GlobalAccess) -> None:
        """The rule of sums by several CTAs, which must have found what there is to find."""
        rules, base = self.observer.globals, update.region.base
        if reductions.is_sum(update.ins.effect):
            if base not in rules.reductions:
                raise NotAbreast("a sum that no cluster before has added to")
            agent = self.agents(update.warp)[update.ctas[0]]
            reductions.reduced(rules, agent, base, update.ins)

    def _updated_in_turn(self, updates: list[GlobalAccess]) -> None:
        """Tell of one after the other, as of those of checked clusters (generic.py)."""
        rules = self.observer.globals
        rows = [row for a in updates for row in rows_of(a.ctas, a.at, a)]
        for i, at, update in sorted(rows, key=itemgetter(0)):
            agent, nbytes, ins = self.agents(update.warp)[i], update.nbytes, update.ins
            assert update.changed is not None
            if update.changed[i]:
                rules.updated(agent, at, nbytes, ins, update.lanes or FULL)
            else:
                rules.strongly_loaded(agent, at, nbytes, ins)

    def _updated_at_once(self, region: Region, updates: list[GlobalAccess]) -> None:
        """The same of atomics that all change what is there: the last one of the last CTA stays in
        the shadow. What they hand over is told once somebody asks.
        """
        rules = self.observer.globals
        shadow, owners, places, numbers = rules.shadow.of(region), [], [], []
        for update in updates:
            offsets = update.at - region.base
            words = offsets[..., None] // WORD + np.arange(-(-update.nbytes // WORD))
            rules.reads.over(region, words)
            cells = offsets[..., None] // UNIT + np.arange(update.nbytes // UNIT)
            cells = cells.reshape(len(cells), -1)
            shape = update.ctas.size, cells.shape[1]
            places.append(np.broadcast_to(cells, shape).reshape(-1))
            numbers.append(np.repeat(self._written_by(update, ATOMIC, 0), shape[1]))
            owners.append(np.repeat(update.ctas, shape[1]))
        order = np.argsort(np.concatenate(owners), kind="stable")
        shadow[np.concatenate(places)[order]] = np.concatenate(numbers)[order]
        agents = {update.warp: self.agents(update.warp) for update in updates}
        nbytes = sum(update.at.nbytes for update in updates)
        rules.order.put_off(region.base, partial(self._pass_on, updates, agents), nbytes)

    def _pass_on(self, updates: list[GlobalAccess], agents: dict[Fragment, list[Agent]]) -> None:
        """What each CTA's updates of an allocation hand to readers, in the order of the CTAs."""
        rules = self.observer.globals
        rows = [
            (i, update, number, at)
            for update in updates
            for number, (i, at, _) in zip(
                self._written_by(update, ATOMIC, 0), rows_of(update.ctas, update.at, None)
            )
        ]
        for i, update, number, at in sorted(rows, key=itemgetter(0)):
            rules.passed_on(agents[update.warp][i], update.ins, update.lanes or FULL, number, at)


def _changes_all(update: GlobalAccess) -> bool:
    """Whether an atomic changes what is there in each CTA that executes it."""
    return update.changed is not None and bool(update.changed[update.ctas].all())
