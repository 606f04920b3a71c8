"""From the time of a kernel to the time that a benchmark reports.

"single": one call between a pair of events. "back to back": the mean of n calls in a row, each on
its own cold inputs, while the queue never runs empty; what a call has stored and not yet written
back, DRAM writes while the next one reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reported:
    """Modelled microseconds of a call as a benchmark would report them, with the range that the
    constants leave.

    kernel_us: of the kernels alone. floor_us: bytes from DRAM at full bandwidth, or the busiest
    tensor core, whichever is longer. bound_by: in words. calls: in the mean.
    """

    time_us: float
    low_us: float
    high_us: float
    kernel_us: float
    floor_us: float
    bound_by: str
    calls: int


def reported(launches: Sequence, calls: int) -> Reported:
    """What `calls` calls between two events give for each, where a call makes these (timed)
    launches.
    """
    from b200.clock.profile import bound_by, floor_us

    records = [launch.time for launch in launches]
    longest = max(records, key=lambda r: r.time_us)

    def total(end: str, kernel: float) -> float:
        c = longest.options.gpu.constants(end, longest.options.constants)
        once = kernel + c.launch_gap_us * (len(records) - 1)
        start = c.cta_start_us  # part of an empty kernel, too
        if calls == 1:
            return once + c.event_floor_us - start
        left = sum(min(r.chip.owed, r.chip.dram_bytes) for r in records)
        return (
            once
            + left / c.dram_bandwidth * 1e6
            + c.launch_gap_us
            + (c.event_floor_us - start) / calls
        )

    return Reported(
        time_us=total("nominal", sum(r.time_us for r in records)),
        low_us=total("low", sum(r.low_us for r in records)),
        high_us=total("high", sum(r.high_us for r in records)),
        kernel_us=sum(r.time_us for r in records),
        floor_us=sum(floor_us(r) for r in records),
        bound_by=bound_by(longest),
        calls=calls,
    )
