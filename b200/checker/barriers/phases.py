"""Rules of the phases of an mbarrier: what must come before which of them is over.

A phase is over with its last arrival, if no bytes are pending then (PTX ISA 9.7.13.15). A wait
looks at one bit of parity (9.7.13.15.16): once the phase after the one that it waits for is over,
too, the bit is again what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Barrier
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.vector_clocks import ORDER
from b200.program.module import Instr
from b200.registry import LaneValues, active, lanes

if TYPE_CHECKING:
    from b200.checker.observer import Observer

# --- an expect_tx must come before an arrival of its phase ----------------------------------------
# What it announces holds a phase back only as long as an arrival of that phase is still to come:
# one that is ordered after it. Else the phase may be over before, the bytes count into the next
# one, and who waits for them goes on too early.


def announces(barrier: Barrier, agent: Agent, ins: Instr) -> None:
    """A warp has executed expect_tx, and published its clock there."""
    barrier.unheld.append((agent, agent.epoch, ins))


def arrives(barrier: Barrier, agent: Agent, clock: np.ndarray) -> None:
    """An arrival comes, with a clock: what was announced before that holds the phase."""

    def before(who: Agent, epoch: int) -> bool:
        n = who.component
        return who is agent or n < clock.shape[1] and int(clock[ORDER, n]) >= epoch

    barrier.unheld = [each for each in barrier.unheld if not before(*each[:2])]


def completed(observer: Observer, barrier: Barrier, last: Instr) -> None:
    """A phase is over: report what no arrival of it comes after."""
    for agent, _, ins in barrier.unheld:
        observer.found(
            "protocol",
            "an expect_tx may come after the last arrival of the phase that it is meant for",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"it is {barrier.name()}, initialised with count {barrier.object.expected} at "
            f"{words.line(barrier.record.ins)}; no arrival of this phase is known to come "
            f"after it, the latest is at {words.line(last)}",
            "missing: arrive.expect_tx in one instruction, or an arrival that comes after the "
            "expect_tx",
            at=ins,
            other=last,
        )
    barrier.unheld = []


# --- a wait by the state of an arrive must come before the phase after that one is over -----------
# A test_wait or try_wait tests the phase of the state it is given, which may be the current one or
# the one before it (9.7.13.15.16; C++ asks the same of std::barrier::wait). Of a phase two back the
# state's parity says that it is not over, and the wait goes on to the end of a phase that it does
# not mean, or for ever. Whose state it is, is told by its value: the latest arrival of the warp
# that was given this value, or else of any warp. So an old state of which an equal one was given
# again is not found.

LASTS = 2  # phases: that of the arrival, and the next


def given(barrier: Barrier, agent: Agent, state: int, phase: int, ins: Instr) -> None:
    """An arrival in a phase, by its number, has returned a state."""
    barrier.states[agent, state] = barrier.states[None, state] = phase, ins


def looks(observer: Observer, barrier: Barrier, agent: Agent, state: int) -> None:
    """A warp is about to look by a state."""
    known = barrier.states.get((agent, state)) or barrier.states.get((None, state))
    if known is None or barrier.phases < known[0] + LASTS:
        return
    phase, arrive = known
    observer.found(
        "protocol",
        "a wait by the state of an arrive that is two phases old: it says nothing of its phase",
        f"this access: {words.line(observer.ins)}, by {words.name(agent)}",
        f"the state is of {words.line(arrive)}, of phase {phase}; {barrier.phases} phases of "
        f"the {barrier.name()} are over",
        "only the current phase and the one before it can be waited for: a state of the same "
        "parity is taken for one of the current phase",
        "missing: a wait by each state before the phase after its own is over",
        at=observer.ins,
        other=arrive,
        severity=PORTABILITY,
    )


def states_of(mask: int, address: LaneValues, state: LaneValues) -> set[tuple[int, int]]:
    """The different (address, state) of some lanes."""
    if not isinstance(address, np.ndarray) and not isinstance(state, np.ndarray):
        return {(address, state)}
    where, states = lanes(address, np.uint64), lanes(state, np.uint64)
    return {(int(where[i]), int(states[i])) for i in active(mask)}


class Overtaken:
    """The rule for one launch: a wait must not be overtaken by the phase after the one that it
    waits for. So an arrival of that next phase must come after the wait. This run has looked in
    time; another may not. Every wait that has passed is held against what the arrivals of the next
    phase know.

    Where another warp that waits for the same phase leads, the next phase comes after that one's
    wait. The slow warp must then fall back by a whole phase. The first kernels of CUTLASS'
    tutorials, in which all warps wait and one issues, rely on it that none does. That is a
    portability remark.

    In this run, too, a wait may look late: the phase that comes next for the warp and two more are
    over, the parity is right, and the wait passes. If nobody has waited for the phases in between,
    and nothing else orders what completed them before the wait, what they handed over is lost.

    A stage that somebody forgets to wait for lets other waits be overtaken, too. So the rule speaks
    only where no other error was found: the first cause is said, and said alone.

    seen: (wait, what completes the next phase) -> (mbarrier, warp, whether another one leads) of
    the first one, or of the first that nobody leads.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.seen: dict[tuple, tuple] = {}

    def passes(self, barrier: Barrier, agent: Agent, parity: int, ins: Instr) -> None:
        """A wait of a warp is about to pass, and to learn what the latest phase hands over."""
        latest = barrier.phases - 1
        before, due, _ = agent.waits.get(barrier, (1, 0, None))
        skipped = range(due, latest)
        unseen = parity != before and len(skipped) > 1 and barrier.waited.isdisjoint(skipped)
        if unseen and not _knows(agent, barrier.passed[ORDER]):
            self._tell_late(barrier, agent, ins, due, latest)
        if latest >= 0:
            barrier.waited.add(latest)

    def _tell_late(self, barrier: Barrier, agent: Agent, ins: Instr, due: int, latest: int) -> None:
        completed = [event for event in barrier.events if event[4] == latest]
        last = f", the latest by {completed[-1][2]} at {completed[-1][3]}" if completed else ""
        self.observer.found(
            "protocol",
            "a wait was overtaken: the phase that it waits for and the two after it are over "
            "before it looks",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"it is {barrier.name()}: phase {due} comes next for the warp, and phases to "
            f"{latest} are over{last}",
            "nobody has waited for the phases in between: what they handed over is lost",
            "missing: an answer of each warp that waits, which who completes a phase waits for",
            at=ins,
        )

    def completed(self, barrier: Barrier, last: Instr) -> None:
        """Phase over by `last`: each warp that waited for the one before must have looked."""
        known, late = barrier.passed[ORDER], []
        for agent, (epoch, ins) in barrier.looks.items():
            if agent.component >= known.size or known[agent.component] < epoch:
                late.append((agent, ins))
        led = len(late) < len(barrier.looks)
        for agent, ins in late:
            before = self.seen.get((ins, last))
            if before is None or before[2] and not led:
                self.seen[ins, last] = barrier, agent, led
        barrier.looks.clear()

    def finish(self) -> None:
        if not any(finding.severity == ERROR for finding in self.observer.findings):
            for (ins, last), (barrier, agent, led) in self.seen.items():
                self._tell(barrier, agent, ins, last, led)
        self.seen.clear()

    def _tell(self, barrier: Barrier, agent: Agent, ins: Instr, last: Instr, led: bool) -> None:
        by = ", by a warp that falls a phase behind another one that waits" if led else ""
        self.observer.found(
            "protocol",
            "a wait may be overtaken: the phase after the one that it waits for may be over before "
            f"it looks{by}",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"it is {barrier.name()}, initialised with count {barrier.object.expected} at "
            f"{words.line(barrier.record.ins)}",
            f"the next phase is completed at {words.line(last)}, which does not come after the "
            "wait; with two phases over the parity is the same again",
            "missing: an arrival by each warp that waits, counted into the next phase, or a "
            "barrier of the CTA between the wait and what completes that phase",
            at=ins,
            other=last,
            severity=PORTABILITY if led else ERROR,
        )


def _knows(agent: Agent, clock: np.ndarray) -> bool:
    """Whether a warp knows all of a clock."""
    mine = agent.clock[ORDER]
    n = min(mine.size, clock.size)
    return bool((clock[:n] <= mine[:n]).all()) and not clock[n:].any()
