"""Run functions of synchronising instructions with the recorder around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from b200 import effects as e
from b200.checker.instrument import CheckedWriter
from b200.checker.memory.parts import of_first_lane
from b200.checker.steps import Call
from b200.checker.words import line
from b200.chip.memory.addressing import resolver, space_of
from b200.chip.state import CTA
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.sync.mbarrier_instructions import barrier_operand
from b200.explore import kinds
from b200.explore.addresses import filled
from b200.explore.control import deciding_reads, looks
from b200.explore.trace import Place
from b200.program.module import Instr
from b200.registry import FULL, QUIET, LaneValues, Run, active, lanes

if TYPE_CHECKING:
    from b200.explore.record import RecordedFragment
    from b200.program.analysis import Op


class RecordingWriter(CheckedWriter):
    """Translates a kernel with the recorder around what synchronises, inside the observer."""

    packs = False

    def write(self) -> None:
        self.waits, self.peeks = looks(self.out.structure)
        self.looks = frozenset(look for found in self.peeks.values() for look in found)
        self.out.deciding = self.deciding = frozenset(deciding_reads(self.out.structure))
        super().write()

    def _op(self, op: Op) -> None:
        if op.entry is not None and op.entry.style != "pure" and op.made is not None:
            op = replace(op, made=self._recorded(op.ins, op.made))
        super()._op(op)

    def _recorded(self, ins: Instr, run: Run) -> Run:
        """The run function of an instruction, with the recorder around it."""
        effect, record = ins.effect, None
        if isinstance(effect, e.WaitsForPhase):
            if id(ins) in self.looks:
                record = _look
            elif id(ins) in self.waits:
                looks = frozenset(self.peeks.get(id(ins), ()))
                return _wait(ins, effect, run, looks)
        elif self.deciding and writes(effect):
            record = _written if isinstance(effect, e.Access) else _written_ranges
        elif isinstance(effect, e.Access):
            record = _read if id(ins) in self.deciding else None
        else:
            record = RECORDED.get(type(effect))
        return run if record is None else partial(record, Call(ins, effect, run))


def writes(effect: e.Effect) -> bool:
    """Whether lanes write memory at once. Operations are noted where they are issued (words.py)."""
    answers = effect.properties
    return answers.lanes and not {"shared", "global"}.isdisjoint(answers.writes)


# --- memory ---------------------------------------------------------------------------------------


def _written(
    call: Call[e.Access], warp: RecordedFragment, mask: int, address: LaneValues, *rest: Any
) -> Any:
    """Note who writes which words (words.py)."""
    result = call.run(warp, mask, address, *rest)
    warp.recorder.words.written(warp, mask, address, call.ins, call.effect)
    return result


def _written_ranges(
    call: Call[e.Effect],
    warp: RecordedFragment,
    mask: int,
    address: LaneValues,
    size: LaneValues,
    *rest: Any,
) -> None:
    """Likewise of weak stores of as many bytes as an operand says."""
    call.run(warp, mask, address, size, *rest)
    for lanes_, at, store in filled(space_of(call.ins), mask, address, size):
        warp.recorder.words.written(warp, lanes_, at, call.ins, store)


def _read(
    call: Call[e.Access], warp: RecordedFragment, mask: int, address: LaneValues, *rest: Any
) -> Any:
    """Note the words of a read whose value decides over synchronisation."""
    warp.recorder.words.read(warp, mask, address, call.ins, call.effect)
    return call.run(warp, mask, address, *rest)


# --- mbarriers ------------------------------------------------------------------------------------


def _place(mbarrier: MBarrier) -> Place:
    return Place("mbarrier", mbarrier.cta.rank, mbarrier.offset)


def _init(
    call: Call[e.InitsMbarrier], warp: RecordedFragment, lane: int, address: int, count: int
) -> None:
    call.run(warp, lane, address, count)
    place, recorder = _place(call.find(warp, address)), warp.recorder
    if recorder.one_more(warp, kinds.INIT, place, call.ins) is None:
        recorder.step(warp, kinds.INIT, place, call.ins, count=count)


def _inval(
    call: Call[e.InvalidatesMbarrier], warp: RecordedFragment, lane: int, address: int
) -> None:
    place = _place(call.find(warp, address))
    call.run(warp, lane, address)
    warp.recorder.step(warp, kinds.INVAL, place, call.ins)


def _arrive(call: Call[e.Arrives], warp: RecordedFragment, lane: int, address: int, count: int = 1):
    place = _place(call.find(warp, address))
    result = call.run(warp, lane, address, count)
    recorder, effect = warp.recorder, call.effect
    arrivals, nbytes = (1, count) if effect.expects else (count, 0)
    have = recorder.one_more(warp, kinds.ARRIVE, place, call.ins)
    if have is not None and (have.count, have.tx) == (arrivals, nbytes):
        have.times += 1
    else:
        what = {"count": arrivals, "tx": nbytes, "drop": effect.drops}
        recorder.step(warp, kinds.ARRIVE, place, call.ins, **what)
    return result


def _bytes(
    call: Call[e.ExpectsBytes | e.CompletesBytes],
    warp: RecordedFragment,
    lane: int,
    address: int,
    nbytes: int,
) -> None:
    """Record expect_tx and complete_tx."""
    kind = kinds.EXPECT if isinstance(call.effect, e.ExpectsBytes) else kinds.COMPLETE
    place = _place(call.find(warp, address))
    call.run(warp, lane, address, nbytes)
    warp.recorder.step(warp, kind, place, call.ins, tx=nbytes)


def _copies_arrive(
    call: Call[e.ArrivesBehindCopies], warp: RecordedFragment, lane: int, address: int
) -> None:
    """Record cp.async.mbarrier.arrive. Its arrival itself is an asynchronous operation."""
    if not call.effect.counted:
        place = _place(call.find(warp, address))
        warp.recorder.step(warp, kinds.EXPECT_ARRIVAL, place, call.ins, count=1)
    call.run(warp, lane, address)


def _look(
    call: Call[e.WaitsForPhase],
    warp: RecordedFragment,
    mask: int,
    address: LaneValues,
    phase: LaneValues,
    *hint: Any,
) -> Any:
    """Record a look (test_wait or try_wait) that leaves out the wait after it if the phase is over.
    The kernel is told that the phase is not over, so that it executes the wait and the wait is
    recorded. The wait then passes if the look has found the phase over.
    """
    if isinstance(address, np.ndarray) or isinstance(phase, np.ndarray):
        text = f"{line(call.ins)}: lanes look at different phases before they wait"
        warp.recorder.trace(warp.cta).not_followed.append(text)
        return call.run(warp, mask, address, phase, *hint)
    over = call.run(warp, mask, address, phase, *hint)
    place = _place(call.find(warp, address))
    warp.recorder.looks_at(warp, place, phase >> call.effect.shift & 1, call.ins, bool(over))
    return 0


def _wait(ins: Instr, effect: e.WaitsForPhase, run: Run, looks: frozenset[int]):
    """Record a wait. looks: id() of those that leave the wait out if they find the phase over."""
    find, shift, token = barrier_operand(ins), effect.shift, effect.by_token

    def one(warp: RecordedFragment, mask: int, address: int, phase: int, *hint: Any):
        """All lanes wait for one phase."""
        recorder, parity = warp.recorder, phase >> shift & 1
        place = _place(find(warp, address))
        peek = recorder.look_before(warp, looks, place, parity) if looks else None
        if peek is not None and peek.over:
            warp.spin, done = warp.spin and QUIET, FULL
        else:
            done = run(warp, mask, address, phase, *hint)
        if done:
            of = ()
            if peek is not None:
                recorder.looks[warp.state].remove(peek)
                of = (peek.step.number,)
            recorder.step(warp, kinds.WAIT, place, ins, parity=parity, token=token, of=of)
        return done

    def recorded(
        warp: RecordedFragment, mask: int, address: LaneValues, phase: LaneValues, *hint: Any
    ):
        if not isinstance(address, np.ndarray) and not isinstance(phase, np.ndarray):
            return one(warp, mask, address, phase, *hint)
        done = run(warp, mask, address, phase, *hint)
        if not done:
            return done
        recorder = warp.recorder
        for peek in recorder.looks.get(warp.state, ()):
            if id(peek.ins) in looks and peek.lanes & mask & done:
                recorder.not_waited_for(warp.cta, peek)
        where, phases = lanes(address, np.uint64), lanes(phase, np.uint64)
        groups: dict[tuple[int, int], int] = {}
        for i in active(mask & done):
            key = int(where[i]), int(phases[i]) >> shift & 1
            groups[key] = groups.get(key, 0) | 1 << i
        for (at, parity), mine in groups.items():
            place = _place(find(warp, at))
            recorder.step(warp, kinds.WAIT, place, ins, mine, parity=parity, token=token)
        return done

    return recorded


# --- barriers of the CTA and of the cluster -------------------------------------------------------


def _named(call: Call[e.MeetsInCta], warp: RecordedFragment, mask: int, number: int, *rest: Any):
    """Record bar.sync, bar.red and bar.arrive."""
    recorder = warp.recorder
    place = Place("barrier", warp.cta.rank, of_first_lane(mask, number))
    threads = of_first_lane(mask, rest[0]) if rest and call.effect.counted else 0
    here = 32 if warp.mask == warp.state.live else warp.mask.bit_count()
    if warp.token is None:  # it arrives; noted first, since it may have to wait then
        met = recorder.step(warp, kinds.MEET, place, call.ins, count=here, threads=threads)
        recorder.met[warp, place] = [met.number]
    result = call.run(warp, mask, number, *rest)
    if call.effect.waits:
        mine = tuple(recorder.met.pop((warp, place)))
        recorder.step(warp, kinds.PASS, place, call.ins, of=mine)
    return result


def _cluster_arrive(call: Call[e.ArrivesInCluster], warp: RecordedFragment, mask: int) -> None:
    recorder = warp.recorder
    call.run(warp, mask)
    step = recorder.step(warp, kinds.MEET, Place("cluster"), call.ins, count=mask.bit_count())
    recorder.met.setdefault((warp.state, Place("cluster")), []).append(step.number)


def _cluster_wait(call: Call[e.WaitsInCluster], warp: RecordedFragment, mask: int) -> None:
    recorder = warp.recorder
    call.run(warp, mask)
    met = recorder.met.get((warp.state, Place("cluster")), [])
    recorder.step(warp, kinds.PASS, Place("cluster"), call.ins, of=tuple(met))
    if not warp.state.cluster_arrived:
        met.clear()


# --- tensor memory --------------------------------------------------------------------------------


def _pool(cta: CTA) -> Place:
    return Place("tmem", cta.rank & ~1)


def _alloc(
    call: Call[e.AllocatesTensor],
    warp: RecordedFragment,
    mask: int,
    address: LaneValues,
    columns: LaneValues,
) -> None:
    call.run(warp, mask, address, columns)
    recorder, rank, pair = warp.recorder, warp.cta.rank, call.effect.pair
    kind = kinds.ALLOC if not pair else kinds.JOIN_PAIR if rank & 1 else kinds.ALLOC_PAIR
    n = of_first_lane(mask, columns)
    step = recorder.step(warp, kind, _pool(warp.cta), call.ins, count=n, rank=rank)
    target, at = resolver(space_of(call.ins))(warp, of_first_lane(mask, address), 4, 4)
    first = int(target.smem.u32[at // 4])  # which the instruction has written there
    recorder.allocated[warp.cta, first] = step.number


def _dealloc(
    call: Call[e.FreesTensor], warp: RecordedFragment, mask: int, taddr: int, columns: int
) -> None:
    call.run(warp, mask, taddr, columns)
    recorder = warp.recorder
    of = recorder.allocated.pop((warp.cta, of_first_lane(mask, taddr)), None)
    n, of = of_first_lane(mask, columns), () if of is None else (of,)
    place, rank = _pool(warp.cta), warp.cta.rank
    recorder.step(warp, kinds.DEALLOC, place, call.ins, count=n, rank=rank, of=of)


def _relinquish(call: Call[e.EndsAllocation], warp: RecordedFragment, mask: int) -> None:
    call.run(warp, mask)
    place = _pool(warp.cta)
    warp.recorder.step(warp, kinds.RELINQUISH, place, call.ins, rank=warp.cta.rank)


# --- registers ------------------------------------------------------------------------------------


def _registers(
    call: Call[e.SetsRegisters], warp: RecordedFragment, mask: int, n: LaneValues
) -> None:
    """Record setmaxnreg when it is carried out."""
    entry, pool = warp.machine.budget.registers, warp.cta.registers
    had = pool.of(warp.index) if pool is not None else entry
    call.run(warp, mask, n)
    pool = warp.cta.registers
    have = pool.of(warp.index) if pool is not None and entry is not None else had
    if have is not None and had is not None and have != had:
        kind = kinds.TAKE if have > had else kinds.GIVE
        place, count = Place("registers", warp.cta.rank), 32 * abs(have - had)
        warp.recorder.step(warp, kind, place, call.ins, count=count)


# What synchronises by the signals of asynchronous operations: noted where they are issued
# (StepRecorder.issued). A wait has its own recorder, by what it is for (RecordingWriter).
AT_ISSUE = (e.Copies, e.Commits, e.RequestsWork)
WAITS = (e.WaitsForPhase,)
# Class of an effect -> what is called in place of the run function, with the Call in front
RECORDED: dict[type[e.Effect], Callable[..., Any]] = {
    e.InitsMbarrier: _init,
    e.InvalidatesMbarrier: _inval,
    e.Arrives: _arrive,
    e.ExpectsBytes: _bytes,
    e.CompletesBytes: _bytes,
    e.ArrivesBehindCopies: _copies_arrive,
    e.ArrivesInCluster: _cluster_arrive,
    e.WaitsInCluster: _cluster_wait,
    e.MeetsInCta: _named,
    e.AllocatesTensor: _alloc,
    e.FreesTensor: _dealloc,
    e.EndsAllocation: _relinquish,
    e.SetsRegisters: _registers,
}
