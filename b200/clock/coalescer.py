"""The request coalescer between the SMs of a GPC and the L2.

If an SM reads what another SM of the same GPC has asked for and has not got yet, the coalescer
merges the two requests: it passes on one, and both SMs get the one answer. It does not merge a
request that the same SM repeats, nor one with a request of another GPC
(lab/h200/clusters.py). SemiAnalysis' tma2dmcast counts fewer L2 sectors than arrive in
shared memory: half as many if two SMs of each GPC read the same, a third to a quarter for four.
Fewer requests are merged the more bytes are under way, and on an H200 the more of these bytes are
multicasts (lab/h200/ingest.py).
"""

from __future__ import annotations

import math

import numpy as np

from b200.chip.global_memory import Region
from b200.clock.under_way import UnderWay


class Coalescer:
    """The coalescer of one GPC.

    capacity: bytes under way up to which every repeated request is merged; beyond, the share
    capacity / bytes is merged. mates: the same if the other SM of the TPC has asked.
    beside_multicast: the share that is merged if all bytes under way are multicasts.
    """

    def __init__(self, capacity: float, mates: float = math.inf, beside_multicast: float = 1.0):
        self.capacity, self.mates = capacity, mates
        self.lost_beside = 1.0 - beside_multicast
        self.arrival: dict[int, np.ndarray] = {}  # by allocation: when each unit arrives, clk
        self.asked: dict[int, np.ndarray] = {}  # a bit for each SM that waits for it
        self.answers, self.multicasts = UnderWay(), UnderWay()

    def _of(self, region: Region, units: int) -> np.ndarray:
        found = self.arrival.get(region.base)
        if found is None or len(found) < units:
            found = self.arrival[region.base] = np.zeros(units, np.float32)
            self.asked[region.base] = np.zeros(units, np.uint32)
        return found

    def merge(
        self, at: float, region: Region, units: int, index: np.ndarray, draw: float, sm: int = 0
    ) -> tuple[float, float] | None:
        """(first, last) arrival in clk of units whose request is merged; None if it is not, and the
        L2 must be asked.

        units: their number in the whole allocation; index: those that are read. draw: a number in
        [0, 1) that decides while much is under way. sm: number of the SM that reads.
        """
        arrival = self._of(region, units)[index]
        first = float(arrival.min())
        if first <= at:
            return None
        for flight in (self.answers, self.multicasts):
            flight.room(at)
        answers, multicasts = self.answers.amount, self.multicasts.amount
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

    def sent(
        self, region: Region, index: np.ndarray, arrival: float, nbytes: int, sm: int = 0
    ) -> None:
        """Note that an SM has asked the L2 for units (`index`), which arrive at a time."""
        self.asked[region.base][index] = np.uint32(1 << sm % 32)
        self.arrival[region.base][index] = arrival
        self.answers.add(arrival, nbytes)

    def multicast(self, last: float, nbytes: int) -> None:
        """Note that a multicast of `nbytes` is on its way to SMs of this GPC until `last`."""
        self.multicasts.add(last, nbytes)
