"""What is under way between an SM and the L2: bytes of answers, sectors of stores.

The SMs of a CPC (a third of a GPC) have a limit together. On an H200 all SMs get equal shares of a
busy DRAM if each has asked for 80 KB. If each has asked for 200 KB, the six SMs of one CPC together
get no more than the four SMs of another (python -m lab h200 depth).
"""

from __future__ import annotations

import math
from collections import deque


class UnderWay:
    """flight: (arrival in clk, amount) in the order of the requests. amount: of all of these, and
    what is admitted and will be asked for later.
    """

    __slots__ = ("flight", "amount")

    def __init__(self):
        self.flight: deque[tuple[float, int]] = deque()
        self.amount = 0

    def room(self, time: float, most: float = math.inf) -> float:
        """The earliest time, not before `time`, when at most `most` is under way, if nothing is
        added; the amount is that of this time.
        """
        flight = self.flight
        while flight and (flight[0][0] <= time or self.amount > most):
            arrival, amount = flight.popleft()
            self.amount -= amount
            time = max(time, arrival)
        return time

    def add(self, arrival: float, amount: int) -> None:
        self.flight.append((arrival, amount))
        self.amount += amount
