"""The limit on bytes that the SMs of a CPC (a third of a GPC) have under way together.

On an H200 all SMs get equal shares of a busy DRAM if each has asked for 80 KB. If each has asked
for 200 KB, the six SMs of one CPC together get no more than the four SMs of another (python -m
lab h200 depth).
"""

from __future__ import annotations

from collections import deque


class Window:
    """Limits the bytes of copies under way to `most`: a copy that would exceed it waits until the
    oldest ones have arrived.

    bytes: how many are admitted and not known to have arrived. flight: (arrival, bytes) of those
    that have been asked for.
    """

    def __init__(self, most: float):
        self.most, self.bytes = most, 0
        self.flight: deque[tuple[float, int]] = deque()

    def admit(self, time: float, nbytes: int) -> float:
        """The earliest time, not before `time`, when `nbytes` may be asked for. From this call on
        they count as under way.
        """
        while self.flight and (self.flight[0][0] <= time or self.bytes + nbytes > self.most):
            arrival, arrived = self.flight.popleft()
            time = max(time, arrival)
            self.bytes -= arrived
        self.bytes += nbytes
        return time

    def asked(self, arrival: float, nbytes: int) -> None:
        """Note that admitted bytes have been asked for, and when they will arrive."""
        self.flight.append((arrival, nbytes))
