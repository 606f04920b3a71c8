"""The asynchronous units: when an operation that a warp issues takes effect.

Each handler reserves the servers of its unit and schedules the effect; the warp goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from b200.chip import operations as ops
from b200.clock.accesses import Accesses, Spans
from b200.clock.sm import SM, TensorPipe, mma_interval, mma_latency
from b200.clock.stores import sectors_of
from b200.errors import Unsupported
from b200.registry import Clock

if TYPE_CHECKING:
    from b200.chip.copies.tensormap import TensorMap
    from b200.clock.timed import TimedFragment

ROW = 128  # bytes of a row that the fill takes at once: the widest swizzle span
SHIFTED = 128 * 32  # bytes that tcgen05.shift moves: 32 of each lane


At = Callable[[float, ops.Action], None]  # calls an action at a simulated time
Land = Callable[[float, float], None]  # takes the first and the last arrival


class Asked:
    """What the lanes of one execution of an instruction have asked for. SASS issues a prefetch, and
    a copy from shared to global memory, once for the lanes with equal operands: UTMAPF, UBLKPF,
    UTMASTG and UBLKCP.G.S stand in no loop. Loads and reductions do, over all lanes.
    """

    def __init__(self):
        self.of: tuple[TimedFragment | None, float] = (
            None,
            0.0,
        )  # the fragment, and its time, which no lane advances
        self.when: dict[
            tuple[object, ...], float
        ] = {}  # operands -> when what they ask for is done

    def before(self, warp: TimedFragment, operands: tuple[object, ...]) -> float | None:
        """When what a lane before has asked for with these operands is done; None if none has."""
        if self.of[0] is not warp or self.of[1] != warp.time:
            self.of, self.when = (warp, warp.time), {}
        return self.when.get(operands)


class Units:
    """Times the asynchronous operations of one launch. arithmetic: whether the tensor core's
    operations take effect.
    """

    def __init__(self, accesses: Accesses, at: At, arithmetic: bool):
        self.accesses, self.at, self.arithmetic = accesses, at, arithmetic
        self.memory, self.chip = accesses.memory, accesses.chip
        self.c, self.record = accesses.c, accesses.record
        self.asked = Asked()

    def issue(self, operation: ops.Operation, warp: TimedFragment, apply: ops.Action) -> None:
        """A warp issues an asynchronous operation; `apply` is called when its unit has done it."""
        rule = RULES.get(type(operation))
        if rule is None:
            raise Unsupported(f"the clock has no rule for the operation {type(operation).__name__}")
        rule(self, operation, warp, apply)

    # --- TMA and bulk copies ----------------------------------------------------------------------
    def _request(
        self,
        sm: SM,
        at: float,
        spans: Spans,
        latency: float,
        land: Land,
        fan_out: bool = False,
        outside: int = 0,
    ) -> None:
        """Read spans as the TMA does: copy after copy, tma_chunk bytes at a time, each when the
        ones before have been asked for, so that the SMs' requests mix, and when the window of the
        SM's CPC has room; what is a single piece does not wait for it. Calls land(first, last) when
        the first and the last arrival are known. outside: bytes beside the spans that lie outside
        of the tensor.
        """
        pieces: list[tuple[np.ndarray, int]] = []
        chunk = int(self.c.tma_chunk)
        for starts, nbytes in spans:
            if nbytes > chunk:
                cuts = [(starts + o, min(chunk, nbytes - o)) for o in range(0, nbytes, chunk)]
                pieces += [(one, size) for rows, size in cuts for one in np.split(rows, len(rows))]
            else:
                n = max(1, chunk // nbytes)
                pieces += [(starts[i : i + n], nbytes) for i in range(0, len(starts), n)]
        beyond = [min(chunk, outside - o) for o in range(0, outside, chunk)]
        width = sum(len(starts) * self._row_clk(nbytes) for starts, nbytes in spans)
        when = sm.tma.serve(at, width + self._row_clk(outside))
        if not beyond and (not pieces or (len(pieces) == 1 and when <= Clock.now)):
            land(*self.accesses.fetch(sm, when, pieces, latency, fan_out=fan_out, rows=True))
            return
        arrivals: list[tuple[float, float]] = []
        late = 0.0
        if pieces:
            at = int(pieces[0][0][0])
            late = self.chip.draw(self.memory.region(at), at)

        def arrived(first_and_last: tuple[float, float]) -> None:
            arrivals.append(first_and_last)
            if len(arrivals) == len(pieces) + len(beyond):
                land(min(a for a, _ in arrivals), max(b for _, b in arrivals))

        window = self.chip.windows[sm.cpc]

        def ask(piece: tuple[np.ndarray, int]) -> None:
            first, last = self.accesses.fetch(sm, Clock.now, [piece], latency, late, fan_out, True)
            window.flight.append((last, len(piece[0]) * piece[1]))
            arrived((first, last))

        def admit(piece: tuple[np.ndarray, int]) -> None:
            nbytes = len(piece[0]) * piece[1]
            begin = window.room(Clock.now, self.c.cpc_bytes - nbytes)
            window.amount += nbytes
            if begin > Clock.now:
                self.at(begin, lambda: ask(piece))
            else:
                ask(piece)

        def beyond_it(nbytes: int) -> None:
            arrived(self.chip.outside(Clock.now, sm, nbytes, latency))

        for piece in pieces:
            self.at(when, partial(admit, piece))
            when += len(piece[0]) * self._row_clk(piece[1])
        for nbytes in beyond:
            self.at(when, partial(beyond_it, nbytes))
            when += self._row_clk(nbytes)

    def _issue(self, warp: TimedFragment, clk: float, what: str) -> float:
        """When a warp's copy begins: `clk` after the one that it issued before."""
        begin = max(warp.time, warp.state.tma_free)
        warp.state.tma_free = begin + clk
        self.record.unit(warp.cta, "TMA", begin, begin + clk, what)
        return begin

    def _descriptor(self, sm: SM, t: TensorMap, at: float) -> float:
        """When the SM has a tensormap: the first use, or a prefetch before it, fetches it."""
        key = (t.address, t.box, t.dims)
        fetch = self.c.descriptor_fetch if self.chip.cold else 0.0
        return max(at, sm.descriptors.setdefault(key, at + fetch))

    def tensormap_prefetch(
        self, prefetch: ops.TensormapPrefetch, warp: TimedFragment, apply: ops.Action
    ) -> None:
        self._descriptor(warp.cta.sm, prefetch.tensormap, warp.time)

    def _row_clk(self, row_bytes: int) -> float:
        """clk that a row takes to be filled in."""
        c = self.c
        whole, rest = divmod(row_bytes, ROW)
        last = c.row_clk + (c.row128_clk - c.row_clk) * max(0, rest - 64) / 64 if rest else 0.0
        return whole * c.row128_clk + last

    def _land(
        self,
        warp: TimedFragment,
        apply: ops.Action,
        places: Sequence[ops.StorePlace],
        width: float,
        nbytes: int,
        what: str,
    ) -> Land:
        """land(first, last), for the arrivals of rows: the fill of each destination takes `width`
        clk from the first on, and waits for the last.
        """
        extra = self.c.multicast_extra if len(places) > 1 else 0.0

        def arrive(first: float, last: float) -> None:
            done = 0.0
            for place in places:
                sm = place.cta.sm
                begin = sm.fill.serve(first + extra, width)
                done = max(done, self.chip.into_gpc(sm.gpc, begin, width, nbytes), last + extra)
                self.record.unit(place.cta, "shared-memory fill", begin, begin + width, what)
            self.record.landed(warp, done, nbytes * len(places))
            self.at(done, apply)

        def land(first: float, last: float) -> None:
            self.at(max(Clock.now, first + extra), partial(arrive, first, last))

        return land

    def tma_load(self, load: ops.TmaLoad, warp: TimedFragment, apply: ops.Action) -> None:
        sm, c, access = warp.cta.sm, self.c, load.access
        begin = self._issue(warp, c.tma_issue, "load")
        self.record.loads(warp, begin, access.tensormap.address, load.places[0].mbarrier)
        at = self._descriptor(sm, access.tensormap, begin)
        nbytes = access.tx_bytes
        width = access.rows * self._row_clk(access.tensormap.row_bytes)
        land = self._land(warp, apply, load.places, width, nbytes, "tensor copy")
        spans = access.spans()
        outside = nbytes - sum(len(starts) * size for starts, size in spans)
        self._request(sm, at, spans, c.tma_l2, land, len(load.places) > 1, outside)

    def bulk_load(self, load: ops.BulkLoad, warp: TimedFragment, apply: ops.Action) -> None:
        sm, c, nbytes = warp.cta.sm, self.c, load.nbytes
        begin = self._issue(warp, c.bulk_issue, "bulk load")
        source = self.memory.region(load.source).base if nbytes else 0
        self.record.loads(warp, begin, source, load.places[0].mbarrier)
        spans = [(np.array([load.source], np.int64), nbytes)] if nbytes else []
        land = self._land(warp, apply, load.places, self._row_clk(nbytes), nbytes, "bulk copy")
        self._request(sm, begin, spans, c.tma_l2, land, len(load.places) > 1)

    def tma_prefetch(
        self, prefetch: ops.TmaPrefetch, warp: TimedFragment, apply: ops.Action
    ) -> None:
        sm, access = warp.cta.sm, prefetch.access
        operands = access.address, *map(tuple, access.boxes)
        if self.asked.before(warp, operands) is not None:
            return
        begin = self._issue(warp, self.c.tma_issue, "prefetch")
        self.asked.when[operands] = begin
        at = self._descriptor(sm, access.tensormap, begin)
        self._request(sm, at, access.spans(), self.c.tma_l2, lambda first, last: None)

    def bulk_prefetch(
        self, prefetch: ops.BulkPrefetch, warp: TimedFragment, apply: ops.Action
    ) -> None:
        operands = prefetch.source, prefetch.nbytes
        if self.asked.before(warp, operands) is not None:
            return
        begin = self._issue(warp, self.c.bulk_issue, "prefetch")
        self.asked.when[operands] = begin
        spans = [(np.array([prefetch.source], np.int64), prefetch.nbytes)]
        self._request(warp.cta.sm, begin, spans, self.c.tma_l2, lambda first, last: None)

    def _read_out(self, sm: SM, at: float, nbytes: int) -> float:
        """Shared memory has been read by a store of `nbytes`."""
        width = nbytes / self.c.bulk_read_bytes
        return sm.stores.serve(at, width) + width + self.c.bulk_read_smem

    def _store(
        self,
        warp: TimedFragment,
        apply: ops.Action,
        spans: Spans,
        nbytes: int,
        operands: tuple[object, ...] = (),
    ) -> None:
        """operands: of a copy that lanes which have them in common issue once."""
        sm = warp.cta.sm
        if operands and (read := self.asked.before(warp, operands)) is not None:
            self.at(read, apply)
            return
        begin = self._issue(warp, self.c.tma_store_issue, "store")
        read = self._read_out(sm, begin, nbytes)
        if operands:
            self.asked.when[operands] = read
        for starts, size in spans:
            region = self.memory.region(int(starts[0]))
            at = read + self.accesses.store_path()
            done = self.chip.write(at, sm.die, region, starts, size, *sectors_of(starts, size))
            self.accesses.stored(warp, len(starts) * size, done)
            self.record.unit(warp.cta, "stores", begin, done, f"{len(starts)} rows of {size} bytes")
        self.at(read, apply)

    def tma_store(self, store: ops.TmaStore, warp: TimedFragment, apply: ops.Action) -> None:
        access = store.access
        operands = access.address, store.offset, *map(tuple, access.boxes)
        self._store(warp, apply, access.spans(), access.tx_bytes, operands)

    def tma_reduce(self, reduction: ops.TmaReduce, warp: TimedFragment, apply: ops.Action) -> None:
        self._store(warp, apply, reduction.access.spans(), reduction.access.tx_bytes)

    def bulk_store(self, store: ops.BulkStore, warp: TimedFragment, apply: ops.Action) -> None:
        spans = [(np.array([store.destination], np.int64), store.nbytes)]
        operands = store.source, store.destination, store.nbytes
        self._store(warp, apply, spans, store.nbytes, operands)

    def bulk_reduce(
        self,
        reduction: ops.BulkReduce | ops.BulkReduceToPeer,
        warp: TimedFragment,
        apply: ops.Action,
    ) -> None:
        read = self._read_out(warp.cta.sm, warp.time, reduction.nbytes)
        self.at(read + self.accesses.store_path(), apply)

    def to_peer(
        self, copy: ops.BulkToPeer | ops.StAsync, warp: TimedFragment, apply: ops.Action
    ) -> None:
        """A copy into another CTA's shared memory: the SM that sends and the one that takes in can
        do so at the same rate.
        """
        width = copy.nbytes / self.c.dsmem_bytes
        sent = warp.cta.sm.dsmem.serve(warp.time, width)
        taken = copy.place.cta.sm.dsmem_in.serve(sent, width)
        self.at(taken + width + self.c.dsmem_way, apply)

    def try_cancel(self, cancel: ops.TryCancel, warp: TimedFragment, apply: ops.Action) -> None:
        self.at(warp.time + self.c.tma_l2, apply)

    def cp_async(self, copy: ops.CpAsync, warp: TimedFragment, apply: ops.Action) -> None:
        """cp.async of a warp: a load, as SASS has it (one LDGSTS), into shared memory."""
        if not copy.nbytes:
            self.behind_loads(copy, warp, apply)
            return
        before = warp.state.load_done
        self.accesses.access_global(warp, "ld", copy.sources, copy.nbytes, copy.cached)
        done, warp.state.load_done = warp.state.load_done, max(warp.state.load_done, before)
        self.at(done, apply)

    def behind_loads(
        self, operation: ops.CpAsync | ops.CpAsyncArrive, warp: TimedFragment, apply: ops.Action
    ) -> None:
        """When the warp's loads so far have come."""
        self.at(max(warp.state.load_done, warp.time), apply)

    # --- tensor core ------------------------------------------------------------------------------
    def mma(self, operation: ops.Mma, warp: TimedFragment, apply: ops.Action) -> None:
        c, mma, members = self.c, operation.mma, operation.members
        pipes = [cta.sm.pipe for cta in members]
        shape = mma.d.m, mma.d.n, len(members), mma.a_in_tmem
        width = mma_interval(c, *shape)
        start = max(warp.time, *(x for p in pipes for x in (p.free, p.copied, p.head)))
        own = c.mbarrier_wake + c.mma_issue / 2 + c.lat_loop
        done = start + max(width, mma_latency(c, *shape) - own)
        for pipe, cta in zip(pipes, members, strict=True):
            pipe.head, pipe.free, pipe.done = start, start + width, max(pipe.done, done)
            pipe.busy += width
            pipe.count += 1
            self.record.unit(cta, "tensor core", start, start + width, "mma")
        self.record.mma(warp, start, done)
        self._take_effect(pipes, done, apply)

    def _take_effect(self, pipes: list[TensorPipe], at: float, apply: ops.Action) -> None:
        """Not before what was issued before: a copy must not overwrite what an MMA still reads."""
        if self.arithmetic:
            at = max(at, *(pipe.effect for pipe in pipes))
            for pipe in pipes:
                pipe.effect = at
            self.at(at, apply)

    def move(
        self, operation: ops.TmemCopy | ops.TmemShift, warp: TimedFragment, apply: ops.Action
    ) -> None:
        """Bytes that come to tensor memory through the queue of the tensor core."""
        c, members, nbytes = self.c, operation.members, SHIFTED
        if isinstance(operation, ops.TmemCopy):
            nbytes = operation.shape.rows * operation.shape.nbytes
        pipes = [cta.sm.pipe for cta in members]
        width = c.cp_32x128b if nbytes <= 512 else nbytes / c.cp_bytes
        start = max(warp.time, *(x for p in pipes for x in (p.head, p.copied)))
        for pipe, cta in zip(pipes, members, strict=True):
            pipe.head, pipe.copied = start, start + width
            pipe.done = max(pipe.done, start + width + c.cp_latency)
            pipe.copy_busy += width
            self.record.unit(cta, "tcgen05.cp", start, start + width, "cp")
        self._take_effect(pipes, start + width, apply)

    def commit(self, commit: ops.Commit, warp: TimedFragment, apply: ops.Action) -> None:
        for cta in commit.members:
            self.record.committed(cta)
        self.at(max(warp.time, *(cta.sm.pipe.done for cta in commit.members)), apply)


# When each operation takes effect: rule(units, operation, warp, apply) reserves the units that it
# needs and schedules `apply`.
RULES: dict[type[ops.Operation], Callable[..., None]] = {
    ops.TmaLoad: Units.tma_load,
    ops.TmaStore: Units.tma_store,
    ops.TmaReduce: Units.tma_reduce,
    ops.TmaPrefetch: Units.tma_prefetch,
    ops.TensormapPrefetch: Units.tensormap_prefetch,
    ops.BulkLoad: Units.bulk_load,
    ops.BulkToPeer: Units.to_peer,
    ops.BulkReduceToPeer: Units.bulk_reduce,
    ops.BulkStore: Units.bulk_store,
    ops.BulkReduce: Units.bulk_reduce,
    ops.BulkPrefetch: Units.bulk_prefetch,
    ops.CpAsync: Units.cp_async,
    ops.CpAsyncArrive: Units.behind_loads,
    ops.StAsync: Units.to_peer,
    ops.RedAsync: Units.to_peer,
    ops.TryCancel: Units.try_cancel,
    ops.Mma: Units.mma,
    ops.TmemCopy: Units.move,
    ops.TmemShift: Units.move,
    ops.Commit: Units.commit,
}
