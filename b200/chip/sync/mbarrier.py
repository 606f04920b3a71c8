"""The mbarrier object and its instructions (PTX ISA 9.7.13.15).

An mbarrier lives at an 8-byte aligned offset of a CTA's shared memory. Its state is kept in a
Python object and not in the bytes there, so only mbarrier instructions and the units that signal
completion see it. (On the chip a plain load of an mbarrier reads nothing useful, either.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.memory.addressing import Signaller, issuer, resolver, space_of
from b200.chip.memory.loads_stores import memory_scope, order_of
from b200.chip.state import CTA
from b200.effects import (
    Arrives,
    CompletesBytes,
    ExpectsBytes,
    InitsMbarrier,
    InvalidatesMbarrier,
    ReadsMbarrierState,
    WaitsForPhase,
)
from b200.errors import Fault, Unsupported
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.barrier_names import barrier_name
from b200.program.module import SINK, Instr
from b200.registry import FULL, QUIET, Blocked, Pure, Run, Waitable, active, lane, lanes, pure, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

MAX_COUNT = (1 << 20) - 1  # of arrivals, and of |tx-count|
HISTORY = 8  # signals remembered for a deadlock report
# How often in a row a wait may fail before its warp is parked. test_wait never blocks in hardware:
# a warp that polls it this often without doing anything else is taken to be spinning.
PATIENCE = {"try_wait": 1, "test_wait": 256}


class MBarrier(Waitable):
    """The state of an mbarrier: phase parity, expected and pending arrivals, bytes (tx-count).

    init_by, arrivals: who initialised it, and who arrived or completed bytes last, for reports.
    """

    __slots__ = ("cta", "offset", "phase", "expected", "pending", "tx", "init_by", "arrivals")

    def __init__(self, cta: CTA, offset: int, count: int, init_by: Signaller | None = None):
        super().__init__()
        if not 1 <= count <= MAX_COUNT:
            raise Fault(
                f"mbarrier.init at offset {offset:#x} with count {count}: must be 1..{MAX_COUNT}"
            )
        self.cta, self.offset = cta, offset
        self.phase, self.expected, self.pending, self.tx = 0, count, count, 0
        self.init_by = init_by
        self.arrivals: deque[Signaller | None] = deque(maxlen=HISTORY)

    def __str__(self):
        name = f" {self.name}" if self.name else ""
        where = f"shared-memory offset {self.offset:#x} of CTA rank {self.cta.rank}"
        return f"mbarrier{name} at {where}"

    @property
    def name(self) -> str:
        """The name in the source, "empty[0]"; "" where it has none (program/barrier_names.py)."""
        name = self._source_name()
        if not name:
            return ""
        alike = {at for at, b in self.cta.mbarriers.items() if b._source_name() == name}
        alike.add(self.offset)
        return f"{name}[{sorted(alike).index(self.offset)}]" if len(alike) > 1 else name

    def _source_name(self) -> str:
        return barrier_name(self.init_by.ins.loc) if self.init_by else ""

    def place(self) -> str:
        """ "mbarrier empty[0] (2 of 5 in a row, offset 0x410)": its name, its row, its offset."""
        index, length = self.row()
        row = f"{index} of {length} in a row" if length > 1 else ""
        if self.name:
            return f"mbarrier {self.name} ({f'{row}, ' if row else ''}offset {self.offset:#x})"
        return f"{f'mbarrier {row}' if row else 'mbarrier'} (offset {self.offset:#x})"

    @property
    def idle(self) -> bool:
        """Whether nothing has happened in the current phase."""
        return self.pending == self.expected and self.tx == 0

    def token(self) -> int:
        """The opaque 64-bit state as on H200: phase parity in bit 63, -pending in bits 43-62."""
        return self.phase << 63 | (-self.pending & MAX_COUNT) << 43

    def arrive(
        self, count: int = 1, who: Signaller | None = None, tx: int = 0, complete: bool = True
    ) -> int:
        """arrive, .expect_tx with `tx`, .noComplete unless `complete`; returns the state before."""
        state = self.token()
        if not 1 <= count <= MAX_COUNT:
            raise Fault(f"arrive with count {count} on the {self}: must be 1..{MAX_COUNT}")
        if count > self.pending:
            raise Fault(
                f"arrive with count {count} on the {self}, which waits for only {self.pending} "
                f"more arrival(s) in this phase (expected {self.expected}, tx-count {self.tx}): "
                "there are more arrivals than its count"
            )
        if tx:
            self._add_tx(tx)
        self.touch()
        self.pending -= count
        self.arrivals.append(who)
        if self.pending == 0 and self.tx == 0:
            if not complete:
                raise Fault(
                    f"arrive.noComplete with count {count} completes the phase of the {self}"
                )
            self._complete()
        return state

    def arrive_drop(
        self, count: int = 1, who: Signaller | None = None, tx: int = 0, complete: bool = True
    ) -> int:
        """Arrive, and expect `count` fewer arrivals in the following phases."""
        if count > self.expected:
            raise Fault(
                f"arrive_drop with count {count} on the {self}, which expects only "
                f"{self.expected} arrival(s)"
            )
        before, self.expected = self.expected, self.expected - count
        try:
            return self.arrive(count, who, tx, complete)
        except Fault:
            self.expected = before
            raise

    def expect_tx(self, nbytes: int) -> None:
        self._add_tx(nbytes)
        self._check()

    def complete_tx(self, nbytes: int, who: Signaller | None = None) -> None:
        self.touch()
        self._add_tx(-nbytes)
        if who is not None:
            self.arrivals.append(who)
        self._check()

    def expect_arrival(self) -> None:
        """One arrival more in this phase only (cp.async.mbarrier.arrive without .noinc)."""
        if self.pending == MAX_COUNT:
            raise Fault(
                f"cp.async.mbarrier.arrive: the pending count of the {self} would exceed "
                f"{MAX_COUNT}"
            )
        self.pending += 1

    def _add_tx(self, nbytes: int):
        tx = self.tx + nbytes
        if not -MAX_COUNT <= tx <= MAX_COUNT:
            raise Fault(
                f"the tx-count of the {self} would become {tx}: "
                f"its range is -{MAX_COUNT}..{MAX_COUNT}"
            )
        self.tx = tx

    def _check(self):
        if self.pending == 0 and self.tx == 0:
            self._complete()

    def _complete(self):
        self.phase ^= 1
        self.pending = self.expected
        self.notify()

    def row(self) -> tuple[int, int]:
        """(index, length) of this barrier among those next to each other in shared memory."""
        have = self.cta.mbarriers
        first = last = self.offset
        while first - 8 in have:
            first -= 8
        while last + 8 in have:
            last += 8
        return (self.offset - first) // 8, (last - first) // 8 + 1

    def describe(self) -> str:
        """State and history in one line, for a deadlock report."""
        index, length = self.row()
        text = f"{self}"
        if length > 1:
            text += f" (number {index} of {length} in a row)"
        text += f": its phase of parity {self.phase} is not over"
        text += f", {self.pending} of {self.expected} arrival(s) missing"
        if self.tx > 0:
            text += f", {self.tx} byte(s) missing"
        elif self.tx < 0:
            text += f", {-self.tx} byte(s) more completed than expected"
        if self.init_by:
            text += f"; initialised by {self.init_by}"
        if not any(self.arrivals):
            return f"{text}; nobody has arrived yet"
        count = Counter(str(a) for a in self.arrivals if a)
        last = (f"{who}{f' ({n} times)' if n > 1 else ''}" for who, n in count.items())
        return f"{text}; last signals: {', '.join(last)}"


class AnyOf(Waitable):
    """Wakes its waiter when the first of several waitables does: for lanes that wait on different
    barriers.
    """

    __slots__ = ("parts",)

    def __init__(self, parts):
        super().__init__()
        self.parts = list(parts)
        for part in self.parts:
            part.waiters.append(self)

    def wake(self) -> None:
        for part in self.parts:
            if self in part.waiters:
                part.waiters.remove(self)
        self.notify()

    def describe(self) -> str:
        return "any of: " + "; ".join(part.describe() for part in self.parts)


def mbarrier_at(cta: CTA, offset: int) -> MBarrier:
    """The mbarrier at an offset of a CTA's shared memory. Raises Fault if there is none."""
    found = cta.mbarriers.get(offset)
    if found is None:
        cta.check(offset, 8, 8)
        have = ", ".join(f"{at:#x}" for at in sorted(cta.mbarriers)[:24]) or "none"
        raise Fault(
            f"no mbarrier is initialised at shared-memory offset {offset:#x} of "
            f"CTA rank {cta.rank}; initialised: {have}"
        )
    return found


def arrive_at(cta: CTA, offset: int, count: int = 1, who: Signaller | None = None) -> None:
    """Arrive on the mbarrier at an offset (tcgen05.commit, remote units)."""
    mbarrier_at(cta, offset).arrive(count, who)


def complete_tx_at(cta: CTA, offset: int, nbytes: int, who: Signaller | None = None) -> None:
    """complete_tx on the mbarrier at an offset, for bytes of an asynchronous copy that landed."""
    mbarrier_at(cta, offset).complete_tx(nbytes, who)


def barrier_operand(ins: Instr, space: str | None = None) -> Callable[[Any, int], MBarrier]:
    """find(warp, address) -> MBarrier for the mbarrier operand of an instruction."""
    space = space or space_of(ins)
    locate = resolver(space)

    def find(warp: Fragment, address: int) -> MBarrier:
        return mbarrier_at(*locate(warp, address, 8, 8))

    def find_own(warp: Fragment, address: int) -> MBarrier:
        cta, rank = warp.cta, address >> RANK_SHIFT
        found = cta.mbarriers.get(address & OFFSET_MASK) if not rank or rank == cta.rank else None
        return found if found is not None else find(warp, address)

    return find_own if space == "shared::cta" else find


@lane("mbarrier.init", states=InitsMbarrier())
def mbarrier_init(ins: Instr) -> Run:
    """mbarrier.init{.shared{::cta}}.b64 [addr], count; illegal on a barrier in mid-phase."""
    locate = resolver(space_of(ins))

    def run(warp: Fragment, lane: int, address: int, count: int):
        cta, offset = locate(warp, address, 8, 8)
        old = cta.mbarriers.get(offset)
        if old is not None and (old.waiters or not old.idle):
            raise Fault(f"mbarrier.init over an mbarrier in use: {old.describe()}")
        cta.mbarriers[offset] = MBarrier(cta, offset, count, issuer(warp, ins))

    return run


@lane("mbarrier.inval", states=InvalidatesMbarrier())
def mbarrier_inval(ins: Instr) -> Run:
    find = barrier_operand(ins)

    def run(warp: Fragment, lane: int, address):
        barrier = find(warp, address)
        if barrier.waiters:
            raise Fault(f"mbarrier.inval while warps wait: {barrier.describe()}")
        del barrier.cta.mbarriers[barrier.offset]

    return run


@lane("mbarrier.expect_tx", states=ExpectsBytes())
def mbarrier_expect_tx(ins: Instr) -> Run:
    find = barrier_operand(ins)

    def run(warp: Fragment, lane: int, address: int, nbytes: int):
        find(warp, address).expect_tx(nbytes)

    return run


@lane("mbarrier.complete_tx", states=CompletesBytes())
def mbarrier_complete_tx(ins: Instr) -> Run:
    """mbarrier.complete_tx: simulates the completion of bytes; no memory is touched."""
    find = barrier_operand(ins)

    def run(warp: Fragment, lane: int, address, nbytes: int):
        find(warp, address).complete_tx(nbytes)

    return run


def _arrives(ins: Instr) -> Arrives:
    return Arrives(
        order=order_of(ins, "release"),
        scope=memory_scope(ins),
        space=space_of(ins),
        expects=ins.has("expect_tx"),
        drops=ins.mods[1] == "arrive_drop",
    )


@lane("mbarrier.arrive", "mbarrier.arrive_drop", states=_arrives, out=1)
def mbarrier_arrive(ins: Instr) -> Run:
    """mbarrier.arrive{_drop}{.noComplete}{.sem.scope}{.space}.b64 state, [addr]{, count}
    mbarrier.arrive{_drop}.expect_tx{...}.b64 state, [addr], tx_count
    """
    find = barrier_operand(ins)
    effect = _arrives(ins)
    if effect.space == "shared::cluster" and any(o is not SINK for o in ins.operands[:1]):
        raise Unsupported(f"{ins.opcode} returns no state: its destination must be `_`")
    method = MBarrier.arrive_drop if effect.drops else MBarrier.arrive
    complete = not ins.has("noComplete")

    def expect(warp: Fragment, lane: int, address: int, nbytes: int):
        return method(find(warp, address), 1, issuer(warp, ins), nbytes)

    def arrive(warp: Fragment, lane: int, address: int, count: int = 1):
        return method(find(warp, address), count, issuer(warp, ins), 0, complete)

    return expect if effect.expects else arrive


def _waits(ins: Instr) -> WaitsForPhase:
    return WaitsForPhase(
        order=order_of(ins, "acquire"),
        scope=memory_scope(ins),
        shift=0 if ins.has("parity") else 63,
    )


@warp(
    "mbarrier.test_wait",
    "mbarrier.try_wait",
    states=_waits,
    out=1,
    may_block=True,
    uniform="args",
)
def mbarrier_wait(ins: Instr) -> Run:
    """mbarrier.{test,try}_wait{.parity}{.sem.scope}{.shared{::cta}}.b64 done, [addr], phase{, hint}

    phase: a parity or the state an arrive returned.

    A wait parks the warp until the barrier changes phase, if it fails more than PATIENCE times in a
    row and the warp does nothing else in between. So a loop around a wait costs nothing, and a
    single test never stops the warp.
    """
    if ins.has("shared::cluster"):
        raise Unsupported(f"{ins.opcode}: waits are legal on shared::cta only")
    find = barrier_operand(ins)
    shift = _waits(ins).shift
    patience = PATIENCE[ins.mods[1]]

    def run(warp: Fragment, mask: int, address: int, phase: int, hint: int | None = None):
        if isinstance(address, np.ndarray) or isinstance(phase, np.ndarray):
            return run_lanes(warp, mask, address, phase)
        barrier = find(warp, address)
        if barrier.phase != phase >> shift & 1:
            warp.spin = warp.spin and QUIET
            warp.machine.wait_passed(warp)
            return FULL
        return failed(warp, (id(ins), address, phase), (barrier,))

    def run_lanes(warp: Fragment, mask: int, address, phase):
        address, phase = lanes(address, np.uint64), lanes(phase, np.uint64)
        done, waiting = 0, {}
        for i in active(mask):
            barrier = find(warp, int(address[i]))
            if barrier.phase != int(phase[i]) >> shift & 1:
                done |= 1 << i
            else:
                waiting[barrier.offset] = barrier
        if done:
            warp.spin = warp.spin and QUIET
            warp.machine.wait_passed(warp)
            return done
        return failed(warp, (id(ins), address.tobytes(), phase.tobytes()), tuple(waiting.values()))

    def failed(warp: Fragment, key: tuple, barriers: tuple):
        last = warp.spin
        times = last[1] if last is not None and last[0] == key else 0
        if times < patience:
            warp.spin = (key, times + 1)
            return 0
        raise Blocked(barriers[0] if len(barriers) == 1 else AnyOf(barriers))

    return run


@pure("mbarrier.pending_count", states=ReadsMbarrierState(pipe="integer"))
def mbarrier_pending_count(ins: Instr) -> Pure:
    """mbarrier.pending_count.b64 count, state: the pending count in the state of an arrive."""
    return Pure(
        ins=("b64",),
        outs=("u32",),
        vector=lambda state: (-(state.astype(np.int64) >> 43) & MAX_COUNT).astype(np.uint32),
        scalar=lambda state: -(state >> 43) & MAX_COUNT,
    )
