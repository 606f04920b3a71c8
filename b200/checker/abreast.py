"""Clusters that follow abreast: n at a time, as one machine (chip/abreast).

What following.py says of one cluster holds for each of the n. There are two ways to know that the
rules for clusters would find nothing new. Either their steps are taken together (FollowAbreast):
the lanes, and the operands that are part of a step, are the same in all of them, and the step is
one that a checked cluster has taken. Or they go ways of their own (ApartAbreast), in which no two
accesses are out of order. Anything else drops the run, and the clusters follow one by one.

Once they have ended, the rules for all clusters are told what they would be told of each, cluster
after cluster. Stores are told all at once where nothing else has been stored at their places. A
finding drops the run, too: it is made again where the clusters run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.checker.abreast_writer import CheckedAbreastWriter
from b200.checker.following import Departed, Trail
from b200.checker.memory import generic
from b200.checker.memory.global_conflicts import WEAK
from b200.checker.memory.global_memory import UNIT
from b200.checker.memory.global_reads import ReadsAbreast, rows_of
from b200.checker.memory.one_address import differ
from b200.checker.memory.thread_order import (
    SEVERAL,
    ThreadOrder,
    smallest_access,
)
from b200.checker.operations.latest_copies import LatestCopies
from b200.checker.steps import Touch, copy_operands, plain
from b200.checker.vector_clocks import Agent
from b200.chip.abreast.accesses import Place, chosen_lanes
from b200.chip.abreast.dropped import CtasDiffer, NotAbreast
from b200.chip.abreast.forms import part_of
from b200.chip.abreast.machine import AbreastMachine
from b200.chip.fragment import Fragment
from b200.chip.operations import CpAsync, Operation
from b200.chip.state import Region
from b200.chip.watcher import Abreast
from b200.effects import Access, Stores
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer

# Bytes of an item of the shadow (global_memory.py) -> the type of an array of such items
ITEMS = {2: np.uint32, 4: np.uint64, 8: np.complex128}


class _Access(NamedTuple):
    """A load or store of global memory. lanes: of each CTA, 0 where they differ. ctas: the numbers
    of the CTAs that make it. at: their addresses, int64 [CTAs, lanes], or [CTAs, 1] if all lanes of
    a CTA have one, or [1, 1] if all CTAs have. A CTA of fewer lanes than others repeats an address.
    """

    ins: Instr
    warp: Fragment
    lanes: int
    ctas: np.ndarray
    at: np.ndarray
    nbytes: int
    region: Region

    @property
    def write(self) -> bool:
        return isinstance(self.ins.effect, Stores)


class FollowAbreast(Abreast):
    """n clusters that follow, from their beginning to their end, all by the same steps."""

    writer_type = CheckedAbreastWriter
    machine: AbreastMachine
    trail: Trail

    def __init__(self, observer: Observer):
        assert observer.following is not None
        self.observer, self.following = observer, observer.following
        self.in_place = frozenset(self.following.in_place)
        self.accesses_in_order: list[_Access] = []
        self.unsure: list[_Access] = []  # loads that may read what nobody has written
        self.operations: dict[Fragment, list[Operation]] = {}  # of the present instruction
        self.copied: dict[Fragment, LatestCopies] = {}
        self._undo: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._telling = False

    def begins(self, machine: AbreastMachine) -> None:
        self.machine, machine.view = machine, self
        self.trail = Trail(self.following, machine.clusters[0])
        self.trail.follows = True

    def differ(self) -> bool:
        """From now on clusters of this kernel go ways of their own, if that can be judged."""
        traces = self.following.traces
        traces.apart = traces.judged
        return traces.judged

    @cached_property
    def order(self) -> ThreadOrder:
        machine = self.machine
        return ThreadOrder(machine.n, len(machine.lead.warps), smallest_access(machine.code))

    # --- steps ------------------------------------------------------------------------------------
    def _take(self, ins: Instr, w: Fragment, lanes: int, operands: tuple) -> None:
        try:
            self.trail.take(ins, w, lanes, operands)
        except Departed:
            raise CtasDiffer("a step that no checked cluster has taken") from None

    def takes(self, ins: Instr, w: Fragment, mask: int, rows: list[tuple]) -> None:
        """An instruction is about to be executed. rows: (kind, operand of all CTAs, whether it is
        the same in all lanes of one) for each operand of its step.
        """
        lanes = self.machine.alike(mask)
        self._take(ins, w, lanes, tuple(self._common(lanes, *row) for row in rows))

    def _common(self, lanes: int, kind, value, uniform: bool):
        """An operand as each CTA has it, in the form of a step."""
        mine = part_of(kind, value, 0)
        for i in range(1, self.machine.n) if mine is not value else ():
            if plain(part_of(kind, value, i)) != plain(mine):
                raise CtasDiffer("operands differ")
        if uniform and isinstance(mine, np.ndarray):
            return int(mine[(lanes & -lanes).bit_length() - 1])
        return plain(mine)

    # --- what orders threads ----------------------------------------------------------------------
    def waits(self, w: Fragment, number: int) -> None:
        """A warp of all CTAs begins to wait at a barrier."""
        barrier = self.machine.lead.named_barriers.get(number)
        self.order.waits(w.index, number, barrier.generation if barrier is not None else 0)

    def passes(self, w: Fragment) -> None:
        """It has waited."""
        self.order.passes(w.index)

    def together(self, w: Fragment, mask: int) -> None:
        """Lanes of a warp have met at bar.warp.sync."""
        if mask == w.live:
            self.order.together(w.index)

    # --- accesses ---------------------------------------------------------------------------------
    def accesses(
        self, ins: Instr, w: Fragment, mask: int, place: Place, values: tuple, varies: bool
    ) -> None:
        """A load or store is about to be executed. values: what is stored. varies: whether lanes of
        one CTA have addresses of their own.
        """
        if values and place.space != "local":
            self._look_at_values(ins, mask, place, values)
        if place.region is None:
            return self._own(ins, w, mask, place, varies)
        if place.region.base in self.in_place:
            self._in_order(ins, w, mask, place)
        lanes, ctas, at = self._rows(mask, place)
        at = at if varies else at[:, :1]
        self._global(_Access(ins, w, lanes, ctas, at, place.nbytes, place.region))

    def _rows(self, mask: int, place: Place) -> tuple[int, np.ndarray, np.ndarray]:
        """The lanes, the CTAs and the addresses of an access, as in _Access."""
        machine, at = self.machine, place.at
        lanes = machine.alike(mask)
        return lanes, machine.numbers, at.reshape(1 if at.size == 1 else machine.n, -1)

    def _look_at_values(self, ins: Instr, mask: int, place: Place, values: tuple) -> None:
        """Lanes of a CTA must not store different values at one address."""
        index = place.index
        if (index[1:] > index[:-1]).all() or np.unique(index).size == index.size:
            return
        assert isinstance(ins.effect, Access)
        bits = (1 << ins.effect.bits) - 1
        offset = 0
        for i, lanes in enumerate(self.machine.words(mask).tolist()):
            at = index[offset : offset + lanes.bit_count()]
            offset += at.size
            if lanes and differ(lanes, at, part_of(None, values, i), bits):
                raise NotAbreast("lanes store different values at one address")

    def _own(self, ins: Instr, w: Fragment, mask: int, place: Place, varies: bool) -> None:
        """An access of a CTA's or a thread's own memory."""
        lanes, _, at = self._rows(mask, place)
        if place.space == "local":
            return self._take(ins, w, lanes, (None,))
        if len(at) > 1 and (at != at[0]).any():
            raise CtasDiffer("other places in shared memory")
        self._take(ins, w, lanes, ((at[0] if varies else at[0, :1]).tobytes(),))

    def _in_order(self, ins: Instr, w: Fragment, mask: int, place: Place) -> None:
        """The threads' accesses must be in order with those before."""
        machine, order, region = self.machine, self.order, place.region
        index, size = place.index, place.items.itemsize
        if index.size == machine.n and place.at.size == 1:  # one place of each CTA
            who = SEVERAL
            if mask != machine.all_lanes:
                words = machine.words(mask)
                index, words = index[words != 0], words[words != 0]
                who = np.where(words & words - 1, SEVERAL, np.log2(words).astype(np.int64) + 1)
        else:
            chosen = chosen_lanes(mask, machine.width)
            who = order.lanes if chosen is None else order.lanes[chosen]
        index = (index * size // order.unit) + np.arange(place.nbytes // order.unit)[:, None]
        memory = machine.smem if region is None else region
        cells = order.cells(0 if region is None else region.base, memory.size)
        write = isinstance(ins.effect, Stores)
        order.access(w.index, cells, index, who, write, shared=region is None)

    def _global(self, access: _Access) -> None:
        """The step, and what the rules for all clusters are to be told."""
        base, write, following = access.region.base, access.write, self.following
        self._step_global(access)
        if base not in (following.written if write else following.read):
            if not following.touches(Touch(write, access.at.reshape(-1), access.nbytes)):
                raise NotAbreast("an allocation is read and written")
        self.accesses_in_order.append(access)
        if not write and not self.observer.unwritten.is_known(access.region):
            self.unsure.append(access)

    def _step_global(self, access: _Access) -> None:
        operands = "global", access.at.shape[1]
        self._take(access.ins, access.warp, access.lanes, operands)

    def issued(self, operation: Operation, warp: Fragment) -> None:
        self.operations.setdefault(warp, []).append(operation)

    def has_issued(self, ins: Instr, w: Fragment, mask: int) -> None:
        """An instruction has issued copies of threads in all CTAs."""
        self.machine.alike(mask)
        steps = {
            tuple(self._copy(ins, seat, operation) for operation in operations)
            for seat, operations in self.operations.items()
        }
        self.operations.clear()
        if len(steps) > 1:
            raise CtasDiffer("other copies")
        for operands in steps.pop():
            self._take(ins, w, -1, operands)

    def _copy(self, ins: Instr, seat: Fragment, copy: Operation) -> tuple:
        """What makes the step of a CTA's copy (steps.py)."""
        assert isinstance(copy, CpAsync)
        if copy.nbytes:
            region = self.observer.machine.memory.region(int(copy.sources[0]), copy.nbytes)
            if not self.following.touches(Touch(False, copy.sources, copy.nbytes)):
                raise NotAbreast("an allocation is read and written")
            if not self.observer.unwritten.is_known(region):
                raise NotAbreast("a copy may read what nobody has written")
        return copy_operands(self.copied.setdefault(seat, LatestCopies()), ins, copy)

    def exits(self, state, lanes: int) -> None:
        """Lanes of a warp have exited."""
        self.machine.alike(lanes)
        if state.live == 0:
            try:
                self.trail.step(("exit", 0, state.index))
            except Departed:
                raise CtasDiffer("a warp ends where no checked one has") from None

    # --- the end ----------------------------------------------------------------------------------
    def ends(self) -> None:
        self._judge()
        following = self.following
        self._telling, following.follower = True, self.trail  # a finding departs
        try:
            self._tell()
        except Departed:
            raise NotAbreast("there is something to find") from None
        finally:
            following.follower = None
        self._leave()
        following.followed += self.machine.n
        self._let_go()

    def _judge(self) -> None:
        """Raise NotAbreast if the rules for clusters might find something in one of them."""
        node, following = self.trail.node, self.following
        if node.left is None or node not in following.told and following.traces.remarks.get(node):
            raise NotAbreast("what was remarked of the first clusters is to be looked at in each")

    def _leave(self) -> None:
        """Tell the rules for the whole launch what the clusters leave to them."""
        node, following = self.trail.node, self.following
        assert node.left is not None
        for place, agent in self._all_agents():
            agent.roles |= node.left.roles.get(place, frozenset())
        if node not in following.told:
            following.tell_left(node.left)
            following.told.add(node)

    def drops(self) -> None:
        for shadow, index, cells in reversed(self._undo):
            shadow[index] = cells
        if self._telling:
            for cluster in self.machine.clusters:
                self.observer.globals.forget(cluster)
        self._let_go()

    def _let_go(self) -> None:
        for cluster in self.machine.clusters:
            self.observer.let_go(cluster)

    def _all_agents(self) -> list[tuple[tuple[int, int], Agent]]:
        states = map(self.observer.clusters.get, self.machine.clusters)
        return [item for state in states if state is not None for item in state.agents.items()]

    def _agents(self, warp: Fragment) -> list[Agent]:
        """The agents of a warp's CTAs."""
        state: Any = warp.state
        return [self.observer.agent(seat) for seat in state.seats]

    def _each(self, accesses: list[_Access]) -> Iterator[tuple[_Access, Agent, np.ndarray]]:
        """(access, agent, its addresses) of each CTA, in the order of the CTAs."""
        agents = {a.warp: self._agents(a.warp) for a in accesses}
        rows = [row for a in accesses for row in rows_of(a.ctas, a.at, a)]
        for i, at, access in sorted(rows, key=itemgetter(0)):
            yield access, agents[access.warp][i], at

    def _tell(self) -> None:
        """Tell the rules for all clusters what these have done, in the order of the clusters."""
        rules, unwritten = self.observer.globals, self.observer.unwritten
        if rules.maps.uses:
            raise NotAbreast("tensormaps are edited")
        self._tell_in_place()
        others = [a for a in self.accesses_in_order if a.region.base not in self.in_place]
        stores, loads = [a for a in others if a.write], [a for a in others if not a.write]
        numbers: dict[tuple, np.ndarray] = {}
        for store in stores:
            self._stored(store, numbers)
        narrow = [store for store in stores if store.nbytes < UNIT]
        if not all(store.lanes for store in narrow):
            raise NotAbreast("other lanes of each CTA store bytes")
        for (ins, _, lanes, *_, nbytes, _), agent, row in self._each(narrow and stores):
            rules.lanes.access(agent, lanes, row, nbytes, ins, True)
        for region in dict.fromkeys(load.region for load in loads):
            reads = ReadsAbreast([self._reads(a) for a in loads if a.region is region])
            rules.reads.add_abreast(region, reads)
        for access, agent, row in self._each(self.unsure):
            unwritten.lanes(agent, row, access.nbytes, access.ins)

    def _reads(self, load: _Access) -> tuple[list[int], np.ndarray, np.ndarray, int]:
        numbers = self.observer.globals.reads.numbers(self._agents(load.warp), load.ins)
        return numbers, load.ctas, load.at, load.nbytes

    def _tell_in_place(self) -> None:
        """Note, one by one, the accesses to allocations that are read and written: among those of a
        cluster itself there is nothing to find, as they are in order; nobody else may have been at
        their places.
        """
        rules, given = self.observer.globals, self.observer.given
        mine = [a for a in self.accesses_in_order if a.region.base in self.in_place]
        for at, nbytes, region in (a[-3:] for a in mine):
            if nbytes < UNIT or rules.touched_before(region, at, nbytes):
                raise NotAbreast("another cluster was at a place that is read and written")
            if region.base not in given.whole:
                raise NotAbreast("a part of an allocation is read and written")
        for access, agent, row in self._each(mine):
            ins, nbytes = access.ins, access.nbytes
            if access.write:
                own = generic.own_lanes(access.lanes, row)
                rules.note_store(agent, access.region, row, nbytes, ins, own)
            else:
                rules.reads.add(agent, row, nbytes, ins, strong=False)

    def _stored(self, store: _Access, numbers: dict) -> None:
        """Note stores of CTAs in the shadow, where nobody else has stored."""
        ins, warp, lanes, ctas, at, nbytes, region = store
        rules, given, agents = self.observer.globals, self.observer.given, self._agents(warp)
        if region.base not in given.whole:
            for i, row in zip(ctas.tolist(), at):
                given.look(agents[i], region, row - region.base, nbytes, ins, "writes")
        if nbytes < UNIT:
            return
        own = generic.own_lanes(lanes, at[0])
        key = ins.key, warp.index
        if key not in numbers:
            found = [rules.number(agent, ins, WEAK, own) for agent in agents]
            numbers[key] = np.array(found, np.uint32)
        for agent in agents:
            agent.touched |= own
        mine = numbers[key][ctas]
        offsets = at - region.base
        unit = next(
            u for u in (8, 4, 2) if not (int(np.bitwise_or.reduce(offsets, None)) | nbytes) % u
        )
        shadow = rules.shadow(region)
        items = shadow[: shadow.size // (unit // UNIT) * (unit // UNIT)].view(ITEMS[unit])
        index = (offsets // unit)[..., None] + np.arange(nbytes // unit)
        values = np.repeat(mine[:, None], unit // UNIT, 1)
        cells = items[index]
        before = cells.view(np.uint32).reshape(len(mine), -1)
        if before.any() and ((before != 0) & (before != mine[:, None])).any():
            raise NotAbreast("a place is stored to twice")
        self._undo.append((items, index, cells))
        items[index] = values.view(ITEMS[unit])[:, :, None]


class ApartAbreast(FollowAbreast):
    """n clusters that go ways of their own: which lanes access memory, and where, differs.

    What the rules for clusters look at in such a kernel (can_be_judged) are accesses of shared and
    global memory and what orders threads. The latter are steps that each warp takes as that of a
    checked cluster has (Trail.meetings). The accesses are looked at in each cluster: all of them
    are in order, thread by thread, so that there is nothing to find among them (thread_order.py).
    """

    def begins(self, machine: AbreastMachine) -> None:
        super().begins(machine)
        self.trail.meetings = {}

    def differ(self) -> bool:
        return False

    def _take(self, ins: Instr, w: Fragment, lanes: int, operands: tuple) -> None:
        self.trail.meet(ins, w, lanes, operands)

    def _rows(self, mask: int, place: Place) -> tuple[int, np.ndarray, np.ndarray]:
        words, at = self.machine.words(mask), place.at
        lanes, ctas = int(words[0]) if (words == words[0]).all() else 0, np.flatnonzero(words)
        if at.size == 1:
            return lanes, ctas, at.reshape(1, 1)
        counts = np.array([word.bit_count() for word in words[ctas].tolist()])
        begins = np.cumsum(counts) - counts
        rows = np.repeat(at[begins, None], counts.max(), 1)
        owner = np.repeat(np.arange(ctas.size), counts)
        rows[owner, np.arange(at.size) - begins[owner]] = at
        return lanes, ctas, rows

    def _own(self, ins: Instr, w: Fragment, mask: int, place: Place, varies: bool) -> None:
        if place.space == "shared":
            self._in_order(ins, w, mask, place)

    def _step_global(self, access: _Access) -> None:
        """An access is no step here."""

    def exits(self, state, lanes: int) -> None:
        """Nor is the end of a warp."""

    def _judge(self) -> None:
        if self.trail.met() not in self.following.traces.met:
            raise NotAbreast("warps meet where those of no checked cluster have")

    def _leave(self) -> None:
        """Such clusters leave nothing."""


def next_clusters(observer: Observer) -> FollowAbreast | None:
    """The view of the checker of clusters abreast; None if the next ones must run one by one."""
    following = observer.following
    if following is None or not following.on or following.follower is not None:
        return None
    if following.traces.root.next is None or observer.dependence is not None:
        return None
    return (ApartAbreast if following.traces.apart else FollowAbreast)(observer)
