"""Tickets: what lanes of a warp that update one word by one atomic know of each other.

The updates of a word come one after the other, the lanes' in the order of their numbers. Who reads
the result comes after those that have come before, as after any atomic of a release sequence (PTX
ISA 8.8): if the atomic, or a fence before it, releases and the atomic, or a fence behind it,
acquires. A lane knows nothing of those that come after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from b200.checker.agent import Agent
from b200.checker.memory.release_acquire import acquires, releases, tells
from b200.checker.vector_clocks import FENCED, lanes_among
from b200.program.module import Instr
from b200.registry import active


@dataclass
class Ticket:
    """One atomic of several lanes in a turn of their warp.

    epoch: up to which it hands over what the lanes have done. places: of each lane the address, -1
    for those that take none. acquired: lanes that have taken over what those before them have done.
    """

    turn: int
    epoch: int
    places: np.ndarray
    acquired: int

    def orders(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Whether lanes `other` know of lanes `one`. A marker in place of a lane has no ticket."""
        i, j = np.minimum(one, 31), np.minimum(other, 31)
        same = (self.places[i] == self.places[j]) & (self.places[i] >= 0)
        return same & (i < j) & (one < 32) & lanes_among(self.acquired, other)


def take(agent: Agent, ins: Instr, mask: int, at: np.ndarray) -> None:
    """Lanes of a warp have carried out an atomic. at: an address for each lane, or one for all."""
    if not tells(ins) or mask & mask - 1 == 0:
        return
    epoch = agent.epoch if releases(ins) else int(agent.clock[FENCED, agent.component])
    if not epoch:
        return  # no fence has put anything before it
    places = np.full(32, -1, np.int64)
    places[active(mask)] = at
    agent.tickets.append(Ticket(agent.turn, epoch, places, mask if acquires(ins) else 0))
