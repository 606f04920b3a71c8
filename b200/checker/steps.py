"""Steps: which operands make the step of an instruction or of an asynchronous operation.

A cluster runs unchecked while each of its steps is one that a checked cluster has taken. That is
sound because a step has all operands that a rule for clusters looks at (following.py: 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from b200 import effects as e
from b200.checker.streams import LatestCopies
from b200.chip import operations as ops
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.sync.mbarrier_instructions import barrier_operand
from b200.effects import Effect
from b200.program.module import Instr
from b200.registry import Factory, LaneValues, Run
from b200.spaces import WINDOW_MASK

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.following import Trail
    from b200.checker.observer import Observer
    from b200.chip.copies.tensormap import TensorMap
    from b200.chip.copies.tma import TensorBoxes


class GlobalTouch(NamedTuple):
    """Global memory that an instruction reads, writes or updates by an atomic: `nbytes` at one
    address, or at each of several (int64).
    """

    way: str
    addresses: LaneValues
    nbytes: int


READS, WRITES, UPDATES = "reads", "writes", "updates"
_WAYS = {e.Loads: READS, e.Stores: WRITES, e.Updates: UPDATES}


def way_of(effect: Effect) -> str:
    """What ld, st, atom or red does at its addresses."""
    return _WAYS[type(effect)]


class Look(NamedTuple):
    """A description of what an instruction is about to do.

    operands: the operands that are part of its step. touch: the global memory that it accesses.
    tell, note: calls to the rules that see all clusters, made once the cluster has ended;
    `note` finds nothing before the launch ends. differs: whether lanes store different values
    at one address.
    """

    operands: tuple
    touch: GlobalTouch | None = None
    tell: Callable[[], None] | None = None
    note: Callable[[], None] | None = None
    differs: Callable[[], bool] | None = None


Looking = Callable[..., Look]  # of (warp, mask or lane, arguments)


# Class of an effect -> wrapper(ins, effect, run), which `rule` puts here. None: the instruction
# issues an operation, which has rules of its own (operations/).
WRAPPERS: dict[type[Effect], Callable[..., Run] | None] = {
    **dict.fromkeys((e.Copies, e.ArrivesBehindCopies, e.RequestsWork, e.EndsAllocation)),
    **dict.fromkeys((e.Multiplies, e.CopiesToTensor, e.ShiftsRows, e.Commits)),
}


def rule(
    *kinds: type[Effect], look: Callable[[Instr], Looking | None] | None = None
) -> Callable[[Factory], Factory]:
    """Makes a function the wrapper of instructions with effects of some classes. look(ins): returns
    the function that describes an execution of the instruction, None for a form that is not
    followed; without it, none is.
    """

    def mark(make: Any) -> Any:
        make.look = look
        WRAPPERS.update(dict.fromkeys(kinds, make))
        return make

    return mark


E = TypeVar("E", bound=Effect, covariant=True)


@dataclass(frozen=True, eq=False)
class Call(Generic[E]):
    """An instruction that is observed, and its run function."""

    ins: Instr
    effect: E
    run: Run

    @cached_property
    def find(self) -> Callable[[Any, int], MBarrier]:
        """(warp, address) -> the mbarrier there, of an instruction that names one."""
        return barrier_operand(self.ins)


def observes(
    *kinds: type[Effect], look: Callable[[Instr], Looking | None] | None = None
) -> Callable:
    """As `rule`, of a function that is called in place of the run function: with the Call in front
    of the arguments of that.
    """

    def mark(observe: Callable) -> Any:
        def make(ins: Instr, effect: Effect, run: Run) -> Run:
            return partial(observe, Call(ins, effect, run))

        return rule(*kinds, look=look)(make)

    return mark


def look_of(make: Callable, ins: Instr) -> Looking | None:
    """What describes executions of an instruction with this wrapper; None: not followed."""
    look = getattr(make, "look", None)
    return look(ins) if look is not None else None


def plain(x: LaneValues) -> Any:
    """An operand in a form that can be compared and hashed."""
    if type(x) is int:
        return x
    if isinstance(x, np.ndarray):
        return x.tobytes()
    return tuple(map(plain, x)) if isinstance(x, tuple) else x


def every_operand(warp: CheckedFragment, who: int, args: tuple) -> Look:
    """The description of an instruction whose operands are all part of its step."""
    return Look(tuple(map(plain, args)))


def all_operands(ins: Instr) -> Looking:
    """The describing function of such an instruction, for `rule`."""
    return every_operand


def named(ins: Instr, run: Run) -> Run:
    """A run function, with the observer told which instruction is executed."""

    def told(warp: CheckedFragment, who: int, *args: Any):
        warp.observer.ins = ins
        return run(warp, who, *args)

    return told


# --- operations -----------------------------------------------------------------------------------


def _place(place: ops.StorePlace) -> tuple[int, int, int, int]:
    return place.cta.rank, place.offset, place.signal.rank, place.mbarrier


def _box(trail: Trail, warp: CheckedFragment, operation: ops.TmaLoad | ops.TmaStore) -> tuple:
    """The operands of a tensor copy that are part of its step: all but the address of the tensor,
    its size, and the coordinates. The tensor's name is part of the step, because findings have it.
    """
    access = operation.access
    if not access.address & ~WINDOW_MASK:
        trail.stop()  # the tensormap is in global memory: whoever edits it has to be known
    tensormap = access.tensormap
    boxes = zip(access.boxes, access.whole)
    inside = [None if whole else _inside(tensormap, box) for box, whole in boxes]
    address = tensormap.address
    name = trail.following.names.get(address)
    if name is None:
        name = trail.following.names[address] = trail.following.observer.operand(address)
    again = trail.again(warp, (access.address, access.boxes))
    return tensormap.form, name, tuple(inside), again


def _inside(tensormap: TensorMap, box: list[int]) -> tuple[tuple[int, int], ...]:
    """The part of a box that lies in its tensor: first and end of it in each dimension."""
    return tuple(
        (min(max(-at, 0), size), max(min(dim - at, size), 0))
        for at, size, dim in zip(box, tensormap.box, tensormap.dims)
    )


def _tma_load(trail: Trail, warp: CheckedFragment, load: ops.TmaLoad) -> Look:
    operands = _box(trail, warp, load), tuple(map(_place, load.places))
    observer, access = trail.following.observer, load.access
    agent, ins = observer.agent(warp), observer.executed
    return Look(
        operands,
        GlobalTouch(READS, access.tensormap.address, 1),
        note=lambda: _told_of_box(observer, agent, access, ins),
    )


def _told_of_box(observer: Observer, agent: Agent, access: TensorBoxes, ins: Instr) -> None:
    observer.coverage.loaded(agent, access, ins)
    observer.unwritten.box(agent, access, ins)


def _tma_store(trail: Trail, warp: CheckedFragment, store: ops.TmaStore) -> Look:
    observer, access = trail.following.observer, store.access
    agent, ins = observer.agent(warp), observer.executed
    return Look(
        (_box(trail, warp, store), store.offset, len(set(map(tuple, access.boxes)))),
        GlobalTouch(WRITES, access.tensormap.address, 1),
        lambda: observer.globals.stored_box(agent, access, ins),
    )


def _bulk_load(trail: Trail, warp: CheckedFragment, load: ops.BulkLoad) -> Look:
    observer, source, n = trail.following.observer, load.source, load.nbytes
    agent, ins = observer.agent(warp), observer.executed
    again = trail.again(warp, source)
    return Look(
        (n, tuple(map(_place, load.places)), observer.operand(source), again),
        GlobalTouch(READS, source, n),
        lambda: observer.globals.loaded(agent, source, n, ins),
        lambda: observer.unwritten.span(agent, source, n, ins),
    )


def _bulk_store(trail: Trail, warp: CheckedFragment, store: ops.BulkStore) -> Look:
    observer, destination, n = trail.following.observer, store.destination, store.nbytes
    agent, ins = observer.agent(warp), observer.executed
    return Look(
        (n, store.mask, store.source, trail.again(warp, destination)),
        GlobalTouch(WRITES, destination, n),
        lambda: observer.globals.bulk_stored(agent, store, ins),
    )


def _st_async(store: ops.StAsync) -> tuple:
    return store.nbytes, store.each, _place(store.place), store.offsets.tobytes()


def copy_operands(latest: LatestCopies, ins: Instr, copy: ops.CpAsync) -> tuple:
    """The operands of a cp.async that are part of its step. latest: those of the warp."""
    destinations = copy.destinations.tobytes()
    again = latest.again((ins.key, copy.nbytes), copy, destinations)
    return copy.nbytes, copy.size, destinations, again.tobytes()


def _cp_async(trail: Trail, warp: CheckedFragment, copy: ops.CpAsync) -> Look:
    """The rule compares the source with that of the warp's latest copy to the place."""
    observer, sources, n = trail.following.observer, copy.sources, copy.nbytes
    agent, ins = observer.agent(warp), observer.executed
    latest = trail.copied.setdefault((warp.cta.rank, warp.index), LatestCopies())
    operands = copy_operands(latest, ins, copy)
    if not n:
        return Look(operands)
    region = observer.machine.memory.region(int(sources[0]), n)
    known = observer.unwritten.is_known(region)
    return Look(
        operands,
        GlobalTouch(READS, sources, n),
        lambda: observer.globals.loaded_by_threads(agent, sources, n, ins),
        None if known else lambda: observer.unwritten.lanes(agent, sources, n, ins),
    )


def _tmem_copy(copy: ops.TmemCopy) -> tuple:
    return copy.shape, copy.matrix, copy.lanes, copy.column, len(copy.members)


def _commit(commit: ops.Commit) -> tuple:
    return tuple(cta.rank for cta in commit.targets), commit.offset, len(commit.members)


# Operations in global memory, and what describes them
OPERATIONS: dict[type[ops.Operation], Callable[..., Look]] = {
    ops.TmaLoad: _tma_load,
    ops.TmaStore: _tma_store,
    ops.BulkLoad: _bulk_load,
    ops.BulkStore: _bulk_store,
    ops.CpAsync: _cp_async,
}
# Operations in memory of the cluster, and the operands of their steps
OWN_OPERATIONS: dict[type[ops.Operation], Callable[..., tuple]] = {
    ops.BulkToPeer: lambda copy: (copy.nbytes, copy.source, _place(copy.place)),
    ops.StAsync: _st_async,
    ops.CpAsyncArrive: lambda arrive: (arrive.cta.rank, arrive.offset),
    ops.Mma: lambda mma: (mma.mma, len(mma.members)),
    ops.TmemCopy: _tmem_copy,
    ops.TmemShift: lambda shift: (shift.row, shift.column, len(shift.members)),
    ops.Commit: _commit,
}
UNRULED = (ops.TmaPrefetch, ops.BulkPrefetch, ops.TensormapPrefetch)  # no rule looks at them
