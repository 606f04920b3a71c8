"""Clusters that follow abreast: those that take their steps together, and those that go ways of
their own; which view the next ones get.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker.abreast.accesses import GlobalAccess, GlobalAccesses
from b200.checker.abreast.writer import CheckedAbreastWriter
from b200.checker.following import Departed, Trail
from b200.checker.memory import generic
from b200.checker.memory.between_lanes import differ
from b200.checker.memory.parts import lane_addresses
from b200.checker.memory.thread_order import SEVERAL, ThreadOrder, smallest_access
from b200.checker.observer import Observer
from b200.checker.steps import READS, GlobalTouch, copy_operands, plain, way_of
from b200.checker.streams import LatestCopies
from b200.chip.abreast.accesses import AccessPlace, chosen_lanes
from b200.chip.abreast.dropped import CtasDiffer, NotAbreast
from b200.chip.abreast.machine import AbreastMachine
from b200.chip.abreast.updates import part_of
from b200.chip.fragment import Fragment
from b200.chip.operations import CpAsync, Operation
from b200.chip.watcher import Abreast
from b200.effects import Access, Updates
from b200.program.module import Instr
from b200.registry import LaneValues, as_bools

if TYPE_CHECKING:
    from b200.chip.fragment import WarpState


class FollowAbreast(Abreast):
    """n clusters that follow, from their beginning to their end, all by the same steps."""

    writer_type = CheckedAbreastWriter
    machine: AbreastMachine
    trail: Trail

    def __init__(self, observer: Observer):
        assert observer.following is not None
        self.observer, self.following = observer, observer.following
        self.in_place = frozenset(self.following.in_place)
        self.accesses = GlobalAccesses(observer, self.in_place)
        self.later: list[GlobalAccess] = []  # atomics that are kept to the end
        self.operations: dict[Fragment, list[Operation]] = {}  # of the present instruction
        self.copied: dict[Fragment, LatestCopies] = {}
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
    def _take(self, ins: Instr, warp: Fragment, lanes: int, operands: tuple) -> None:
        try:
            self.trail.take(ins, warp, lanes, operands)
        except Departed:
            raise CtasDiffer("a step that no checked cluster has taken") from None

    def takes(self, ins: Instr, warp: Fragment, mask: int, rows: list[tuple]) -> None:
        """An instruction is about to be executed. rows: (kind, operand of all CTAs, whether it is
        the same in all lanes of one) for each operand of its step.
        """
        lanes = self.machine.alike(mask)
        self._take(ins, warp, lanes, tuple(self._common(lanes, *row) for row in rows))

    def _common(self, lanes: int, kind: str, value: LaneValues, uniform: bool):
        """An operand as each CTA has it, in the form of a step."""
        mine = part_of(kind, value, 0)
        for i in range(1, self.machine.n) if mine is not value else ():
            if plain(part_of(kind, value, i)) != plain(mine):
                raise CtasDiffer("operands differ")
        if uniform and isinstance(mine, np.ndarray):
            return int(mine[(lanes & -lanes).bit_length() - 1])
        return plain(mine)

    # --- what orders threads ----------------------------------------------------------------------
    def waits(self, warp: Fragment, number: int) -> None:
        """A warp of all CTAs begins to wait at a barrier."""
        barrier = self.machine.lead.named_barriers.get(number)
        self.order.waits(warp.index, number, barrier.generation if barrier is not None else 0)

    def passes(self, warp: Fragment) -> None:
        self.order.passes(warp.index)

    def together(self, warp: Fragment, mask: int) -> None:
        """Lanes of a warp have met at bar.warp.sync."""
        if mask == warp.live:
            self.order.together(warp.index)

    # --- accesses ---------------------------------------------------------------------------------
    def access(
        self, ins: Instr, warp: Fragment, mask: int, place: AccessPlace, values: tuple, varies: bool
    ) -> None:
        """A load, store or atomic is about to be executed. values: what is stored. varies: whether
        lanes of one CTA have addresses of their own.
        """
        update = isinstance(ins.effect, Updates)
        if values and place.space != "local" and not update:
            self._look_at_values(ins, mask, place, values)
        if place.region is None:
            return self._own(ins, warp, mask, place, varies)
        if place.region.base in self.in_place:
            self._in_order(ins, warp, mask, place)
        lanes, ctas, at = self._rows(mask, place)
        at = at if varies else at[:, :1]
        changed = self._changed(mask, values) if update else None
        made = GlobalAccess(ins, warp, lanes, ctas, at, place.nbytes, place.region, changed)
        self._global(made)
        if update and not values:
            self.later.append(made)

    def _changed(self, mask: int, values: tuple) -> np.ndarray:
        """In which CTAs a sum changes what is there, bool [CTAs]. No values: that is told later."""
        machine = self.machine
        if not values:
            return np.zeros(machine.n, bool)
        (value,) = values
        if not isinstance(value, np.ndarray):
            return np.full(machine.n, value != 0)
        lanes = as_bools(mask, machine.width)
        return (lanes & (value != 0)).reshape(machine.n, 32).any(1)

    def updated(
        self, number: int, cta: int, seat: Fragment, lanes: int, address: Any, found: Any
    ) -> None:
        changed = self.later[number].changed
        assert changed is not None
        at = lane_addresses(lanes, address)
        changed[cta] = generic.changes(seat, at, found, lanes)

    def _rows(self, mask: int, place: AccessPlace) -> tuple[int, np.ndarray, np.ndarray]:
        """The lanes, the CTAs and the addresses of an access, as in GlobalAccess."""
        machine, at = self.machine, place.at
        lanes = machine.alike(mask)
        return lanes, machine.numbers, at.reshape(1 if at.size == 1 else machine.n, -1)

    def _look_at_values(self, ins: Instr, mask: int, place: AccessPlace, values: tuple) -> None:
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

    def _own(self, ins: Instr, warp: Fragment, mask: int, place: AccessPlace, varies: bool) -> None:
        """An access of a CTA's or a thread's own memory."""
        lanes, _, at = self._rows(mask, place)
        if place.space == "local":
            return self._take(ins, warp, lanes, (None,))
        if len(at) > 1 and (at != at[0]).any():
            raise CtasDiffer("other places in shared memory", at)
        self._take(ins, warp, lanes, ((at[0] if varies else at[0, :1]).tobytes(),))

    def _in_order(self, ins: Instr, warp: Fragment, mask: int, place: AccessPlace) -> None:
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
        if isinstance(ins.effect, Updates):
            who = SEVERAL  # the rules hold it for an access by any lane of the warp
        index = (index * size // order.unit) + np.arange(place.nbytes // order.unit)[:, None]
        memory = machine.smem if region is None else region
        cells = order.cells(0 if region is None else region.base, memory.size)
        order.access(warp.index, cells, index, who, way_of(ins.effect), shared=region is None)

    def _global(self, access: GlobalAccess) -> None:
        """The step, and what the rules for all clusters are to be told."""
        self._step_global(access)
        touch = GlobalTouch(way_of(access.ins.effect), access.at.reshape(-1), access.nbytes)
        if access.region.base not in self.following.bases[touch.way]:
            if not self.following.touches(touch):
                raise NotAbreast("an allocation is accessed in two ways")
        self.accesses.add(access)

    def _step_global(self, access: GlobalAccess) -> None:
        operands = "global", access.at.shape[1]
        self._take(access.ins, access.warp, access.lanes, operands)

    def issued(self, operation: Operation, warp: Fragment) -> None:
        self.operations.setdefault(warp, []).append(operation)

    def has_issued(self, ins: Instr, warp: Fragment, mask: int) -> None:
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
            self._take(ins, warp, -1, operands)

    def _copy(self, ins: Instr, seat: Fragment, copy: Operation) -> tuple:
        """What makes the step of a CTA's copy (steps.py)."""
        assert isinstance(copy, CpAsync)
        if copy.nbytes:
            region = self.observer.machine.memory.region(int(copy.sources[0]), copy.nbytes)
            if not self.following.touches(GlobalTouch(READS, copy.sources, copy.nbytes)):
                raise NotAbreast("an allocation is read and written")
            if not self.observer.unwritten.is_known(region):
                raise NotAbreast("a copy may read what nobody has written")
        return copy_operands(self.copied.setdefault(seat, LatestCopies()), ins, copy)

    def exits(self, state: WarpState, lanes: int) -> None:
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
            self.accesses.tell()
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
        states = filter(None, map(self.observer.clusters.get, self.machine.clusters))
        agents = [item for state in states for item in state.agents.items()]
        self.following.leave(self.trail.node, agents)

    def drops(self) -> None:
        self.accesses.take_back()
        if self._telling:
            for cluster in self.machine.clusters:
                self.observer.globals.forget(cluster)
        self._let_go()

    def _let_go(self) -> None:
        for cluster in self.machine.clusters:
            self.observer.let_go(cluster)


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

    def _take(self, ins: Instr, warp: Fragment, lanes: int, operands: tuple) -> None:
        self.trail.meet(ins, warp, lanes, operands)

    def _rows(self, mask: int, place: AccessPlace) -> tuple[int, np.ndarray, np.ndarray]:
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

    def _own(self, ins: Instr, warp: Fragment, mask: int, place: AccessPlace, varies: bool) -> None:
        if place.space == "shared":
            self._in_order(ins, warp, mask, place)

    def _step_global(self, access: GlobalAccess) -> None:
        """An access is no step here."""

    def exits(self, state: WarpState, lanes: int) -> None:
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
    if not all(first.several for first in observer.globals.reductions.values()):
        return None  # what the rule of sums finds is found in a checked cluster
    return (ApartAbreast if following.traces.apart else FollowAbreast)(observer)
