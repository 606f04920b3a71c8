"""What lies between two events of a program."""

from __future__ import annotations

import sys
import time

from b200.host.refusals import INVALID_HANDLE, Refused
from b200.host.runtime import Runtime


class EventClock:
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
        from b200.clock import Timed

        machine = getattr(self._runtime.gpu, "machine", None)
        return machine is not None and isinstance(machine.order, Timed)

    def _say(self, what: str) -> None:
        if not self._said:
            print(f"b200: times between CUDA events are {what}", file=sys.stderr)
            self._said = True


class Events:
    """When the events of a program were recorded, by their numbers. without_time: those that were
    made to keep none.
    """

    def __init__(self, runtime: Runtime):
        self._queues, self._clock = runtime.queues, EventClock(runtime)
        self._recorded: dict[int, tuple[float, int]] = {}
        self.without_time: set[int] = set()

    def record(self, event: int, queue: int) -> None:
        self._queues.recorded(event, queue)
        self._recorded[event] = self._clock.now()

    def forget(self, event: int) -> None:
        self._recorded.pop(event, None)
        self.without_time.discard(event)

    def milliseconds(self, start: int, end: int) -> float:
        """The time between two events; Refused where one has none."""
        if not self.without_time.isdisjoint((start, end)):
            said = "a time was asked of an event that was made to keep none"
            raise Refused(INVALID_HANDLE, said)
        first, last = self._recorded.get(start), self._recorded.get(end)
        if first is None or last is None:
            said = "a time was asked for between events not yet recorded"
            raise Refused(INVALID_HANDLE, said)
        return self._clock.milliseconds(first, last)
