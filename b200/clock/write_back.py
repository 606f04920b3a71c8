"""What DRAM pays for the stores of a call, and for what a memset has left in the L2.

The L2 keeps what is stored until another line takes its place. In calls back to back each writes
back as much as it stores, as it reads and stores in turn; where a channel would have stood idle
that costs nothing. A DRAM that changes between reads and writes loses time at each change: many
writes cost 1.4 times what reads do, few of them slow down all reads (python -m
harness.studies.h200.mixed, on an H200).

A memset leaves as many bytes to be written back as half of the L2 holds, however many it wrote; a
line that is read takes the place of any other, so that ever fewer of them are left, and nothing is
written back in idle times (python -m harness h200 written, on an H200).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1

from b200.clock.constants import Constants


@dataclass(frozen=True)
class Moved:
    """Bytes of a launch. read: from DRAM; stored: left to be written back; crowded: of both
    together, while their DRAM channel had something else to do.
    """

    read: float
    stored: float
    crowded: float


def behind_memset(read: float, c: Constants) -> float:
    """What could be read in the time that a DRAM which reads `read` bytes after a memset loses to
    writing back what that has left in the L2.
    """
    written = -c.dirty_share * c.l2_capacity * expm1(-read / c.l2_capacity)
    return written * (1 + c.dram_turn)


def next_behind_memset(read: float, c: Constants) -> float:
    """The same for one byte more."""
    return c.dirty_share * exp(-read / c.l2_capacity) * (1 + c.dram_turn)


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
