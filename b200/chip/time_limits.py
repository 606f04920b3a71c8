"""Waits for an mbarrier that give up.

try_wait returns false once a time limit of the system has passed (PTX ISA 9.7.13.15.16), and a warp
may go on then: it counts its tries, looks at a clock, or traps. Here a warp whose wait fails is
parked, and the limits pass only where nothing else can happen any more. Parked warps then go on, as
if each try took its time, until they have left their loops. Who comes back with the same registers
stands (spin.py). If nobody has left by then, all are parked again, and the launch is deadlocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.chip.sync.mbarrier import AnyOf, MBarrier
from b200.registry import Waitable

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment, WarpState
    from b200.chip.machine import Machine

LOOKS = 5 << 18  # in vain, that a launch carries out after limits have passed
EACH = 1 << 10  # of these, that it costs at least if limits pass again


class TimeLimits:
    """The time limits of a launch's waits.

    over: warps whose limit has passed, and that have waited for nothing since. left: looks in vain
    that are still carried out. gave_up: the latest wait of each warp whose limit has passed.
    counting: warps that still looked when no look was left. clk: simulated time of a look in vain.
    """

    def __init__(self, looks: int = LOOKS, clk: int = 0) -> None:
        self.over: set[WarpState] = set()
        self.looks = self.left = looks
        self.clk = clk
        self.gave_up: dict[WarpState, str] = {}
        self.counting: set[WarpState] = set()

    def passed(self, warp: Fragment) -> bool:
        """Whether a wait that fails goes on, and answers that the phase is not over."""
        if warp.state not in self.over:
            return False
        if self.left <= 0:
            self.counting.add(warp.state)
            return False
        self.left -= 1
        warp.time += self.clk
        return True

    def pass_by(self, machine: Machine) -> bool:
        """Nothing can happen any more: let the limits of all waits pass. False if that has led to
        nothing before, and where nobody waits for an mbarrier.
        """
        if self.over:
            self.over.clear()
            self.left = 0
            return True
        waiting = [f for f in machine.fragments() if _limited(f.waits_for)]
        if self.left <= 0 or not waiting:
            return False
        self.left -= EACH
        self.over = {f.state for f in waiting}
        machine.wait.since = machine.cycles
        for fragment in waiting:
            waitable = fragment.waits_for
            assert waitable is not None
            self.gave_up[fragment.state] = waitable.describe()
            waitable.waiters.remove(fragment)
            fragment.wake()
        return True

    def told(self) -> str:
        """Lines for the report of a fault: which waits had given up before it, "" if none had."""
        if not self.gave_up:
            return ""
        lines = [
            f"    warp {state.index} of CTA {state.cta.index} had waited for {what}"
            for state, what in list(self.gave_up.items())[:4]
        ]
        return "\n".join(
            (
                "\n  before that nothing could go on any more, so waits gave up, as try_wait does"
                " after a time limit:",
                *lines,
            )
        )

    def bounds(self) -> list[str]:
        """Lines for the report of a deadlock: whose loops may have a bound of their own."""
        if self.clk or not self.counting:  # with a clock, loops without a bound look on, too
            return []
        state = next(iter(self.counting))
        return [
            f"  warp {state.index} of CTA {state.cta.index} has looked {self.looks:,} times in a"
            " loop that counts or looks at a clock: a bound of the loop's own may end it later"
        ]


def _limited(waitable: Waitable | None) -> bool:
    return isinstance(waitable, MBarrier | AnyOf)
