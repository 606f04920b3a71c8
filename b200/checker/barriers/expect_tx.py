"""Rule: an expect_tx must come before an arrival of its phase.

A phase is over with its last arrival, if no bytes are pending then (PTX ISA 9.7.13.15). What an
expect_tx announces holds a phase back only as long as an arrival of that phase is still to come:
one that is ordered after it. Else the phase may be over before, the bytes count into the next one,
and who waits for them goes on too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Barrier
from b200.checker.agent import Agent
from b200.checker.vector_clocks import ORDER
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer


def announces(barrier: Barrier, agent: Agent, ins: Instr) -> None:
    """A warp has executed expect_tx, and published its clock there."""
    barrier.unheld.append((agent, agent.epoch, ins))


def arrives(barrier: Barrier, agent: Agent, clock: np.ndarray) -> None:
    """A warp arrives, or what it has issued does, with a clock: what was announced before that
    holds the phase.
    """

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
            (
                f"this access: {words.line(ins)}, by {words.name(agent)}",
                f"it is {barrier.name()}, initialised with count {barrier.object.expected} at "
                f"{words.line(barrier.record.ins)}; no arrival of this phase is known to come "
                f"after it, the latest is at {words.line(last)}",
                "missing: arrive.expect_tx in one instruction, or an arrival that comes after the "
                "expect_tx",
            ),
            ins,
            last,
        )
    barrier.unheld = []
