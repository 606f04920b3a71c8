"""Computes the time that a benchmark reports from the time of a kernel.

"single": one call between a pair of events. "back to back": the mean of n calls in a row, while the
queue never runs empty. Each of these calls has its own cold inputs, and writes back what the
previous call has stored. Launches that may start before the one before them has ended are dealt to
the chip once more (overlap.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from b200.clock import kind
from b200.clock.constants import Constants
from b200.clock.overlap import queue_us
from b200.clock.profile import bound_by, floor_us
from b200.clock.spread import spread
from b200.clock.timeline import Timeline
from b200.clock.write_back import write_back_us

SWEPT = "all constants at their fast and at their slow ends"


@dataclass(frozen=True)
class Reported:
    """Modelled microseconds of a call as a benchmark would report them.

    apart_us: the same, if no launch started before the one before it has ended. low_us, high_us:
    the range of the time, from the errors that the clock makes on published times
    of kernels of this kind (spread.py); with `Options.sweep_constants`, the time with the constants
    at the ends of their ranges. range_from: which of the two it is, in words. kernel_kind: of the
    longest launch (kind.py). policies: of the caches, which are not timed (kind.py). kernel_us:
    the kernels alone. cupti_us: the sum of what a profiler (CUPTI) shows of each. parts: (name,
    microseconds); time_us is their sum. floor_us: bytes from DRAM at full bandwidth, or the busiest
    tensor core, whichever is longer. bound_by: what limits the kernel, in words. calls: how many
    the mean is of.
    """

    time_us: float
    apart_us: float
    low_us: float
    high_us: float
    range_from: str
    kernel_kind: str
    policies: list[str]
    kernel_us: float
    cupti_us: float
    floor_us: float
    bound_by: str
    calls: int
    parts: list[tuple[str, float]]


def as_cupti_shows_us(kernel_us: float, c: Constants) -> float:
    """What CUPTI shows of a kernel: it begins before the first CTA, and ends after the last."""
    return kernel_us - c.cta_start_us + c.cupti_us


def apart_gaps_us(records: Sequence[Timeline], calls: int, c: Constants) -> float:
    """The gaps of a call, if no launch starts before the one before it has ended."""
    return c.launch_gap_us * (len(records) - (calls == 1))


def gaps_us(records: Sequence[Timeline], calls: int, c: Constants) -> float:
    """What a call takes longer than its kernels alone, between their ends and starts. It is less
    where launches overlap, and below 0 where more than the gap is hidden.
    """
    if len(records) * calls == 1 or not any(record.dependent for record in records):
        return apart_gaps_us(records, calls, c)
    before = c.launch_gap_us if calls > 1 else 0.0  # behind what stands in the queue before
    row = queue_us(records, calls, records[0].options.gpu.placement(), c)
    return (before + row) / calls - sum(record.time_us for record in records)


class TimedLaunch(Protocol):
    """A launch (chip/launch.py) that the clock has timed."""

    @property
    def time(self) -> Timeline: ...


def reported(launches: Sequence[TimedLaunch], calls: int) -> Reported:
    """The time of a call as a benchmark reports it that makes `calls` calls between two events.
    launches: the timed launches of one call.
    """
    records = [launch.time for launch in launches]
    longest = max(records, key=lambda r: r.time_us)

    def parts(end: str, kernel: float) -> list[tuple[str, float]]:
        c = longest.options.gpu.constants(end, longest.options.constants)
        gaps = gaps_us(records, calls, c)
        events = (c.event_floor_us - c.cta_start_us) / calls  # the start is the kernel's, too
        found = [("kernel", kernel), ("launch gap", gaps), ("events", events)]
        if calls > 1:
            written = sum(write_back_us(r.chip.moved, r.time_us, c) for r in records)
            found.insert(2, ("writing back what the call before stored", written))
        return found

    def total(end: str, kernel: float) -> float:
        return sum(us for _, us in parts(end, kernel))

    kernel_us = sum(r.time_us for r in records)
    made_of = parts("nominal", kernel_us)
    time_us, gaps = sum(us for _, us in made_of), dict(made_of)["launch gap"]
    kernel_kind = kind.of(longest)
    policies = sorted({name for record in records for name in kind.policies_of(record)})
    nominal = longest.options.gpu.constants("nominal", longest.options.constants)
    if longest.options.sweep_constants:
        low_us = total("low", sum(r.low_us for r in records))
        high_us = total("high", sum(r.high_us for r in records))
        range_from = SWEPT
    else:
        found = spread(kernel_kind, policies=policies)
        low_us, high_us = time_us * found.low, time_us * found.high
        range_from = found.text
    return Reported(
        time_us=time_us,
        apart_us=time_us - gaps + apart_gaps_us(records, calls, nominal),
        low_us=low_us,
        high_us=high_us,
        range_from=range_from,
        kernel_kind=kernel_kind,
        policies=policies,
        kernel_us=kernel_us,
        cupti_us=sum(as_cupti_shows_us(r.time_us, nominal) for r in records),
        floor_us=sum(floor_us(r) for r in records),
        bound_by=bound_by(longest),
        calls=calls,
        parts=made_of,
    )
