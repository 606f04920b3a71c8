"""What DRAM pays for the stores of a call.

The L2 keeps what is stored until another line takes its place. In calls back to back each writes
back as much as it stores, as it reads and stores in turn; where a channel would have stood idle
that costs nothing. A DRAM that changes between reads and writes loses time at each change: many
writes cost 1.4 times what reads do, few of them slow down all reads (python -m
b200.measure.hopper_mixed, on an H200).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from b200.clock.constants import Constants


@dataclass(frozen=True)
class Moved:
    """Bytes of a launch. read: from DRAM; stored: left to be written back; crowded: of both
    together, while their DRAM channel had something else to do.
    """

    read: float
    stored: float
    crowded: float


def extra_bytes(read: float, stored: float, c: Constants) -> float:
    """What could be read in the time that a DRAM which reads `read` bytes loses to writing `stored`
    bytes back between them.
    """
    if not stored:
        return 0.0
    few = c.dram_mixed * read * (1 - exp(-stored / (c.dram_mixed_from * max(read, 1))))
    return max(stored + c.dram_turn * min(stored, read), few)


def write_back_us(moved: Moved, kernel_us: float, c: Constants) -> float:
    """Microseconds that writing back adds to a call of `kernel_us`, of calls back to back."""
    both = moved.read + moved.stored
    if not both:
        return 0.0
    us = 1e6 / c.dram_bandwidth
    extra = extra_bytes(moved.read, moved.stored, c) * min(1.0, moved.crowded / both)
    return max(extra * us, both * us - kernel_us)
