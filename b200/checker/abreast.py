"""Clusters that follow abreast: n at a time, as one machine (chip/abreast).

What following.py says of one cluster holds for each of the n. Their steps are taken together: the
lanes, and the operands that are part of a step, must be the same in all of them, and the step one
that a checked cluster has taken. Anything else drops the run, and the clusters follow one by one.

Once they have ended, the rules for all clusters are told what they would be told of each, cluster
after cluster. Stores are told all at once where nothing else has been stored at their places. A
finding drops the run, too: it is made again where the clusters run one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.checker.abreast_writer import CheckedAbreastWriter
from b200.checker.following import GRANULE, Departed, Shapes, Trail
from b200.checker.memory import generic
from b200.checker.memory.global_conflicts import WEAK
from b200.checker.memory.global_memory import UNIT
from b200.checker.memory.global_reads import ReadsAbreast
from b200.checker.memory.one_address import differ
from b200.checker.steps import Touch, copy_operands, plain
from b200.checker.vector_clocks import Agent
from b200.chip.abreast.accesses import Place
from b200.chip.abreast.dropped import NotAbreast
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
    """A load or store of global memory. at: int64 [CTAs, lanes], or [CTAs, 1] if all lanes of a CTA
    have one address, or [1, 1] if all CTAs have.
    """

    ins: Instr
    warp: Fragment
    lanes: int
    at: np.ndarray
    nbytes: int
    region: Region


class FollowAbreast(Abreast):
    """n clusters that follow, from their beginning to their end."""

    writer_type = CheckedAbreastWriter
    machine: AbreastMachine
    trail: Trail

    def __init__(self, observer: Observer):
        assert observer.following is not None
        self.observer, self.following = observer, observer.following
        self.in_place = frozenset(self.following.in_place)
        self.shapes = Shapes()
        self.firsts: dict[int, np.ndarray] = {}  # base -> each cluster's first address there
        self.accesses_in_order: list[_Access] = []
        self.loads: list[_Access] = []
        self.stores: list[_Access] = []
        self.unsure: list[_Access] = []  # loads that may read what nobody has written
        self.operations: dict[Fragment, list[Operation]] = {}  # of the present instruction
        self.copied: dict[Fragment, dict] = {}  # as Trail.copied
        self._undo: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._telling = False

    def begins(self, machine: AbreastMachine) -> None:
        self.machine, machine.view = machine, self
        self.trail = Trail(self.following, machine.clusters[0])
        self.trail.follows = True

    # --- steps ------------------------------------------------------------------------------------
    def _take(self, ins: Instr, w: Fragment, lanes: int, operands: tuple) -> None:
        try:
            self.trail.take(ins, w, lanes, operands)
        except Departed:
            raise NotAbreast("a step that no checked cluster has taken") from None

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
                raise NotAbreast("operands differ")
        if uniform and isinstance(mine, np.ndarray):
            return int(mine[(lanes & -lanes).bit_length() - 1])
        return plain(mine)

    def accesses(
        self, ins: Instr, w: Fragment, mask: int, place: Place, values: tuple, varies: bool
    ) -> None:
        """A load or store is about to be executed. values: what is stored. varies: whether lanes of
        one CTA have addresses of their own.
        """
        lanes = self.machine.alike(mask)
        if place.space == "shared" and place.at.size == 1 and not values:
            return self._take(ins, w, lanes, (place.at.tobytes(),))
        at = place.at.reshape(-1, 1) if place.at.size == 1 else place.at.reshape(self.machine.n, -1)
        if values and place.space != "local" and lanes & lanes - 1:
            self._look_at_values(ins, lanes, at, values)
        if not varies:
            at = at[:, :1]
        if place.region is not None:
            return self._global(_Access(ins, w, lanes, at, place.nbytes, place.region))
        if place.space == "local":
            return self._take(ins, w, lanes, (None,))
        if (at != at[0]).any():
            raise NotAbreast("other places in shared memory")
        self._take(ins, w, lanes, (at[0].tobytes(),))

    def _look_at_values(self, ins: Instr, lanes: int, at: np.ndarray, values: tuple) -> None:
        """Lanes must not store different values at one address."""
        if not any(isinstance(x, np.ndarray) for x in values) or (at[:, 1:] > at[:, :-1]).all():
            return
        ordered = np.sort(at, 1)
        if (ordered[:, 1:] != ordered[:, :-1]).all():
            return
        assert isinstance(ins.effect, Access)
        bits = (1 << ins.effect.bits) - 1
        for i, own in enumerate(at):
            if differ(lanes, own, part_of(None, values, i), bits):
                raise NotAbreast("lanes store different values at one address")

    def _global(self, access: _Access) -> None:
        """The step, and what the rules for all clusters are to be told."""
        ins, base = access.ins, access.region.base
        self._take(ins, access.warp, access.lanes, ("global", access.at.shape[1]))
        write = isinstance(ins.effect, Stores)
        following, unwritten = self.following, self.observer.unwritten
        self._shape(access, write)
        if base not in (following.written if write else following.read):
            if not following.touches(Touch(write, access.at.reshape(-1), access.nbytes)):
                raise NotAbreast("an allocation is read and written")
        self.accesses_in_order.append(access)
        if write:
            self.stores.append(access)
            return
        self.loads.append(access)
        if not unwritten.is_known(access.region):
            self.unsure.append(access)

    def _shape(self, access: _Access, write: bool) -> None:
        """Clusters that read and write one allocation must do so at the same distances."""
        base, at = access.region.base, access.at
        if base not in self.in_place:
            self.shapes.number(base, int(at[0, 0]))
            return
        first = self.firsts.setdefault(base, at[:, :1])
        away = at - first
        if len(first) < self.machine.n or len(at) < len(first):
            raise NotAbreast("clusters read in common what they write")
        if (away != away[0]).any() or ((first - first[0]) % GRANULE).any():
            raise NotAbreast("other distances in an allocation that is read and written")
        self.shapes.add(base, write, at[0], access.nbytes)

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
            raise NotAbreast("other copies")
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
        return copy_operands(self.copied.setdefault(seat, {}), ins, copy)

    def exits(self, state, lanes: int) -> None:
        """Lanes of a warp have exited."""
        self.machine.alike(lanes)
        if state.live == 0:
            try:
                self.trail.step(("exit", 0, state.index))
            except Departed:
                raise NotAbreast("a warp ends where no checked one has") from None

    # --- the end ----------------------------------------------------------------------------------
    def ends(self) -> None:
        following, node = self.following, self.trail.node
        told = node in following.told
        if node.left is None or not told and following.traces.remarks.get(node):
            raise NotAbreast("what was remarked of the first clusters is to be looked at in each")
        shapes = self.shapes.digests()
        for base in self.in_place & self.shapes.of.keys():
            number = self.shapes.of[base][0]
            if shapes[number] != node.left.shapes.get(number):
                raise NotAbreast("other distances in an allocation that is read and written")
        self._telling, following.follower = True, self.trail  # a finding departs
        try:
            self._tell()
        except Departed:
            raise NotAbreast("there is something to find") from None
        finally:
            following.follower = None
        for place, agent in self._all_agents():
            agent.roles |= node.left.roles.get(place, frozenset())
        if not told:
            following.tell_left(node.left)
            following.told.add(node)
        following.followed += self.machine.n
        self._let_go()

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

    def _tell(self) -> None:
        """Tell the rules for all clusters what these have done, in the order of the clusters."""
        rules, unwritten = self.observer.globals, self.observer.unwritten
        if rules.maps.uses:
            raise NotAbreast("tensormaps are edited")
        agents = {a.warp: self._agents(a.warp) for a in (*self.stores, *self.loads)}
        numbers: dict[tuple, np.ndarray] = {}
        if self.in_place:
            self._tell_in_place(agents)
        for store in self.stores:
            self._stored(store, agents[store.warp], numbers)
        if any(store.nbytes < UNIT for store in self.stores):
            for i in range(self.machine.n):
                for ins, warp, lanes, at, nbytes, _ in self.stores:
                    rules.lanes.access(agents[warp][i], lanes, _row(at, i), nbytes, ins, True)
        for region in dict.fromkeys(load.region for load in self.loads):
            loads = [load for load in self.loads if load.region is region]
            rules.reads.add_abreast(
                region,
                ReadsAbreast(
                    [(rules.reads.numbers(agents[a.warp], a.ins), a.at, a.nbytes) for a in loads]
                ),
            )
        for i in range(self.machine.n) if self.unsure else ():
            for ins, warp, _, at, nbytes, _ in self.unsure:
                unwritten.lanes(agents[warp][i], _row(at, i), nbytes, ins)

    def _tell_in_place(self, agents: dict) -> None:
        """Note, one by one, the accesses to allocations that are read and written: among those of a
        cluster itself there is to find what there was in the checked one; nobody else may have been
        at their places.
        """
        rules = self.observer.globals
        all_of_it, self.accesses_in_order = self.accesses_in_order, []
        mine = [a for a in all_of_it if a.region.base in self.in_place]
        self.stores = [a for a in self.stores if a.region.base not in self.in_place]
        self.loads = [a for a in self.loads if a.region.base not in self.in_place]
        for access in mine:
            if access.nbytes < UNIT or rules.touched_before(
                access.region, access.at, access.nbytes
            ):
                raise NotAbreast("another cluster was at a place that is read and written")
            if access.region.base not in self.observer.given.whole:
                raise NotAbreast("a part of an allocation is read and written")
        for i in range(self.machine.n):
            for ins, warp, lanes, at, nbytes, region in mine:
                agent, row = agents[warp][i], _row(at, i)
                if isinstance(ins.effect, Stores):
                    rules.note_store(agent, region, row, nbytes, ins, generic.own_lanes(lanes, row))
                else:
                    rules.reads.add(agent, row, nbytes, ins, strong=False)

    def _stored(self, store: _Access, agents: list[Agent], numbers: dict) -> None:
        """Note stores of n CTAs in the shadow, where nobody else has stored."""
        ins, warp, lanes, at, nbytes, region = store
        rules, given = self.observer.globals, self.observer.given
        if region.base not in given.whole:
            for agent, row in zip(agents, at - region.base):
                given.look(agent, region, row, nbytes, ins, "writes")
        if nbytes < UNIT:
            return
        own = generic.own_lanes(lanes, at[0])
        key = ins.key, warp.index
        if key not in numbers:
            found = [rules.number(agent, ins, WEAK, own) for agent in agents]
            numbers[key] = np.array(found, np.uint32)
        for agent in agents:
            agent.touched |= own
        offsets = at - region.base
        unit = next(
            u for u in (8, 4, 2) if not (int(np.bitwise_or.reduce(offsets, None)) | nbytes) % u
        )
        shadow = rules.shadow(region)
        items = shadow[: shadow.size // (unit // UNIT) * (unit // UNIT)].view(ITEMS[unit])
        index = (offsets // unit)[..., None] + np.arange(nbytes // unit)
        values = np.repeat(numbers[key][:, None], unit // UNIT, 1)
        cells = items[index]
        before = cells.view(np.uint32).reshape(len(agents), -1)
        if before.any() and ((before != 0) & (before != numbers[key][:, None])).any():
            raise NotAbreast("a place is stored to twice")
        self._undo.append((items, index, cells))
        items[index] = values.view(ITEMS[unit])[:, :, None]


def _row(at: np.ndarray, i: int) -> np.ndarray:
    return at[i if len(at) > 1 else 0]


def next_clusters(observer: Observer) -> FollowAbreast | None:
    """The view of the checker of clusters abreast; None if the next ones must run one by one."""
    following = observer.following
    if following is None or not following.on or following.follower is not None:
        return None
    if following.traces.root.next is None or observer.dependence is not None:
        return None
    if following.traces.in_place and (following.contested or observer.replicates):
        return None
    return FollowAbreast(observer)
