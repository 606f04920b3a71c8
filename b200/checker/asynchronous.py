"""Asynchronous operations: what each reads and writes, and when it is complete.

An operation is recorded when it is issued, with the clock that its warp has then. It is complete
for others through what it signals: TMA loads and bulk copies through a phase of an mbarrier,
tensor-core operations through a commit, copies out of shared memory through wait_group.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from b200.checker.accesses import Record
from b200.checker.core_operations import CoreOperations
from b200.checker.dependent_launch import DependentLaunch
from b200.checker.generic import SHUFFLE as ALL_LANES
from b200.checker.global_memory import REDUCTION
from b200.checker.lane_words import lane_words
from b200.checker.shadow import GRANULE, SHUFFLED
from b200.checker.vector_clocks import NEVER, Agent
from b200.chip.copies import tma_box
from b200.chip.copies.tensormap import SPANS
from b200.chip.fragment import Fragment
from b200.chip.operations import (
    BulkLoad,
    BulkPrefetch,
    BulkReduce,
    BulkReduceToPeer,
    BulkStore,
    BulkToPeer,
    Commit,
    CpAsync,
    CpAsyncArrive,
    Effect,
    Mma,
    Operation,
    RedAsync,
    StAsync,
    TensormapPrefetch,
    TmaLoad,
    TmaPrefetch,
    TmaReduce,
    TmaStore,
    TmemCopy,
    TmemShift,
    TryCancel,
)
from b200.errors import Unsupported
from b200.hardware import OFFSET_MASK

GROUP = 8  # rows after which a swizzle's pattern repeats


def _granules(offset: int, nbytes: int) -> tuple[slice, int, int]:
    """(index, first, last) of the granules that contiguous bytes of shared memory lie in."""
    low, high = offset // GRANULE, (offset + nbytes - 1) // GRANULE
    return slice(low, high + 1), low, high


def _box(access, at: int):
    """(index, first, last) of the granules that a TMA box at an offset of shared memory fills. A
    swizzle moves granules only inside 128-byte lines.
    """
    t = access.tensormap
    if t.swizzle and t.smem_row_bytes != t.pitch:
        phase = at % tma_box.PATTERN
        _, index = tma_box._chunks(
            access.rows, t.smem_row_bytes, t.pitch, t.swizzle, t.atomicity, phase
        )
        per = 2 if index.size * 8 == access.rows * t.smem_row_bytes else 1
        index = index // per + (at - phase) // GRANULE
        return index, int(index.min()), int(index.max())
    return _granules(at, access.smem_bytes)


def _inside(t, start) -> float:
    """The share of a box that lies inside the tensor, 0 to 1."""
    share = 1.0
    for at, size, dim in zip(start, t.box, t.dims):
        share *= max(0, min(at + size, dim) - max(at, 0)) / size
    return share


class Asynchronous(CoreOperations):
    """The part of the Observer that the machine's `issue` calls."""

    def issued(self, operation: Operation, warp: Fragment, apply: Effect) -> Effect:
        """Record an operation; returns the effect to be carried out in place of `apply`."""
        rule = RULES.get(type(operation))
        if rule is None:
            raise Unsupported(
                f"the checker has no rule for the operation {type(operation).__name__}"
            )
        self.repeats.issued(warp, operation)
        if rule is Asynchronous._prefetch:
            return apply
        self.wrote |= isinstance(operation, (BulkStore, BulkReduce, TmaStore, TmaReduce))
        assert self.ins is not None
        self.unwritten.issued(self.agent(warp), operation, self.ins)
        if self.dependence is not None:
            self._beside_other_launches(self.dependence, self.agent(warp), operation)
        return rule(self, self.agent(warp), operation, apply) or apply

    def _beside_other_launches(self, rule: DependentLaunch, agent: Agent, operation: Operation):
        """Check the global memory that an operation reads and writes against earlier launches that
        may still run.
        """
        ins = self.ins
        assert ins is not None
        if isinstance(operation, (BulkLoad, CpAsync)) and operation.nbytes:
            rule.span(agent, operation.source, operation.nbytes, False, ins)
        elif isinstance(operation, (BulkStore, BulkReduce)):
            rule.span(agent, operation.destination, operation.nbytes, True, ins)
        elif isinstance(operation, TmaLoad):
            rule.boxes(agent, operation.access, False, ins)
        elif isinstance(operation, (TmaStore, TmaReduce)):
            rule.boxes(agent, operation.access, True, ins)

    def _landing(
        self,
        agent: Agent,
        apply,
        places,
        nbytes: int,
        kind: str,
        text: str,
        index_of,
        words=False,
        box=None,
        source: str = "",
        inside: float = 0.0,
    ):
        """Record writes into shared memory at `places`. Each write completes `nbytes` on
        an mbarrier.

        words: index_of returns 4-byte words, not granules: stores of the generic proxy (PTX ISA
        9.7.9.12). box: the tensormap of a TMA load. source: name of the tensor that is loaded.
        inside: the share of the box that lies inside the tensor.
        """
        clock, records = None, []
        for place in places:
            cta = place.cta
            barrier = self._known_barrier(agent, place.signal, place.mbarrier)
            component = barrier.component if barrier is not None else agent.component
            record = Record(agent, self.ins, component, NEVER, kind, text, barrier)
            record.box, record.source, record.inside = box, source, inside
            self.state(cta).add(record)
            index, low, high = index_of(place.offset)
            if words:
                self.shared(cta).generic_write(record, index, low, high, SHUFFLED)
            else:
                self.shared(cta).async_write(record, index, low, high)
                if box is not None and place.offset % (GROUP * SPANS[box.swizzle] or 1):
                    record.start = place.offset
                    self.shared(cta).out_of_phase[record.number] = record
            self.reach(record, cta)
            if barrier is not None:
                barrier.signalled += nbytes
                barrier.copies[id(self.ins)] = self.ins, nbytes
            records.append((record, barrier))
        clock = agent.release(self.lanes(), self.ins)
        barriers = list(dict.fromkeys(b for _, b in records if b is not None))
        text = f"brings {nbytes} bytes: {text}"
        return self._signalling(apply, clock, barriers, records, text, agent)

    def _tma_load(self, agent: Agent, load: TmaLoad, apply: Effect):
        agent.roles.add("load")
        access = load.access
        t = access.tensormap
        source = self.operand(t.address)
        text = f"loads a box of {'x'.join(map(str, t.box))} elements of {source} into shared memory"
        observed = self._landing(
            agent,
            apply,
            load.places,
            access.tx_bytes,
            "tma",
            text,
            lambda at: _box(access, at),
            box=t,
            source=source,
            inside=_inside(t, access.boxes[0]) if len(access.boxes) == 1 else 0.0,
        )
        self.globals.maps.used(agent, access.address, self.state(agent.cta).records[-1])
        self.coverage.loaded(agent, access, self.ins)
        self.globals.loaded_box(agent, access, self.ins)
        return observed

    def _bulk_load(self, agent: Agent, load: BulkLoad, apply: Effect):
        agent.roles.add("load")
        n, source = load.nbytes, self.operand(load.source)
        self.globals.loaded(agent, load.source, n, self.ins)
        return self._landing(
            agent,
            apply,
            load.places,
            n,
            "bulk",
            f"copies {n} bytes of {source} into shared memory",
            lambda at: _granules(at, n),
            source=source,
            inside=1.0,
        )

    def _bulk_to_peer(self, agent: Agent, copy: BulkToPeer | BulkReduceToPeer, apply: Effect):
        n, place = copy.nbytes, copy.place
        text = f"copies {n} bytes to shared memory of another CTA"
        observed = self._landing(
            agent, apply, (place,), n, "bulk", text, lambda at: _granules(at, n)
        )
        offset = copy.source & OFFSET_MASK
        barrier = self._known_barrier(agent, place.signal, place.mbarrier)
        component = barrier.component if barrier is not None else agent.component
        reading = Record(
            agent, self.ins, component, NEVER, "bulk", f"reads {n} bytes of shared memory", barrier
        )
        self.state(agent.cta).add(reading)
        self.state(agent.cta).outgoing[agent.cta.rank].append(reading)
        rules = self.shared(agent.cta)
        rules.async_read(reading, *_granules(offset, n), rules.shadow.copied, lane=self.lane)

        def read_and_land():
            if barrier is not None:
                reading.step = barrier.phases + 1
            observed()

        return read_and_land

    def _st_async(self, agent: Agent, store: StAsync, apply: Effect):
        return self._stored(agent, store, apply, "st.async", "stores")

    def _red_async(self, agent: Agent, reduction: RedAsync, apply: Effect):
        return self._stored(agent, reduction, apply, "red.async", "reduces")

    def _stored(self, agent: Agent, store: StAsync | RedAsync, apply: Effect, kind: str, verb: str):
        """Record st.async or red.async. Neighbouring words are told apart; the lanes of one
        execution share a record.
        """
        n, place = store.nbytes, store.place
        index, low, high, _ = lane_words(store.offsets, store.each, ALL_LANES)
        text = f"{verb} {n} bytes in another CTA"
        return self._landing(
            agent, apply, (place,), n, kind, text, lambda at: (index, low, high), words=True
        )

    def _try_cancel(self, agent: Agent, cancel: TryCancel, apply: Effect):
        assert self.ins is not None
        self.cancellations.requested(agent, self.ins, cancel)
        return self._landing(
            agent,
            apply,
            cancel.places,
            cancel.nbytes,
            "bulk",
            "cancels a launch",
            lambda at: _granules(at, cancel.nbytes),
        )

    def _copy_out(self, agent: Agent, kind: str, text: str, where) -> Record:
        """Record a copy, in a bulk group, out of the CTA's shared memory."""
        agent.roles.add("store")
        stream = agent.stream("bulk_read")
        agent.stream("bulk_write").next()
        record = Record(agent, self.ins, stream.component, stream.next(), kind, text)
        agent.last_copy = record
        self.state(agent.cta).add(record)
        rules = self.shared(agent.cta)
        index, low, high = where
        rules.async_read(record, index, low, high, rules.shadow.copied, True, self.lane)
        return record

    def _tma_store(self, agent: Agent, store: TmaStore, apply: Effect):
        access = store.access
        where = _box(access, store.offset)
        text = f"stores a box of {self.operand(access.tensormap.address)} from shared memory"
        copy = self._copy_out(agent, "tma_store", text, where)
        self.globals.maps.used(agent, access.address, copy)
        self.globals.stored_box(agent, access, self.ins)
        if self.stores is not None:
            self.stores.boxes(agent, access)

    def _tma_reduce(self, agent: Agent, reduction: TmaReduce, apply: Effect):
        where = _box(reduction.access, reduction.offset)
        if self.stores is not None:
            self.stores.boxes(agent, reduction.access)
        copy = self._copy_out(agent, "tma_store", "reduces a box from shared memory", where)
        self.globals.maps.used(agent, reduction.access.address, copy)
        self.globals.stored_box(agent, reduction.access, self.ins, REDUCTION)

    def _bulk_store(self, agent: Agent, store: BulkStore, apply: Effect):
        where = _granules(store.source & OFFSET_MASK, store.nbytes)
        self._copy_out(agent, "bulk_store", "reads shared memory", where)
        self.globals.stored(agent, store.destination, store.nbytes, self.ins)
        self._copied_out(agent, store)

    def _bulk_reduce(self, agent: Agent, reduction: BulkReduce, apply: Effect):
        where = _granules(reduction.source & OFFSET_MASK, reduction.nbytes)
        self._copy_out(agent, "bulk_store", "reads shared memory", where)
        self.globals.reduced(agent, reduction.destination, reduction.nbytes, self.ins)
        self.globals.stored(agent, reduction.destination, reduction.nbytes, self.ins, REDUCTION)
        self._copied_out(agent, reduction)

    def _copied_out(self, agent: Agent, copy: BulkStore | BulkReduce):
        if self.stores is not None:
            region = self.machine.memory.region(copy.destination, copy.nbytes)
            self.stores.span(region, agent, copy.destination, copy.nbytes)

    def _prefetch(self, agent: Agent, operation: Operation, apply: Effect):
        """Check nothing: a prefetch changes no memory and promises nothing."""
        return None

    def _cp_async(self, agent: Agent, copy: CpAsync, apply: Effect):
        if copy.nbytes:
            self.globals.loaded(agent, copy.source, copy.nbytes, self.ins)
        stream = agent.stream("cp_async")
        what = self.ins, copy.source, copy.nbytes, len(stream.marks), agent.now()
        if agent.copies.get(copy.destination) == what:
            return  # lanes that copy the same bytes to one place do no harm
        agent.copies[copy.destination] = what
        text = f"copies {copy.size} bytes into shared memory"
        record = Record(
            agent,
            self.ins,
            stream.component,
            stream.next(),
            "cp.async",
            text,
            narrow=copy.size < 4,
        )
        self.state(agent.cta).add(record)
        offset = copy.destination & OFFSET_MASK
        low, high = offset // 4, (offset + copy.size - 1) // 4
        self.shared(agent.cta).generic_write(record, np.arange(low, high + 1), low, high, SHUFFLED)

    def _cp_async_arrive(self, agent: Agent, arrive: CpAsyncArrive, apply: Effect):
        stream = agent.stream("cp_async")
        clock = self._with(agent, stream.component, stream.issued, self.lanes(), self.ins)
        barrier = self._known_barrier(agent, arrive.cta, arrive.offset)
        return self._signalling(apply, clock, [barrier], (), "cp.async arrive", agent)


# What is recorded of each operation: rule(observer, agent, operation, apply) returns the effect to
# be carried out in place of `apply`, None to leave it.
RULES: dict[type[Operation], Callable[..., Effect | None]] = {
    TmaLoad: Asynchronous._tma_load,
    TmaStore: Asynchronous._tma_store,
    TmaReduce: Asynchronous._tma_reduce,
    TmaPrefetch: Asynchronous._prefetch,
    TensormapPrefetch: Asynchronous._prefetch,
    BulkLoad: Asynchronous._bulk_load,
    BulkToPeer: Asynchronous._bulk_to_peer,
    BulkReduceToPeer: Asynchronous._bulk_to_peer,
    BulkStore: Asynchronous._bulk_store,
    BulkReduce: Asynchronous._bulk_reduce,
    BulkPrefetch: Asynchronous._prefetch,
    CpAsync: Asynchronous._cp_async,
    CpAsyncArrive: Asynchronous._cp_async_arrive,
    StAsync: Asynchronous._st_async,
    RedAsync: Asynchronous._red_async,
    TryCancel: Asynchronous._try_cancel,
    Mma: Asynchronous._mma,
    TmemCopy: Asynchronous._tmem_copy,
    TmemShift: Asynchronous._tmem_shift,
    Commit: Asynchronous._commit,
}
