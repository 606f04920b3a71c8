"""Run functions with the observer around them: `wrap(ins, run)` gives a function of the same form.

The translator's checked writer puts these in place of the units' own; a launch without the checker
never meets them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from b200.checker import generic, named_barriers, pairs
from b200.checker.accesses import Record
from b200.checker.following import all_operands, every_operand, followed, look_of, plain
from b200.checker.generic import UNSEEN
from b200.checker.observer import Observer
from b200.checker.registers import first_reads
from b200.checker.scopes import CLUSTER, CTA, scope_of
from b200.checker.tensor_memory import halves_of
from b200.checker.vector_clocks import Agent
from b200.checker.without_rule import without_rule
from b200.chip.sync.barriers import barrier_of, gather
from b200.chip.sync.mbarrier import barrier_operand
from b200.chip.tensor.tmem import TmemAccess, split
from b200.errors import Fault
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.program.writer import Writer
from b200.registry import active, lanes


class CheckedWriter(Writer):
    """Translates with the observer around every instruction that has state."""

    def write(self):
        self.first_reads = first_reads(self.out.structure)
        self.out.without_rule = without_rule(self.out.structure, [words for words, _ in WRAPPERS])
        super().write()

    def _stays(self, op) -> bool:
        return id(op.ins) in self.first_reads or super()._stays(op)

    def _kind(self, op):
        return None if id(op.ins) in self.first_reads else super()._kind(op)

    def _op(self, op):
        if (loads := self.first_reads.get(id(op.ins))) is not None:
            self._line(f"w.machine.observer.registers_read(w, {self._constant(loads)})", op.ins)
        if op.entry is not None and op.entry.style != "pure" and op.made is not None:
            op = replace(op, made=wrap(op.ins, op.made, op.entry.style))
        super()._op(op)


def wrap(ins: Instr, run, style: str):
    """The run function of an instruction, observed. style: "lane" or "warp"."""
    for words, make in WRAPPERS:
        if ins.mods[: len(words)] == words:
            return _noted(ins, run, style) if make is None else _stepping(ins, run, make)
    return run


def _stepping(ins: Instr, run, make: Callable):
    """What a wrapper makes of an instruction, and what a cluster that follows executes in place of
    it (following.py).
    """
    observed = make(ins, run)
    look = look_of(make, ins)
    if look is None or observed is run:
        return observed

    def step(w, who, *args):
        trail = w.cta.cluster.trail
        if trail is not None:
            w.machine.observer.ins = ins
            if look is every_operand:
                trail.take(ins, w, who, tuple(map(plain, args)))
            else:
                trail.look(ins, w, who, look(w, who, args))
            if trail.follows:
                return run(w, who, *args)
        return observed(w, who, *args)

    return step


def can_be_followed(code: Translated) -> bool:
    """Whether each instruction of a kernel is one whose steps are known (following.py)."""
    ops = (op.ins for block in code.structure for op in block.ops if op.entry is not None)
    return all(map(_has_steps, ops))


def _has_steps(ins: Instr) -> bool:
    if ins.mods[0] in ("call", "clusterlaunchcontrol"):
        return False  # what the device has printed, or cancelled, stays so
    for words, make in WRAPPERS:
        if ins.mods[: len(words)] == words:
            unseen = ins.mods[0] in ("ld", "ldu", "st") and ins.has(*UNSEEN)
            return make is None or unseen or look_of(make, ins) is not None
    return True


def _noted(ins: Instr, run, style: str):
    """Asynchronous operations: what they do is seen in `issue`, which is told the instruction."""
    one = style == "lane"

    def observed(w, who, *args):
        observer = w.machine.observer
        observer.ins, observer.lane = ins, who if one else None
        return run(w, who, *args)

    return observed


@followed(all_operands)
def _warp_sync(ins: Instr, run):
    """bar.warp.sync: the lanes see what they wrote for each other."""

    def observed(w, mask, *args):
        w.machine.observer.agent(w).turn += 1
        return run(w, mask, *args)

    return observed


# --- mbarriers ----------------------------------------------------------------------------------


@followed(all_operands)
def _init(ins: Instr, run):
    find = barrier_operand(ins)

    def observed(w, lane, address, count):
        observer = w.machine.observer
        observer.ins = ins
        before = observer.barrier_at(w, address)
        run(w, lane, address, count)
        observer.initialised(w, find(w, address), before, lane)

    return observed


@followed(all_operands)
def _inval(ins: Instr, run):
    def observed(w, lane, address):
        observer = w.machine.observer
        observer.ins = ins
        barrier = observer.barrier_at(w, address)
        run(w, lane, address)
        if barrier is not None:
            observer.state(barrier.object.cta).barriers.pop(
                (barrier.object.cta.rank, barrier.object.offset), None
            )

    return observed


@followed(all_operands)
def _arrive(ins: Instr, run):
    find = barrier_operand(ins)
    expects = ins.has("expect_tx")
    arrives = ins.mods[1] != "expect_tx"
    what = (
        "expect_tx"
        if ins.mods[1] == "expect_tx"
        else "arrive and expect_tx"
        if expects
        else "arrive"
    )

    def observed(w, lane, address, count=1):
        observer = w.machine.observer
        observer.ins = ins
        mbarrier = find(w, address)
        phase = mbarrier.phase
        if arrives:
            observer.comes(w, mbarrier, lane)
        try:
            result = run(w, lane, address, count)
        except Fault:
            observer.refused(w, mbarrier)
            raise
        text = f"{what} of {count} bytes" if expects else f"{what}, count {count}"
        observer.arrived(w, mbarrier, phase, text, count if expects else 0)
        return result

    return observed


@followed(all_operands)
def _complete_tx(ins: Instr, run):
    find = barrier_operand(ins)

    def observed(w, lane, address, nbytes):
        observer = w.machine.observer
        observer.ins = ins
        mbarrier = find(w, address)
        phase = mbarrier.phase
        run(w, lane, address, nbytes)
        observer.arrived(w, mbarrier, phase, f"complete_tx of {nbytes} bytes")
        if (barrier := observer.barrier(mbarrier)) is not None:
            barrier.signalled += nbytes
            barrier.copies[id(ins)] = ins, nbytes

    return observed


@followed(all_operands)
def _wait(ins: Instr, run):
    find = barrier_operand(ins)
    shift = 0 if ins.has("parity") else 63
    relaxed = ins.has("relaxed")

    def observed(w, mask, address, phase, hint=None):
        observer = w.machine.observer
        observer.ins = ins
        done = run(w, mask, address, phase, hint)
        if done:
            if isinstance(address, np.ndarray) or isinstance(phase, np.ndarray):
                where, parity = lanes(address, np.uint64), lanes(phase, np.uint64)
                pairs = {(int(where[i]), int(parity[i]) >> shift & 1) for i in active(mask & done)}
            else:
                pairs = ((address, phase >> shift & 1),)
            for at, parity in pairs:
                observer.waited(w, find(w, at), parity, ins if relaxed else None)
        elif not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
            observer.looked(w, find(w, address), phase >> shift & 1)
        return done

    return observed


# --- barriers of the CTA and of the cluster -----------------------------------------------------


@followed(all_operands)
def _named(ins: Instr, run):
    """bar.sync, bar.red (which may be executed again when woken), bar.arrive."""
    waits = not ins.has("arrive")
    counted = not ins.has("red") or len(ins.operands) == 4

    def observed(w, mask, number, *rest):
        observer = w.machine.observer
        observer.ins = ins
        if waits:
            gather(w, mask, ins)
        first = w.token is None
        bar = barrier_of(
            w,
            number
            if isinstance(number, int)
            else int(lanes(number, number.dtype)[active(mask)[0]]),
        )
        if first:
            generation = bar.generation
            agent = observer.agent(w)
            key = ("cta", w.cta.rank, bar.number, generation)
            meeting = observer.meeting(w.cta, key)
            meeting.gather(agent.release())
            before = observer.state(w.cta).meetings.get((*key[:-1], generation - 1))
            threads = rest[0] if rest and counted else 0
            if not isinstance(threads, int):
                threads = int(lanes(threads, threads.dtype)[active(mask)[0]])
            named_barriers.arrived(observer, agent, ins, bar.number, threads, meeting, before)
        else:
            generation = w.token[1]
        result = run(w, mask, number, *rest)
        if waits:
            observer.agent(w).acquire_barrier(
                observer.meeting(w.cta, ("cta", w.cta.rank, bar.number, generation)).clock
            )
        return result

    return observed


@followed(all_operands)
def _cluster_arrive(ins: Instr, run):
    relaxed = ins.has("relaxed")

    def observed(w, mask):
        observer = w.machine.observer
        observer.ins = ins
        agent = observer.agent(w)
        meeting = observer.meeting(w.cta, ("cluster", w.cta.cluster.barrier.phase))
        if relaxed:
            clock = agent.release_relaxed(CLUSTER)
            observer.orders_only(agent, ins, w.cta, clock)
        else:
            clock = agent.release()
        meeting.gather(clock)
        run(w, mask)

    return observed


@followed(all_operands)
def _cluster_wait(ins: Instr, run):
    def observed(w, mask):
        observer = w.machine.observer
        observer.ins = ins
        run(w, mask)
        clock = observer.meeting(w.cta, ("cluster", w.state.cluster_phase)).clock
        observer.agent(w).acquire_barrier(clock)

    return observed


@followed(all_operands)
def _registers(ins: Instr, run):
    """setmaxnreg."""

    def observed(w, mask, n):
        run(w, mask, n)
        w.machine.observer.agent(w).registers = n, ins

    return observed


def _is_canceled(ins: Instr, run):
    def observed(w, lane, response):
        canceled = run(w, lane, response)
        if not canceled:
            observer = w.machine.observer
            observer.ins = ins
            observer.cancellations.failed(observer.agent(w), ins)
        return canceled

    return observed


# --- fences and groups --------------------------------------------------------------------------


@followed(all_operands)
def _grid_dependency(ins: Instr, run):
    """griddepcontrol.wait, .launch_dependents."""
    waits = ins.has("wait")

    def observed(w, mask):
        run(w, mask)
        observer = w.machine.observer
        observer.ins = ins
        if observer.dependence is not None:
            agent = observer.agent(w)
            (observer.dependence.waited if waits else observer.dependence.let_start)(agent)

    return observed


@followed(all_operands)
def _fence(ins: Instr, run):
    if ins.has("proxy"):
        kinds = [m for m in ins.mods if m.startswith("async")]
        if not kinds:
            return run
        if kinds[0] == "async::generic":
            acts = [Observer.fence_async, partial(Observer.fence_memory, ins=ins, scope=CLUSTER)]
        else:
            near, far = not ins.has("global"), not ins.has("shared::cta", "shared::cluster")
            acts = [Observer.fence_async] * near + [Observer.fence_async_global] * far
    elif ins.has("mbarrier_init"):
        acts = [Observer.fence_init]
    elif ins.has("sync_restrict::shared::cta", "sync_restrict::shared::cluster"):
        acts = [partial(Observer.fence_memory, ins=ins, scope=CLUSTER)]
    else:
        acts = [partial(Observer.fence_memory, ins=ins, scope=scope_of(ins, CTA))]

    def observed(w, mask, *operands):
        run(w, mask, *operands)
        observer = w.machine.observer
        for act in acts:
            act(observer, observer.agent(w))

    return observed


def _tensor_fence(act: Callable[[Agent], None]):
    @followed(all_operands)
    def make(ins: Instr, run):
        def observed(w, mask):
            run(w, mask)
            act(w.machine.observer.agent(w))

        return observed

    return make


def _stream_wait(name: str):
    """tcgen05.wait::ld, wait::st: the warp's own loads or stores of tensor memory are complete."""

    @followed(all_operands)
    def make(ins: Instr, run):
        def observed(w, mask):
            run(w, mask)
            agent = w.machine.observer.agent(w)
            stream = agent.stream(name)
            agent.learn(stream.component, stream.issued)

        return observed

    return make


def _commit_group(*names: str):
    @followed(all_operands)
    def make(ins: Instr, run):
        def observed(w, mask):
            run(w, mask)
            for name in names:
                w.machine.observer.agent(w).stream(name).commit()

        return observed

    return make


def _wait_group(*names: str):
    """names: of streams; with .read only the first, which is over when the source is read."""

    @followed(all_operands)
    def make(ins: Instr, run):
        everything = ins.has("wait_all")
        waited = names[:1] if ins.has("read") else names

        def observed(w, mask, n=0):
            run(w, mask, n) if not everything else run(w, mask)
            agent = w.machine.observer.agent(w)
            for name in waited:
                stream = agent.stream(name)
                if everything:
                    stream.commit()
                stream.waited = n, len(stream.marks), ins
                agent.learn(stream.component, stream.complete_but(n))

        return observed

    return make


# --- tensor memory ------------------------------------------------------------------------------


@followed(all_operands)
def _alloc(ins: Instr, run):
    pair = ins.has("cta_group::2")

    def observed(w, mask, address, columns):
        observer = w.machine.observer
        observer.ins = ins
        if pair:
            pairs.allocates(observer, observer.agent(w))
        run(w, mask, address, columns)
        columns = columns if isinstance(columns, int) else int(columns[0])
        observer.allocated(w, address, columns, pair)

    return observed


@followed(all_operands)
def _dealloc(ins: Instr, run):
    pair = ins.has("cta_group::2")

    def observed(w, mask, taddr, columns):
        observer = w.machine.observer
        observer.ins = ins
        run(w, mask, taddr, columns)
        first, n = (x if isinstance(x, int) else int(x[0]) for x in (taddr, columns))
        observer.freed(w, first, n, pair)

    return observed


def _place_of_tensor_access(ins: Instr):
    """All operands but the registers of a store."""
    everything = all_operands(ins)
    if ins.mods[1] == "ld":
        return everything
    return lambda w, mask, args: everything(w, mask, args[:-1])


@followed(_place_of_tensor_access)
def _tensor_access(ins: Instr, run):
    """tcgen05.ld and tcgen05.st."""
    is_load = ins.mods[1] == "ld"
    registers = ins.operands[0] if is_load else ins.operands[-1]
    packed = ins.has("pack::16b", "unpack::16b")
    access = TmemAccess(ins, registers, packed)
    height = 32 if access.shape == "32x32b" else 16
    kind, stream_name = ("load", "tmem_load") if is_load else ("store", "tmem_store")

    def observed(w, mask, taddr, *rest):
        observer = w.machine.observer
        observer.ins = ins
        result = run(w, mask, taddr, *rest)
        second = rest[0] if (is_load and rest) or len(rest) == 2 else 0
        row, column = split(taddr if isinstance(taddr, int) else int(taddr[0]))
        row = 32 * (w.index % 4) + row % 32
        width = access.width(second)
        agent = observer.agent(w)
        stream = agent.stream(stream_name)
        columns = slice(column, column + width)
        text = (
            f"{'reads' if is_load else 'writes'} tensor-memory columns [{column}, {column + width})"
        )
        record = Record(agent, ins, stream.component, stream.next(), kind, text)
        observer.state(w.cta).add(record)
        rules = observer.tensor(w.cta)
        if is_load:
            agent.roles.add("epilogue")
            agent.loads[id(ins)] = record
            rules.read(record, halves_of(row, height), columns, partly=True)
        else:
            rules.write(record, halves_of(row, height), columns)
        return result

    return observed


# Leading words -> wrapper(ins, run); None: `_noted`.
WRAPPERS: tuple[tuple[tuple[str, ...], Callable | None], ...] = (
    (("mbarrier", "init"), _init),
    (("mbarrier", "inval"), _inval),
    (("mbarrier", "arrive"), _arrive),
    (("mbarrier", "arrive_drop"), _arrive),
    (("mbarrier", "expect_tx"), _arrive),
    (("mbarrier", "complete_tx"), _complete_tx),
    (("mbarrier", "try_wait"), _wait),
    (("mbarrier", "test_wait"), _wait),
    (("barrier", "cluster", "arrive"), _cluster_arrive),
    (("barrier", "cluster", "wait"), _cluster_wait),
    (("bar", "warp"), _warp_sync),
    (("bar",), _named),
    (("barrier",), _named),
    (("setmaxnreg",), _registers),
    (("fence", "proxy", "tensormap::generic"), generic.tensormap_fence),
    (("fence",), _fence),
    (("membar",), _fence),
    (("griddepcontrol",), _grid_dependency),
    (("tcgen05", "fence::before_thread_sync"), _tensor_fence(Agent.fence_before)),
    (("tcgen05", "fence::after_thread_sync"), _tensor_fence(Agent.fence_after)),
    (("tcgen05", "wait::ld"), _stream_wait("tmem_load")),
    (("tcgen05", "wait::st"), _stream_wait("tmem_store")),
    (("cp", "async", "bulk", "commit_group"), _commit_group("bulk_read", "bulk_write")),
    (("cp", "async", "bulk", "wait_group"), _wait_group("bulk_read", "bulk_write")),
    (("cp", "async", "commit_group"), _commit_group("cp_async")),
    (("cp", "async", "wait_group"), _wait_group("cp_async")),
    (("cp", "async", "wait_all"), _wait_group("cp_async")),
    (("tcgen05", "alloc"), _alloc),
    (("tcgen05", "dealloc"), _dealloc),
    (("tcgen05", "ld"), _tensor_access),
    (("tcgen05", "st"), _tensor_access),
    (("tcgen05",), None),
    (("cp",), None),
    (("st", "async"), None),
    (("red", "async"), None),
    (("clusterlaunchcontrol", "query_cancel", "is_canceled"), _is_canceled),
    (("clusterlaunchcontrol",), None),
    (("tensormap", "cp_fenceproxy"), generic.tensormap_copy),
    (("tensormap", "replace"), generic.tensormap_replace),
    (("ldmatrix",), generic.matrix_access),
    (("stmatrix",), generic.matrix_access),
    (("ld",), generic.access),
    (("ldu",), generic.access),
    (("st",), generic.access),
    (("atom",), generic.atomic),
    (("red",), generic.atomic),
)
