"""A limit to the seconds that a launch may be looked at: what it has done by then was checked."""

from __future__ import annotations

import time
from math import inf, prod

from b200.chip.fragment import Fragment
from b200.chip.launch import Arguments
from b200.chip.machine import Machine
from b200.chip.watcher import Abreast, Watcher
from b200.errors import EmulatorError
from b200.program.names import readable
from b200.program.translated import Translated

BUDGET = "budget"  # the kind of the error


class _Limit(Abreast):
    """The same limit to the turns of CTAs abreast."""

    def __init__(self, budget: TimeBudget):
        self.budget = budget

    def begins(self, machine: Machine) -> None:
        machine.watchers = (*machine.watchers, self.budget)


class TimeBudget(Watcher):
    """Ends a launch after `seconds` of wall clock by an EmulatorError of kind "budget", whose text
    says how far it has come. until: when that is, by time.monotonic(), inf before a launch.
    """

    until = inf

    def __init__(self, seconds: float):
        self.seconds = seconds

    def begins(self, code: Translated, arguments: Arguments) -> None:
        shape, _ = arguments
        self._name, self._ctas = readable(code.kernel.name), shape.ctas
        self._cluster, self.until = prod(shape.cluster), time.monotonic() + self.seconds

    def abreast(self) -> Abreast:
        return _Limit(self)

    def turns(self, warp: Fragment) -> None:
        if time.monotonic() > self.until:
            started = self.machine.started * self._cluster
            raise EmulatorError(
                BUDGET,
                f"checked until here: {self._name} was stopped after {self.seconds:g} s, when"
                f" {started} of {self._ctas} CTAs had started",
            )
