"""Copies, stores, reductions and cancelled launches: what each reads and writes, and when it is
complete.

An operation is recorded when it is issued, with the clock that its warp has then. It is complete
for others through what it signals: TMA loads and bulk copies through a phase of an mbarrier, copies
out of shared memory through wait_group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from b200.checker.accesses import Record
from b200.checker.agent import Agent
from b200.checker.barriers.signals import Signals
from b200.checker.launches import lifetime
from b200.checker.memory import reductions, shared_unwritten
from b200.checker.memory.global_conflicts import COPY, REDUCTION
from b200.checker.memory.global_reads import GlobalRead
from b200.checker.memory.parts import lane_words
from b200.checker.memory.shadow import ALL_LANES, EVERY, GRANULE, SHUFFLED
from b200.checker.operations import repeats
from b200.checker.streams import NEVER, WarpStream
from b200.chip import operations as ops
from b200.chip.copies import tma_box
from b200.chip.copies.tensormap import SPANS
from b200.hardware import OFFSET_MASK

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.copies.tensormap import TensorMap
    from b200.chip.copies.tma import TensorBoxes

GROUP = 8  # rows after which a swizzle's pattern repeats


def _granules(offset: int, nbytes: int) -> tuple[slice, int, int]:
    """(index, first, last) of the granules that contiguous bytes of shared memory lie in."""
    low, high = offset // GRANULE, (offset + nbytes - 1) // GRANULE
    return slice(low, high + 1), low, high


def _box(access: TensorBoxes, at: int):
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


def _inside(t: TensorMap, start: list[int]) -> float:
    """The share of a box that lies inside the tensor, 0 to 1."""
    share = 1.0
    for at, size, dim in zip(start, t.box, t.dims):
        share *= max(0, min(at + size, dim) - max(at, 0)) / size
    return share


class CopyOperations:
    """The rules of one launch for operations other than the tensor core's."""

    def __init__(self, observer: Observer, signals: Signals):
        self.observer, self.signals = observer, signals

    def _landing(
        self,
        agent: Agent,
        apply: Callable,
        places: tuple,
        nbytes: int,
        kind: str,
        text: str,
        index_of: Callable | None = None,
        words: bool = False,
        updates: bool = False,
        box: TensorMap | None = None,
        source: str = "",
        inside: float = 0.0,
        reads: Callable[[GlobalRead], None] | None = None,
    ):
        """Record writes of `nbytes` into shared memory at `places`, each of which completes these
        on an mbarrier.

        index_of: (index, first, last) of what is written from an offset on; None: contiguous
        granules. words: it returns 4-byte words, not granules: stores of the generic proxy (PTX ISA
        9.7.9.12). updates: what is there counts, as in a reduction. box: the tensormap of a TMA
        load. source: name of the tensor that is loaded. inside: the share of the box that lies
        inside the tensor. reads: notes what is read of global memory.
        """
        observer, ins = self.observer, self.observer.ins
        records = []
        for place in places:
            cta = place.cta
            barrier = self.signals.known_barrier(agent, place.signal, place.mbarrier)
            component = barrier.component if barrier is not None else agent.component
            record = Record(agent, ins, component, NEVER, kind, text, barrier)
            record.box, record.source, record.inside = box, source, inside
            agent.state.add(record)
            at = place.offset
            index, low, high = _granules(at, nbytes) if index_of is None else index_of(at)
            rules = observer.shared(cta)
            if words:
                rules.generic_write(record, index, low, high, SHUFFLED)
            else:
                if updates:
                    shared_unwritten.reduced(rules, record, low, high)
                rules.async_write(record, index, low, high)
                if box is not None and at % (GROUP * SPANS[box.swizzle] or 1):
                    record.start = at
                    rules.out_of_phase[record.number] = record
            lifetime.reached(observer, record, cta)
            if barrier is not None:
                barrier.signalled += nbytes
                if ins is not None:
                    barrier.copies[id(ins)] = ins, nbytes
            records.append((record, barrier))
            if reads is not None and barrier is not None and ins is not None:
                read = GlobalRead(agent, ins)
                read.component, read.step = component, NEVER
                reads(read)
                records.append((read, barrier))
                reads = None  # a multicast reads once
        clock = agent.release(observer.lanes(), ins)
        barriers = list(dict.fromkeys(b for _, b in records if b is not None))
        text = f"brings {nbytes} bytes: {text}"
        return self.signals.signalling(apply, clock, barriers, records, text, agent)

    def _tma_load(self, agent: Agent, load: ops.TmaLoad, apply: ops.Action):
        agent.roles.add("load")
        observer, access = self.observer, load.access
        t = access.tensormap
        source = observer.operand(t.address)
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
            reads=lambda read: observer.globals.reads.add_boxes(read, access),
        )
        observer.globals.maps.used(agent, access.address, agent.state.records[-1])
        observer.coverage.loaded(agent, access, observer.executed)
        observer.globals.loaded_box(agent, access, observer.executed)
        return observed

    def _bulk_load(self, agent: Agent, load: ops.BulkLoad, apply: ops.Action):
        agent.roles.add("load")
        n, source = load.nbytes, self.observer.operand(load.source)
        self.observer.globals.loaded(agent, load.source, n, self.observer.executed)
        reads = self.observer.globals.reads
        return self._landing(
            agent,
            apply,
            load.places,
            n,
            "bulk",
            f"copies {n} bytes of {source} into shared memory",
            source=source,
            inside=1.0,
            reads=lambda read: reads.add_copy(read, np.array([load.source], np.int64), n),
        )

    def _bulk_to_peer(
        self, agent: Agent, copy: ops.BulkToPeer | ops.BulkReduceToPeer, apply: ops.Action
    ):
        observer, n, place = self.observer, copy.nbytes, copy.place
        reduces = isinstance(copy, ops.BulkReduceToPeer)
        kind, verb = ("bulk_reduce", "reduces") if reduces else ("bulk", "copies")
        text = f"{verb} {n} bytes to shared memory of another CTA"
        observed = self._landing(agent, apply, (place,), n, kind, text, updates=reduces)
        offset = copy.source & OFFSET_MASK
        barrier = self.signals.known_barrier(agent, place.signal, place.mbarrier)
        component = barrier.component if barrier is not None else agent.component
        text = f"reads {n} bytes of shared memory"
        reading = Record(agent, observer.ins, component, NEVER, "bulk", text, barrier)
        agent.state.add(reading)
        agent.state.outgoing[agent.cta.rank].append(reading)
        rules = observer.shared(agent.cta)
        rules.async_read(reading, *_granules(offset, n), rules.shadow.copied, lane=observer.lane)

        def read_and_land() -> None:
            if barrier is not None:
                reading.step = barrier.phases + 1
            observed()

        return read_and_land

    def _st_async(self, agent: Agent, store: ops.StAsync | ops.RedAsync, apply: ops.Action):
        """Neighbouring words are told apart; the lanes of one execution share a record."""
        reduces = isinstance(store, ops.RedAsync)
        kind, verb = ("red.async", "reduces") if reduces else ("st.async", "stores")
        index, low, high, _ = lane_words(store.offsets, store.each, ALL_LANES)
        n, text = store.nbytes, f"{verb} {store.nbytes} bytes in another CTA"
        where = index, low, high
        return self._landing(
            agent, apply, (store.place,), n, kind, text, lambda at: where, words=True
        )

    def _try_cancel(self, agent: Agent, cancel: ops.TryCancel, apply: ops.Action):
        observer = self.observer
        observer.cancellations.requested(agent, observer.executed, cancel)
        n, text = cancel.nbytes, "cancels a launch"
        return self._landing(agent, apply, cancel.places, n, "bulk", text)

    def _copy_out(self, agent: Agent, kind: str, text: str, where: tuple) -> Record:
        """Record a copy, in a bulk group, out of the CTA's shared memory."""
        agent.roles.add("store")
        observer = self.observer
        stream = agent.stream("bulk_read", observer.lane)
        agent.stream("bulk_write", observer.lane).next()
        record = Record(agent, observer.ins, stream.component, stream.next(), kind, text)
        agent.last_copy = record
        agent.state.add(record)
        rules = observer.shared(agent.cta)
        index, low, high = where
        rules.async_read(record, index, low, high, rules.shadow.copied, True, observer.lane)
        return record

    def _tma_store(
        self, agent: Agent, store: ops.TmaStore | ops.TmaReduce, apply: ops.Action
    ) -> None:
        observer, access, ins = self.observer, store.access, self.observer.executed
        reduces = isinstance(store, ops.TmaReduce)
        text = "reduces a box from shared memory"
        if not reduces:
            name = observer.operand(access.tensormap.address)
            text = f"stores a box of {name} from shared memory"
        copy = self._copy_out(agent, "tma_store", text, _box(access, store.offset))
        observer.globals.maps.used(agent, access.address, copy)
        observer.globals.stored_box(agent, access, ins, REDUCTION if reduces else COPY)
        if not reduces:
            repeats.rows_twice(observer, agent, store, ins)
        if observer.stores is not None:
            observer.stores.boxes(agent, access)

    def _bulk_store(
        self, agent: Agent, store: ops.BulkStore | ops.BulkReduce, apply: ops.Action
    ) -> None:
        observer, ins = self.observer, self.observer.executed
        to, n = store.destination, store.nbytes
        where = _granules(store.source & OFFSET_MASK, n)
        self._copy_out(agent, "bulk_store", "reads shared memory", where)
        if isinstance(store, ops.BulkReduce):
            reductions.reduced(observer.globals, agent, to, ins)
            observer.globals.stored(agent, to, n, ins, REDUCTION)
        else:
            observer.globals.bulk_stored(agent, store, ins)
        if observer.stores is not None:
            observer.stores.span(observer.machine.memory.region(to, n), agent, to, n)

    def _cp_async(self, agent: Agent, copy: ops.CpAsync, apply: ops.Action) -> None:
        observer, ins = self.observer, self.observer.executed
        if copy.nbytes:
            observer.globals.loaded_by_threads(agent, copy.sources, copy.nbytes, ins)
        stream = agent.stream("cp_async")
        what = ins.key, copy.nbytes, len(stream.marks), agent.now()
        # lanes that copy the same bytes to one place do no harm
        again = agent.copies.again(what, copy, copy.destinations.tobytes())
        places, lanes = copy.destinations[~again], copy.lanes[~again]
        if np.unique(places).size == places.size:
            each = [(places, lanes)] if places.size else []
        else:  # one after the other
            each = list(zip(places[:, None], lanes[:, None], strict=True))
        for at, by in each:
            self._copied_in(agent, copy, stream, at, by)
        if again.any():
            index, *_ = lane_words(copy.destinations[again] & OFFSET_MASK, copy.size, ALL_LANES)
            observer.shared(agent.cta).shadow.lane[index] = EVERY
        if copy.nbytes:
            read = GlobalRead(agent, ins)
            read.component, read.step = stream.component, stream.issued
            observer.globals.reads.add_copy(read, copy.sources, copy.nbytes)

    def _copied_in(
        self,
        agent: Agent,
        copy: ops.CpAsync,
        stream: WarpStream,
        places: np.ndarray,
        by: np.ndarray,
    ) -> None:
        """Copies to these shared addresses, none of them twice. by: the lane of each."""
        observer, ins = self.observer, self.observer.ins
        text = f"copies {copy.size} bytes into shared memory"
        record = Record(agent, ins, stream.component, stream.next(), "cp.async", text)
        agent.state.add(record)
        index, low, high, lanes = lane_words(places & OFFSET_MASK, copy.size, by)
        observer.shared(agent.cta).generic_write(record, index, low, high, lanes)

    def _cp_async_arrive(self, agent: Agent, arrive: ops.CpAsyncArrive, apply: ops.Action):
        stream = agent.stream("cp_async")
        clock = self.signals.behind(agent, stream)
        barrier = self.signals.known_barrier(agent, arrive.cta, arrive.offset, proxy=False)
        return self.signals.signalling(
            apply, clock, [barrier], (), "cp.async arrive", agent, arrives=True
        )


# Rule of each operation: rule(the rules, agent, operation, apply) returns the effect to be carried
# out in place of `apply`, None to leave it.
RULES: dict[type[ops.Operation], Callable[..., ops.Action | None]] = {
    ops.TmaLoad: CopyOperations._tma_load,
    ops.TmaStore: CopyOperations._tma_store,
    ops.TmaReduce: CopyOperations._tma_store,
    ops.BulkLoad: CopyOperations._bulk_load,
    ops.BulkToPeer: CopyOperations._bulk_to_peer,
    ops.BulkReduceToPeer: CopyOperations._bulk_to_peer,
    ops.BulkStore: CopyOperations._bulk_store,
    ops.BulkReduce: CopyOperations._bulk_store,
    ops.CpAsync: CopyOperations._cp_async,
    ops.CpAsyncArrive: CopyOperations._cp_async_arrive,
    ops.StAsync: CopyOperations._st_async,
    ops.RedAsync: CopyOperations._st_async,
    ops.TryCancel: CopyOperations._try_cancel,
}
