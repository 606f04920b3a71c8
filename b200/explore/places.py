"""What a step does to the place that it acts on, in any order of the steps.

These are the rules of `b200/chip/sync` and of `b200/chip/tensor/tmem_alloc.py`, as functions of
small states that can be compared and kept.

Each class has: `start`, the state before the first step; `open(state, step)`, whether a step of
WAITS may pass; `after(state, step)`, the state after a step, which raises Broken if the step is an
error in that state.
"""

from __future__ import annotations

from typing import TypeAlias

from b200.explore import kinds
from b200.explore.trace import Step, Trace
from b200.hardware import TMEM_COLUMNS

GRAIN = 32  # columns of the smallest allocation


# States; the docstrings of the classes say what each part is.
MbarrierState: TypeAlias = tuple[int, int, int, int, frozenset[int]]
BarrierState: TypeAlias = tuple[int, int, frozenset[int], int, frozenset[int]]
ClusterPhase: TypeAlias = tuple[int, int, frozenset[int], frozenset[int]]
Allocation: TypeAlias = tuple[int, int, int, int]
TensorState: TypeAlias = tuple[
    frozenset[Allocation], tuple[int, ...], frozenset[int], tuple[tuple[int, int], ...]
]


class Broken(Exception):
    """A step that is an error in this order; str() says why."""


class MbarrierRules:
    """An mbarrier. State: None before the first init; else (expected, parity, pending, tx-count,
    looks that have found their phase over).
    """

    def __init__(self, trace: Trace):
        self.start: MbarrierState | None = None

    def open(self, state: MbarrierState | None, step: Step) -> bool:
        if state is None:
            return False
        return state[1] != step.parity or any(look in state[4] for look in step.of)

    def after(self, state: MbarrierState | None, step: Step) -> MbarrierState | None:
        if step.kind == kinds.INIT:
            if state is not None and (state[2] != state[0] or state[3]):
                raise Broken("mbarrier.init over an mbarrier in mid-phase")
            return (step.count, 0, step.count, 0, frozenset() if state is None else state[4])
        if state is None:
            raise Broken("it is used before its initialisation")
        if step.kind == kinds.INVAL:
            return None
        if step.kind == kinds.LOOK:
            seen = {step.number} if self.open(state, step) else set[int]()
            return *state[:4], state[4] | seen
        for _ in range(step.times):
            state = self._once(state, step)
        return state

    @staticmethod
    def _once(state: MbarrierState, step: Step) -> MbarrierState:
        expected, parity, pending, tx, seen = state
        arrivals = step.count if step.kind == kinds.ARRIVE else 0
        if arrivals > pending:
            raise Broken(
                f"{arrivals} arrive(s) where the phase waits for {pending} more (tx-count {tx})"
            )
        if step.kind == kinds.EXPECT_ARRIVAL:
            pending += 1
        if step.drop:
            expected -= arrivals
        tx += -step.tx if step.kind == kinds.COMPLETE else step.tx
        pending -= arrivals
        if pending == 0 and tx == 0 and step.kind != kinds.EXPECT_ARRIVAL:
            return expected, parity ^ 1, expected, 0, seen
        return expected, parity, pending, tx, seen

    def text(self, state: MbarrierState | None, step: Step) -> str:
        """The reason why a wait does not pass."""
        if state is None:
            return "it is not initialised"
        expected, parity, pending, tx, _ = state
        missing = f"{pending} of {expected} arrival(s)" + (f" and {tx} bytes" if tx else "")
        return f"the phase of parity {parity} is under way, which lacks {missing}"


class BarrierRules:
    """A barrier of a CTA. State: (threads that it waits for, 0 for all, threads that have arrived,
    arrivals of this use, live warps, arrivals of uses that are over).
    """

    def __init__(self, trace: Trace):
        self.start: BarrierState = (0, 0, frozenset(), trace.warps, frozenset())

    def open(self, state: BarrierState, step: Step) -> bool:
        return all(number in state[4] for number in step.of)

    def after(self, state: BarrierState, step: Step) -> BarrierState:
        told, arrived, here, live, over = state
        if step.kind == kinds.MEET:
            if arrived and step.threads != told:
                raise Broken(
                    f"it is used for {step.threads or 'all'} threads while others arrived for "
                    f"{told or 'all'}"
                )
            told, arrived, here = step.threads, arrived + step.count, here | {step.number}
        elif step.kind == kinds.EXIT:
            live -= step.count
        needed = told or max(32 * live, 1)
        if arrived > needed:
            raise Broken(f"{arrived} threads arrive where it waits for {needed}")
        if arrived and arrived == needed:
            arrived, here, over = 0, frozenset[int](), over | here
        return told, arrived, here, live, over

    def text(self, state: BarrierState, step: Step) -> str:
        told, arrived, _, live, _ = state
        return f"{arrived} of {told or 32 * live} threads have arrived"


class ClusterRules:
    """The cluster's. State: (threads expected, arrived; arrivals of this phase, of those over)."""

    def __init__(self, trace: Trace):
        self.start: ClusterPhase = (trace.threads * trace.ctas, 0, frozenset(), frozenset())

    def open(self, state: ClusterPhase, step: Step) -> bool:
        return all(number in state[3] for number in step.of)

    def after(self, state: ClusterPhase, step: Step) -> ClusterPhase:
        expected, arrived, here, over = state
        if step.kind == kinds.MEET:
            arrived, here = arrived + step.count, here | {step.number}
        elif step.kind == kinds.EXIT:
            expected -= step.count
        if expected and arrived >= expected:
            arrived, here, over = 0, frozenset[int](), over | here
        return expected, arrived, here, over

    def text(self, state: ClusterPhase, step: Step) -> str:
        return f"{state[1]} of {state[0]} threads have arrived"


class TensorMemoryRules:
    """Tensor memory of a CTA pair. State: (allocations: step, rank, first column, columns; columns
    of each CTA's latest allocation; CTAs that allocate no more; allocations of the pair that its
    odd CTA has not found yet: step, columns).
    """

    def __init__(self, trace: Trace):
        self.start: TensorState = (frozenset(), (TMEM_COLUMNS,) * 2, frozenset(), ())

    @staticmethod
    def _free(
        allocations: frozenset[Allocation], ranks: tuple[int, ...], columns: int
    ) -> int | None:
        """The first column of a range that is free in all of these CTAs; None if there is none."""
        taken = [(first, n) for _, rank, first, n in allocations if rank in ranks]
        for first in range(0, TMEM_COLUMNS - columns + 1, GRAIN):
            if all(first + columns <= at or at + n <= first for at, n in taken):
                return first
        return None

    @staticmethod
    def _ranks(step: Step) -> tuple[int, ...]:
        """The ranks of the CTAs in which a step allocates."""
        return (step.rank, step.rank | 1) if step.kind == kinds.ALLOC_PAIR else (step.rank,)

    def open(self, state: TensorState, step: Step) -> bool:
        if step.kind == kinds.JOIN_PAIR:
            return bool(state[3])
        return self._free(state[0], self._ranks(step), step.count) is not None

    def after(self, state: TensorState, step: Step) -> TensorState:
        allocations, last, closed, granted = state
        if step.kind == kinds.DEALLOC:
            kept = frozenset(a for a in allocations if (a[0], a[1]) != (*step.of, step.rank))
            return kept, last, closed, granted
        if step.kind == kinds.RELINQUISH:
            return allocations, last, closed | {step.rank}, granted
        if step.rank in closed:
            raise Broken("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
        if step.count > last[step.rank & 1]:
            raise Broken(
                f"tcgen05.alloc of {step.count} columns after one of {last[step.rank & 1]}"
            )
        last = _replaced(last, step.rank & 1, step.count)
        if step.kind == kinds.JOIN_PAIR:
            (number, columns), granted = granted[0], granted[1:]
            if columns != step.count:
                raise Broken(
                    f"the odd CTA asks for {step.count} columns, the even one got {columns}"
                )
            theirs = next(a for a in allocations if (a[0], a[1]) == (number, step.rank))
            allocations = allocations - {theirs} | {(step.number, *theirs[1:])}
            return allocations, last, closed, granted
        first = self._free(allocations, self._ranks(step), step.count)
        assert first is not None  # it is open
        allocations |= {(step.number, rank, first, step.count) for rank in self._ranks(step)}
        if step.kind == kinds.ALLOC_PAIR:
            granted = (*granted, (step.number, step.count))
        return allocations, last, closed, granted

    def text(self, state: TensorState, step: Step) -> str:
        mine = sum(n for _, rank, _, n in state[0] if rank == step.rank)
        free = f"{TMEM_COLUMNS - mine} of {TMEM_COLUMNS} columns are free"
        if step.kind == kinds.JOIN_PAIR:
            return f"the even CTA of the pair has not allocated; {free}"
        return f"{step.count} columns are asked for, {free}"


class RegisterRules:
    """Registers of a CTA. State: how many warps have given back, less those taken."""

    def __init__(self, trace: Trace):
        self.start: int = 0

    def open(self, state: int, step: Step) -> bool:
        return state >= step.count

    def after(self, state: int, step: Step) -> int:
        return state + (step.count if step.kind == kinds.GIVE else -step.count)

    def text(self, state: int, step: Step) -> str:
        return f"{state:,} are given back"


def _replaced(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


RULES = {
    "mbarrier": MbarrierRules,
    "barrier": BarrierRules,
    "cluster": ClusterRules,
    "tmem": TensorMemoryRules,
    "registers": RegisterRules,
}
