"""Observes generic loads and stores, atomics, matrix loads and stores.

Accesses marked .volatile, .relaxed, .acquire or .release are strong: they do not conflict with each
other. A release publishes the warp's clock at its address; an acquire joins that clock.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker.memory import reductions
from b200.checker.memory.between_lanes import differ, one_address
from b200.checker.memory.global_shadow import ShadowContents
from b200.checker.memory.lane_sync import part_of, take_ticket
from b200.checker.memory.parts import (
    SHARED_BITS,
    SpacePart,
    lane_addresses,
    own_lanes,
    parts_of,
    shadow_lanes,
)
from b200.checker.memory.shadow import ALL_LANES
from b200.checker.memory.shared_accesses import shared_access, strong_shared
from b200.checker.memory.stores_at_once import FollowedStore
from b200.checker.steps import GlobalTouch, Look, Looking, all_operands, named, plain, rule, way_of
from b200.chip.memory.addressing import ranges
from b200.chip.memory.fill import UNIT
from b200.chip.memory.matrix import matrix_space
from b200.effects import Access, Fills, Loads, MatrixLoads, MatrixStores, Stores, Updates
from b200.program.module import Instr
from b200.registry import LaneValues, Run, active

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer
    from b200.chip.fragment import Fragment

REPLICAS = 64  # executions of a load that are remembered


def _global(
    warp: CheckedFragment,
    ins: Instr,
    mask: int,
    at: np.ndarray,
    nbytes: int,
    write: bool,
    strong: bool,
    before: list[ShadowContents] | None = None,
):
    """Check a load or store of global memory; strong ones synchronise. before: as contested()."""
    observer, agent = warp.observer, warp.observer.agent(warp)
    rules, observer.ins = observer.globals, ins
    if not write and observer.replicates:
        note_loaded(agent, ins, at)
    if write and observer.stores is not None:
        observer.stores.lanes(warp.machine.memory, agent, at, nbytes)
    if strong and write:
        return rules.strongly_stored(agent, at, nbytes, ins, mask)
    if strong:
        agent.lane_acquire, agent.lanes = part_of(warp, mask, ins), mask
        rules.strongly_loaded(agent, at, nbytes, ins)
        agent.lane_acquire = None
    else:
        agent.in_step, agent.lanes = warp.mask, mask
        if write:
            same = before is not None and all((r.u8[i] == old).all() for r, i, old in before)
            rules.stored_lanes(agent, at, nbytes, ins, own=own_lanes(mask, at), same=same)
        else:
            rules.loaded_lanes(agent, at, nbytes, ins)
        rules.lanes.access(agent, mask, at, nbytes, ins, write)
    if not write:
        observer.unwritten.lanes(agent, at, nbytes, ins)


def note_loaded(agent: Agent, ins: Instr, at: np.ndarray) -> None:
    """A load of global memory, of which another warp may be a replica (global_memory.py)."""
    kept = agent.loaded.setdefault(ins.key, [])
    if len(kept) >= REPLICAS:
        del kept[0]
    kept.append(at)


def _beside_other_launches(
    warp: CheckedFragment, ins: Instr, mask: int, at: np.ndarray, nbytes: int, write: bool
) -> None:
    """Check an access of global memory against earlier launches that may still run."""
    observer = warp.observer
    observer.wrote |= write
    if observer.dependence is not None:
        observer.dependence.lanes(observer.agent(warp), at, nbytes, write, ins, mask)


def _look_at_access(ins: Instr) -> Looking | None:
    """How to get the step of ld and st (steps.py). In shared memory the step has the addresses; in
    global memory it has only the fact that the access is global. Strong accesses are followed in
    shared memory only; None for the others.
    """
    effect = ins.effect
    assert isinstance(effect, Access)
    space, write, nbytes = effect.space, isinstance(effect, Stores), effect.nbytes
    bits = (1 << effect.bits) - 1
    if effect.strong and not space.startswith("shared"):
        return None

    def look(warp: CheckedFragment, mask: int, args: tuple):
        parts = parts_of(space, mask, args[0])
        if len(parts) > 1:
            trail = warp.observer.trail
            assert trail is not None  # who looks follows, or is followed
            trail.stop()  # a step has one place
        where, at = parts[0].where, parts[0].at
        differs = partial(differ, mask, at, args[1], bits) if write and where else None
        if where != "global":
            return Look((at.tobytes() if where else where,), differs=differs)
        tell = note = None
        if write:
            alone = partial(_global, warp, ins, mask, at, nbytes, write, False)
            tell = FollowedStore(warp, ins, at, nbytes, own_lanes(mask, at), alone)
        else:
            note = partial(_noted, warp.observer, warp.observer.agent(warp), at, nbytes, ins)
        return Look((where, at.size), GlobalTouch(way_of(effect), at, nbytes), tell, note, differs)

    return look


def _noted(observer: Observer, agent: Agent, at: np.ndarray, nbytes: int, ins: Instr) -> None:
    """A load of global memory by a cluster that follows."""
    observer.globals.reads.add(agent, at, nbytes, ins, strong=False)
    observer.unwritten.lanes(agent, at, nbytes, ins)


@rule(Loads, Stores, look=_look_at_access)
def access(ins: Instr, effect: Loads | Stores, run: Run) -> Run:
    """Observe ld and st."""
    space, write, nbytes = effect.space, isinstance(effect, Stores), effect.nbytes
    strong = effect.strong
    if effect.private:
        return run if write else named(ins, run)  # it may read what nothing has written
    bits = (1 << effect.bits) - 1

    def after(
        warp: CheckedFragment, part: SpacePart, rest: tuple, before: list[ShadowContents] | None
    ) -> None:
        where, mask, at = part.where, part.mask, part.at
        if where is not None and write and not strong and differ(mask, at, rest[0], bits):
            one_address(warp, ins, where)
        if where == "shared":
            if strong:
                strong_shared(warp, ins, effect, at, shadow_lanes(mask, at.size == 1, write), mask)
            else:
                own, lanes = own_lanes(mask, at), shadow_lanes(mask, at.size == 1, write)
                warp.observer.agent(warp).lanes = mask
                shared_access(warp, ins, at, nbytes, write, lanes, own=own)
        elif where == "global":
            _beside_other_launches(warp, ins, mask, at, nbytes, write)
            _global(warp, ins, mask, at, nbytes, write, strong, before)

    def observed(warp: CheckedFragment, mask: int, address: LaneValues, *rest: Any):
        observer = warp.observer
        parts = parts_of(space, mask, address)
        before = None
        if write:
            for part in parts:
                if part.where == "global":
                    observer.unwritten.writes(part.at, nbytes)
                    if not strong and observer.globals.shadow.cells:
                        before = observer.globals.shadow.contested(
                            observer.agent(warp), part.at, nbytes
                        )
        result = run(warp, mask, address, *rest)
        for part in parts:
            after(warp, part, rest, before)
        return result

    return observed


@rule(look=_look_at_access)
def unheeded_load(ins: Instr, effect: Loads, run: Run) -> Run:
    """Observe a strong load whose value decides nothing (dependents.py): it receives no signal."""
    observe = access(ins, effect, run)

    def observed(warp: CheckedFragment, mask: int, *args: Any):
        agent = warp.observer.agent(warp)
        agent.heeds = False
        try:
            return observe(warp, mask, *args)
        finally:
            agent.heeds = True

    return observed


def changes(warp: Fragment, at: np.ndarray, old: np.ndarray | tuple, mask: int) -> bool:
    """Whether an atomic has left another value in global memory than it found. If not, it is no
    more than a read. old: the values that the atomic returned.
    """
    if isinstance(old, tuple):
        return True
    found = np.asarray(old)[active(mask)] if isinstance(old, np.ndarray) else np.array([old])
    places = at if at.size == found.size else np.broadcast_to(at, found.shape)
    nbytes = 16 if found.dtype == object else found.itemsize  # ints of 128-bit registers
    for address, value in set(zip(places.tolist(), found.tolist())):
        region = warp.machine.memory.region(address, nbytes)
        now = region.u8[address - region.base :][:nbytes].tobytes()
        if int.from_bytes(now, "little") != value:
            return True
    return False


def _look_at_atomic(ins: Instr) -> Looking | None:
    """How to get the step of atom and red. In shared memory it has the addresses, as that of ld and
    st. In global memory clusters with it follow abreast only (following.py), and not at all where
    somebody uses the result.
    """
    effect = ins.effect
    assert isinstance(effect, Updates)
    space, nbytes = effect.space, effect.nbytes
    if effect.returns and space == "global":
        return None

    def look(warp: CheckedFragment, mask: int, args: tuple):
        parts = parts_of(space, mask, args[0])
        where, at = parts[0].where, parts[0].at
        if len(parts) > 1 or where == "global" and effect.returns:
            trail = warp.observer.trail
            assert trail is not None  # as above
            trail.stop()
        if where != "global":
            return Look((at.tobytes() if where else where,))
        return Look((where, at.size), GlobalTouch(way_of(effect), at, nbytes))

    return look


@rule(Updates, look=_look_at_atomic)
def atomic(ins: Instr, effect: Updates, run: Run) -> Run:
    """Observe atom and red."""
    space, nbytes = effect.space, effect.nbytes
    sums = reductions.is_sum(effect)

    def after(
        warp: CheckedFragment, mask: int, where: str | None, at: np.ndarray, result: np.ndarray
    ) -> None:
        observer = warp.observer
        if where == "shared":
            agent, text = observer.agent(warp), "updates shared memory atomically"
            agent.lane_acquire, agent.lanes = part_of(warp, mask, ins), mask
            agent.state.flags.read(agent, ins, effect, at)
            agent.lane_acquire = None
            shared_access(warp, ins, at, max(4, nbytes), True, ALL_LANES, "atomic", text)
            agent.state.flags.write(agent, ins, effect, at, mask, joins=True)
            take_ticket(agent, ins, mask, at)
        elif where == "global":
            _beside_other_launches(warp, ins, mask, at, nbytes, True)
            agent = observer.agent(warp)
            if observer.stores is not None:
                observer.stores.lanes(warp.machine.memory, agent, at, nbytes)
            if sums:
                for region, _ in observer.globals.shadow.regions(at, nbytes):
                    reductions.reduced(observer.globals, agent, region.base, ins)
            changed = result is None or changes(warp, at, result, mask)
            rules = observer.globals
            agent.lane_acquire, agent.lanes = part_of(warp, mask, ins), mask
            if changed:
                rules.updated(agent, at, nbytes, ins, mask)
                take_ticket(agent, ins, mask, at)
            else:
                rules.strongly_loaded(agent, at, nbytes, ins)
            agent.lane_acquire = None

    def observed(warp: CheckedFragment, mask: int, address: LaneValues, *rest: Any):
        observer = warp.observer
        parts = parts_of(space, mask, address)
        for part in parts:
            if part.where == "global":
                observer.unwritten.writes(part.at, nbytes)
                observer.unwritten.lanes(observer.agent(warp), part.at, nbytes, ins)
        result = run(warp, mask, address, *rest)
        for part in parts:
            after(warp, part.mask, part.where, part.at, result)
        return result

    return observed


def _look_at_matrix(ins: Instr) -> Looking:
    return lambda warp, mask, args: Look((plain(args[0]),))


@rule(MatrixLoads, MatrixStores, look=_look_at_matrix)
def matrix_access(ins: Instr, effect: MatrixLoads | MatrixStores, run: Run) -> Run:
    """Observe ldmatrix and stmatrix: lanes 8 * i to 8 * i + 7 have the rows of matrix i."""
    write, rows, space = isinstance(effect, MatrixStores), effect.addresses, effect.space

    def observed(warp: CheckedFragment, mask: int, address: np.ndarray, *rest: Any):
        result = run(warp, mask, address, *rest)
        addresses = lane_addresses(0xFFFFFFFF, address)
        for part in parts_of(matrix_space(space, addresses), 0xFFFFFFFF, addresses[:rows]):
            if part.where == "shared":
                warp.observer.agent(warp).lanes = 0  # the warp makes it as one
                shared_access(warp, ins, part.at, effect.nbytes, write, ALL_LANES)
        return result

    return observed


@rule(Fills, look=all_operands)
def fill(ins: Instr, effect: Fills, run: Run) -> Run:
    """Observe st.bulk: one write of all ranges, so that those of several lanes may overlap."""

    def observed(
        warp: CheckedFragment, mask: int, address: LaneValues, size: LaneValues, *rest: Any
    ) -> None:
        run(warp, mask, address, size, *rest)
        found = [(lanes, at & SHARED_BITS, n) for lanes, at, n in ranges(mask, address, size)]
        if not found:
            return
        warp.observer.agent(warp).lanes = mask
        own = sum(lanes for lanes, *_ in found if lanes & lanes - 1 == 0)
        by = [shadow_lanes(lanes, True, True) for lanes, *_ in found]
        if len(found) == 1:
            _, first, nbytes = found[0]
            shared_access(warp, ins, np.array([first]), nbytes, True, by[0], own=own)
            return
        at = np.concatenate([np.arange(first, first + n, UNIT) for _, first, n in found])
        units = np.concatenate([np.repeat(b, n // UNIT) for b, (*_, n) in zip(by, found)])
        shared_access(warp, ins, at, UNIT, True, units, own=own)

    return observed
