"""Rule: a wait on an mbarrier must not be overtaken by the phase after the one that it waits for.

A wait looks at one bit of parity (PTX ISA 9.7.13.15.16). Once the next phase is over, too, the bit
is again what it was, and the wait takes the phase that it waits for as not over. So an arrival of
that next phase must come after the wait. This run has looked in time; another may not. The rule
holds every wait that has passed against what the arrivals of the next phase know.

Where another warp that waits for the same phase leads, the next phase comes after that one's wait.
The slow warp must then fall back by a whole phase. The first kernels of CUTLASS' tutorials, in
which all warps wait and one issues, rely on it that none does. That is a portability remark.

In this run, too, a wait may look late: the phase that comes next for the warp and two more are
over, the parity is right, and the wait passes. If nobody has waited for the phases in between, and
nothing else orders what completed them before the wait, what they handed over is lost.

A stage that somebody forgets to wait for lets other waits be overtaken, too. So the rule speaks
only where no other error was found: the first cause is said, and said alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.vector_clocks import ORDER

if TYPE_CHECKING:
    from b200.checker.accesses import Barrier
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.program.module import Instr


class Overtaken:
    """The rule for one launch. seen: (wait, what completes the next phase) -> (mbarrier, warp,
    whether another one leads) of the first one, or of the first that nobody leads.
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
            (
                f"this access: {words.line(ins)}, by {words.name(agent)}",
                f"it is {barrier.name()}: phase {due} comes next for the warp, and phases to "
                f"{latest} are over{last}",
                "nobody has waited for the phases in between: what they handed over is lost",
                "missing: an answer of each warp that waits, which who completes a phase waits for",
            ),
            ins,
        )

    def completed(self, barrier: Barrier, last: Instr) -> None:
        """A phase of the mbarrier is over, by instruction `last`. Each warp that waited for the
        phase before must have looked first.
        """
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
        """Report what was seen so far."""
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
            (
                f"this access: {words.line(ins)}, by {words.name(agent)}",
                f"it is {barrier.name()}, initialised with count {barrier.object.expected} at "
                f"{words.line(barrier.record.ins)}",
                f"the next phase is completed at {words.line(last)}, which does not come after the "
                "wait; with two phases over the parity is the same again",
                "missing: an arrival by each warp that waits, counted into the next phase, or a "
                "barrier of the CTA between the wait and what completes that phase",
            ),
            ins,
            last,
            PORTABILITY if led else ERROR,
        )


def _knows(agent: Agent, clock: np.ndarray) -> bool:
    """Whether a warp knows all of a clock."""
    mine = agent.clock[ORDER]
    n = min(mine.size, clock.size)
    return bool((clock[:n] <= mine[:n]).all()) and not clock[n:].any()
