"""What lies between two events of a program."""

from __future__ import annotations

import sys
import time

from b200.host.runtime import Runtime


class Clock:
    """What lies between two events: modelled time where launches take some, else the wall clock of
    the emulation, which says nothing of a B200; stderr says once which.
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._said = False

    def now(self) -> tuple[float, int]:
        return time.perf_counter(), len(self._runtime.gpu.launches)

    def milliseconds(self, start: tuple[float, int], end: tuple[float, int]) -> float:
        launches = self._runtime.gpu.launches[start[1] : end[1]]
        timed = [launch for launch in launches if getattr(launch, "time", None) is not None]
        if len(timed) < len(launches) or not self.is_modelled():
            self._say("the wall clock of the emulation")
            return (end[0] - start[0]) * 1e3
        self._say("modelled")
        if not timed:
            return 0.0
        from b200.clock.call_time import reported

        return reported(timed, 1).time_us / 1e3

    def is_modelled(self) -> bool:
        """Whether launches take modelled time."""
        from b200.clock import Timed

        machine = getattr(self._runtime.gpu, "machine", None)
        return machine is not None and isinstance(machine.order, Timed)

    def _say(self, what: str) -> None:
        if not self._said:
            print(f"b200: times between CUDA events are {what}", file=sys.stderr)
            self._said = True
