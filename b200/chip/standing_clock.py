"""The clocks of a launch whose time is not modelled.

%clock and %globaltimer stand at 0 for as long as some warp does more than poll. A loop that ends
after so many cycles (a pause, a wait with a time limit) would never end. So where all warps that
could run stand (spin.py) and nothing else can happen, the clocks go on, twice as far each time,
until one of the warps leaves its loop or FARTHEST is reached. They begin anew once threads have
exited or a cluster has started: a grid may wait once for each of its waves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from b200.program.module import CLOCKS

if TYPE_CHECKING:
    from b200.chip.machine import Machine

NEAREST, FARTHEST = 1 << 10, 1 << 40  # cycles, and nanoseconds alike


def clocks_at(cycles: int) -> dict[str, int]:
    """The special registers of time."""
    low, high = cycles & 0xFFFFFFFF, cycles >> 32
    values = (low, cycles, high, cycles, low, high)
    return dict(zip(CLOCKS, values, strict=True))


@dataclass
class ClockWait:
    """The wait of all warps for the clocks. since: where these stood when it began. among: clusters
    that have started, and threads that run.
    """

    since: int = 0
    among: tuple[int, int] = (0, 0)


def clocks_go_on(machine: Machine) -> bool:
    """Let the clocks of the launch go on; False if its kernel reads none, or they have gone far."""
    if machine.code.special.isdisjoint(CLOCKS):
        return False
    wait = machine.wait
    among = machine.started, sum(state.live.bit_count() for state in machine.warps())
    if among != wait.among:
        wait.since, wait.among = machine.cycles, among
    gone = machine.cycles - wait.since
    if gone >= FARTHEST:
        return False
    machine.cycles = wait.since + max(NEAREST, 2 * gone)
    now = clocks_at(machine.cycles)
    for state in machine.warps():
        state.special.update(now)
    return True
