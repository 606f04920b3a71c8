"""The cost of writing back to DRAM what a call has stored, and what a memset has left in the L2.

The L2 keeps what is stored until another line takes its place. In back-to-back calls, each call
writes back as many bytes as it stores. This costs nothing while the DRAM channel would have been
idle. A DRAM that changes between reads and writes loses time at each change: many writes cost 1.4
times as much as reads, and few writes slow down all reads (python -m lab.h200.mixed, on
an H200).

After a memset, half of the L2 is to be written back, however many bytes the memset wrote: more of
it than that is not kept. A line that is read takes the place of any other line, so ever fewer of
these bytes are left. Nothing is written back in idle times (python -m lab h200 written, on an
H200). So what a call stores finds the L2 as full of such bytes as it gets, or makes it so: as many
bytes more are written back at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1

from b200.clock.constants import Constants


@dataclass(frozen=True)
class Moved:
    """Bytes that a launch moves. read: read from DRAM. stored: left to be written back. crowded:
    the part of both together whose DRAM channel had something else to do.
    """

    read: float
    stored: float
    crowded: float


def behind_memset(read: float, c: Constants) -> float:
    """The cost of writing back what a memset left in the L2, while DRAM reads `read` bytes: the
    bytes that could be read in the time lost.
    """
    written = -c.dirty_share * c.l2_capacity * expm1(-read / c.l2_capacity)
    return written * (1 + c.dram_turn)


class Dirty:
    """The bytes of the L2 that are to be written back. left: how many; they start as many as they
    ever get, as a memset leaves them.
    """

    def __init__(self, c: Constants):
        self.c = c
        self.left = self.most = c.dirty_share * c.l2_capacity

    def read(self, nbytes: int) -> float:
        """DRAM is about to read so many bytes. Returns how many times as long it takes."""
        written = self.left * -expm1(-nbytes / self.c.l2_capacity)
        self.left -= written
        return 1 + written / nbytes * (1 + self.c.dram_turn)

    def store(self, nbytes: int) -> float:
        """So many bytes of the L2 are stored that were not to be written back. Returns the bytes
        that DRAM could read in the time that it takes to write back others in their place.
        """
        over = max(0.0, self.left + nbytes - self.most)
        self.left += nbytes - over
        return over * (1 + self.c.dram_turn)


def extra_bytes(read: float, stored: float, c: Constants) -> float:
    """The cost of writing `stored` bytes back, while DRAM reads `read` bytes: the bytes that could
    be read in the time lost.
    """
    if not stored:
        return 0.0
    few = c.dram_mixed * read * (1 - exp(-stored / (c.dram_mixed_from * max(read, 1))))
    return max(stored + c.dram_turn * min(stored, read), few)


def write_back_us(moved: Moved, kernel_us: float, c: Constants) -> float:
    """Microseconds that writing back adds to each of several calls back to back. kernel_us: the
    time of the call's kernels.
    """
    both = moved.read + moved.stored
    if not both:
        return 0.0
    us = 1e6 / c.dram_bandwidth
    extra = extra_bytes(moved.read, moved.stored, c) * min(1.0, moved.crowded / both)
    return max(extra * us, both * us - kernel_us)
