"""The clocks of a launch whose time is not modelled.

%clock and %globaltimer stand at 0 for as long as some warp does more than poll. A loop that ends
after so many cycles (a pause, a wait with a time limit) would never end. So where all warps that
could run stand (spin.py) and nothing else can happen, the clocks go on, twice as far each time,
until one of the warps leaves its loop or FARTHEST is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from b200.chip.machine import Machine

CLOCKS = ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi")
NEAREST, FARTHEST = 1 << 10, 1 << 40  # cycles, and nanoseconds alike


def clocks_at(cycles: int) -> dict[str, int]:
    """The special registers of time."""
    low, high = cycles & 0xFFFFFFFF, cycles >> 32
    values = (low, cycles, high, cycles, low, high)
    return dict(zip(CLOCKS, values, strict=True))


def clocks_go_on(machine: Machine) -> bool:
    """Let the clocks of the launch go on; False if its kernel reads none, or they have gone far."""
    if machine.cycles >= FARTHEST or machine.code.special.isdisjoint(CLOCKS):
        return False
    machine.cycles = max(NEAREST, 2 * machine.cycles)
    now = clocks_at(machine.cycles)
    for cluster in machine.resident:
        for warp in (w for cta in cluster.ctas for w in cta.warps):
            warp.special.update(now)
    return True
