"""Rule: a wait by the state that an arrive returned comes before the phase after that one is over.

A test_wait or try_wait tests the phase of the state it is given, which may be the current one or
the one before it (PTX ISA 9.7.13.15.16; C++ asks the same of std::barrier::wait). The state tells
the chip no more than a parity: of a phase two back it says that the phase is not over, and the wait
goes on to the end of a phase that it does not mean, or for ever.

Whose state it is, is told by its value: the latest arrival of the warp that was given this value,
or else of any warp. So an old state of which an equal one was given again is not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.finding import PORTABILITY
from b200.registry import LaneValues, active, lanes

if TYPE_CHECKING:
    from b200.checker.accesses import Barrier
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.program.module import Instr

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
        (
            f"this access: {words.line(observer.ins)}, by {words.name(agent)}",
            f"the state is of {words.line(arrive)}, of phase {phase}; {barrier.phases} phases of "
            f"the {barrier.name()} are over",
            "only the current phase and the one before it can be waited for: a state of the same "
            "parity is taken for one of the current phase",
            "missing: a wait by each state before the phase after its own is over",
        ),
        observer.ins,
        arrive,
        PORTABILITY,
    )


def states_of(mask: int, address: LaneValues, state: LaneValues) -> set[tuple[int, int]]:
    """The different (address, state) of some lanes."""
    if not isinstance(address, np.ndarray) and not isinstance(state, np.ndarray):
        return {(address, state)}
    where, states = lanes(address, np.uint64), lanes(state, np.uint64)
    return {(int(where[i]), int(states[i])) for i in active(mask)}
