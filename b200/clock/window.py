"""The limit on bytes that the SMs of a CPC (a third of a GPC) have under way together.

On an H200 the six SMs of a CPC get no more of a busy DRAM than the four of another, once each has
asked for 200 KB; with 80 KB all are alike (python -m harness h200 depth).
"""

from __future__ import annotations

from collections import deque


class Window:
    """Limits the bytes of copies under way to `most`: a copy that would exceed it waits until the
    oldest ones have arrived.

    bytes: admitted and not known to have arrived; flight: (arrival, bytes) of those asked for.
    """

    def __init__(self, most: float):
        self.most, self.bytes = most, 0
        self.flight: deque[tuple[float, int]] = deque()

    def admit(self, time: float, nbytes: int) -> float:
        """When, from `time` on, `nbytes` may be asked for; they count from now on."""
        while self.flight and (self.flight[0][0] <= time or self.bytes + nbytes > self.most):
            arrival, arrived = self.flight.popleft()
            time = max(time, arrival)
            self.bytes -= arrived
        self.bytes += nbytes
        return time

    def asked(self, arrival: float, nbytes: int) -> None:
        """What was admitted has been asked for, and will arrive."""
        self.flight.append((arrival, nbytes))
