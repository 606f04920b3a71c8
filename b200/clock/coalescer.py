"""The request coalescer between the SMs of a GPC and the L2.

A read of what another SM of the same GPC has asked for and has not got yet is not passed on: both
get the one answer. What an SM asks for again itself is passed on, and so is what the SM of another
GPC has asked for (harness/studies/h200/clusters.py). SemiAnalysis' tma2dmcast counts fewer L2
sectors than arrive in shared memory: half as many where two SMs of each GPC read the same, a third
to a quarter for four. The more is under way, the fewer are merged; and on an H200 the more of it
is multicasts (harness/studies/h200/ingest.py).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np


class UnderWay:
    """Bytes that are under way: (arrival, bytes) in the order in which they were asked for."""

    def __init__(self):
        self.flight: deque[tuple[float, int]] = deque()
        self.bytes = 0

    def add(self, arrival: float, nbytes: int) -> None:
        self.flight.append((arrival, nbytes))
        self.bytes += nbytes

    def at(self, time: float) -> int:
        """What is left of them."""
        while self.flight and self.flight[0][0] <= time:
            self.bytes -= self.flight.popleft()[1]
        return self.bytes


class Coalescer:
    """One a GPC. capacity: bytes under way up to which every repeated request is merged; beyond,
    that share of them is; mates: the same where the SM of the same TPC has asked.
    beside_multicast: share that is merged where all that is under way are multicasts.
    """

    def __init__(self, capacity: float, mates: float = math.inf, beside_multicast: float = 1.0):
        self.capacity, self.mates = capacity, mates
        self.lost_beside = 1.0 - beside_multicast
        self.arrival: dict[int, np.ndarray] = {}  # by allocation: when each unit arrives, clk
        self.asked: dict[int, np.ndarray] = {}  # a bit for each SM that waits for it
        self.answers, self.multicasts = UnderWay(), UnderWay()

    def _of(self, region, units: int) -> np.ndarray:
        found = self.arrival.get(region.base)
        if found is None or len(found) < units:
            found = self.arrival[region.base] = np.zeros(units, np.float32)
            self.asked[region.base] = np.zeros(units, np.uint32)
        return found

    def merge(
        self, at: float, region, units: int, index: np.ndarray, draw: float, sm: int = 0
    ) -> tuple[float, float] | None:
        """(first, last) arrival at the SM of units that are all under way, or None: the L2 must be
        asked.

        units: of the allocation; draw: a number in [0, 1) that decides while much is under way; sm:
        number of the SM that reads.
        """
        arrival = self._of(region, units)[index]
        first = float(arrival.min())
        if first <= at:
            return None
        answers, multicasts = self.answers.at(at), self.multicasts.at(at)
        beside = self.lost_beside * multicasts
        if beside and draw >= 1 - beside / (multicasts + answers):
            return None
        asked, bit, mate = self.asked[region.base], np.uint32(1 << sm % 32), 1 << (sm ^ 1) % 32
        waiting = asked[index]
        most = self.mates if (waiting & np.uint32(mate)).all() else self.capacity
        if draw * answers >= most or (waiting & bit).any():
            return None
        asked[index] |= bit
        return first, float(arrival.max())

    def sent(self, region, index: np.ndarray, arrival: float, nbytes: int, sm: int = 0) -> None:
        """Units have been asked for by an SM and arrive at a time."""
        self.asked[region.base][index] = np.uint32(1 << sm % 32)
        self.arrival[region.base][index] = arrival
        self.answers.add(arrival, nbytes)

    def multicast(self, last: float, nbytes: int) -> None:
        """A multicast of so many bytes is on its way to SMs of this GPC until `last`."""
        self.multicasts.add(last, nbytes)
