"""Which launches a queue (a CUDA stream) has, and who waits for them.

Launches run when they are called, so results never depend on this; on a GPU the work of a queue
that nobody waits for may not be done when its result is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from b200.checker.launches.other_queues import BRANCHES
from b200.host.callers import caller

HOST = -1  # the program itself, as one that waits
DEFAULT = 0  # the legacy default queue
KEPT = 64  # launches of a queue whose accesses are remembered
KEPT_WAITS = 16  # waits of a queue, and records of an event, that are remembered
_SAME = {1: DEFAULT}  # cudaStreamLegacy


class EventRecord(NamedTuple):
    """An event is recorded. number: how many records of it came before."""

    number: int
    queue: int
    place: str


class EventWait(NamedTuple):
    """A queue, or the host, waits for an event. records: how many of it there have been."""

    event: int
    records: int
    place: str


class Queues:
    """A clock for each queue and for the host: how many launches of each queue come before what is
    put there next. Launches of a queue that was not made non-blocking are ordered with those of the
    default queue (CUDA, "Stream synchronization behavior"). follows: told of a queue that waits for
    another, of that, and of the event. records: told of an event and its queue. place: the line of
    the program that is being executed.
    """

    def __init__(self) -> None:
        self._non_blocking: set[int] = set()
        self._branches = 0
        self.follows: Callable[[int, int, int | None], None] = lambda *_: None
        self.records: Callable[[int, int], None] = lambda *_: None
        self.place: Callable[[], str] = caller
        self.begin()

    def begin(self) -> None:
        """Nothing has been launched, on queues that were made before either."""
        self._launched: dict[int, list[str]] = defaultdict(list)  # kernels of each queue
        self._known: dict[int, dict[int, int]] = defaultdict(dict)
        self._events: dict[int, dict[int, int]] = {}
        self._records: dict[int, list[EventRecord]] = defaultdict(list)  # by event
        self._waits: dict[int, list[EventWait]] = defaultdict(list)  # by queue
        self._made: set[int] = set()
        # queue -> number of a launch -> what it has accessed
        self._footprints: dict[int, dict[int, Any]] = defaultdict(dict)

    def made(self, queue: int, non_blocking: bool) -> None:
        self._made.add(queue)
        if non_blocking:
            self._non_blocking.add(queue)

    def launched(self, queue: int, kernel: str) -> None:
        queue = _SAME.get(queue, queue)
        self._learn(queue, self._known[HOST])
        self._legacy(queue)
        self._launched[queue].append(kernel)
        self._known[queue][queue] = len(self._launched[queue])

    def number(self, queue: int) -> int:
        """The one number of a queue that has two."""
        return _SAME.get(queue, queue)

    def waited(self, queue: int) -> bool:
        """Whether the host has waited for all that a queue had before its latest launch."""
        queue = _SAME.get(queue, queue)
        return self._known[HOST].get(queue, 0) >= len(self._launched[queue]) - 1

    def _legacy(self, queue: int) -> None:
        """The order between the default queue and those that were not made non-blocking."""
        if queue == DEFAULT:
            for other in [*self._launched]:
                if other not in self._non_blocking and other != DEFAULT:
                    self._learn(DEFAULT, self._known[other])
        elif queue not in self._non_blocking and queue != HOST:
            self._learn(queue, self._known[DEFAULT])

    @property
    def several(self) -> bool:
        """Whether the program has queues beside the default one."""
        return bool(self._made) or len(self._launched) > 1

    def unordered(self, queue: int) -> list[tuple[int, Any]]:
        """(queue, footprint) of launches that the latest launch of `queue` is not ordered after."""
        queue = _SAME.get(queue, queue)
        known, done = self._known[queue], self._known[HOST]
        found = []
        for other, footprints in self._footprints.items():
            for number in [n for n in footprints if n <= done.get(other, 0)]:
                del footprints[number]  # whatever is launched later comes after it
            if other != queue:
                late = (f for n, f in footprints.items() if n > known.get(other, 0))
                found += [(other, footprint) for footprint in late]
        return found

    def users(self, address: int) -> list[tuple[int, int, Any]]:
        """(queue, number, footprint) of remembered launches that use the allocation there."""
        return [
            (queue, number, footprint)
            for queue, footprints in self._footprints.items()
            for number, footprint in footprints.items()
            if address in footprint.places
        ]

    def forget(self, address: int) -> None:
        """An allocation is gone: no launch has used it."""
        for footprints in self._footprints.values():
            for footprint in footprints.values():
                footprint.places.pop(address, None)

    def knows(self, waiter: int, queue: int, number: int) -> bool:
        """Whether what `waiter` (a queue, HOST) does next comes after a launch of a queue."""
        return waiter == queue or self._known[waiter].get(queue, 0) >= number

    def keep(self, queue: int, footprint: Any) -> None:
        """Keep what the latest launch of a queue has accessed."""
        queue = _SAME.get(queue, queue)
        kept = self._footprints[queue]
        kept[len(self._launched[queue])] = footprint
        if len(kept) > KEPT:
            del kept[next(iter(kept))]

    def recorded(self, event: int, queue: int) -> None:
        """An event is recorded in a queue. From now on waits for it are for this record."""
        queue = _SAME.get(queue, queue)
        self._legacy(queue)
        self._events[event] = dict(self._known[queue])
        self.records(event, queue)
        records = self._records[event]
        records.append(EventRecord(self._count(event), queue, self.place()))
        del records[:-KEPT_WAITS]

    def waits(self, queue: int, event: int) -> None:
        """A queue, or HOST, waits for an event: for its latest record, so for nothing where there
        is none.
        """
        queue = _SAME.get(queue, queue)
        self._learn(queue, self._events.get(event, {}))
        waits = self._waits[queue]
        waits.append(EventWait(event, self._count(event), self.place()))
        del waits[:-KEPT_WAITS]
        if event in self._events:
            self.follows(queue, self._records[event][-1].queue, event)

    def forget_event(self, event: int) -> None:
        """An event is gone; another may get its number."""
        self._events.pop(event, None)
        self._records.pop(event, None)

    def _count(self, event: int) -> int:
        records = self._records[event]
        return records[-1].number + 1 if records else 0

    def missed(self, queue: int, other: int) -> str:
        """Why an event by which `queue`, or HOST, waits for `other` does not do so: it is recorded
        too late, or again; "" where no such wait is known.
        """
        other, its = _SAME.get(other, other), f"queue {other:#x}"
        for wait in reversed(self._waits[_SAME.get(queue, queue)]):
            for record in self._records[wait.event]:
                if record.queue != other:
                    continue
                if wait.records == 0:
                    return (
                        f"the wait at {wait.place} is for an event without a record, so for"
                        f" nothing: {its} records it at {record.place}, later"
                    )
                if record.number >= wait.records:
                    return (
                        f"the wait at {wait.place} is for an earlier record of its event, which"
                        f" {its} records again at {record.place}, later"
                    )
                records = (r for r in self._records[wait.event] if r.number == wait.records - 1)
                latest = next(records, None)
                if latest is not None and latest.queue != other:
                    return (
                        f"the event that {its} records at {record.place} is recorded again at"
                        f" {latest.place}, in queue {latest.queue:#x}: the wait at {wait.place} is"
                        " for the latest record"
                    )
        return ""

    def joins(self, queue: int, other: int) -> None:
        """A queue, or HOST, waits for all that another has so far."""
        self._legacy(_SAME.get(other, other))
        self._learn(_SAME.get(queue, queue), self._known[_SAME.get(other, other)])
        self.follows(queue, other, None)

    def branch(self) -> int:
        """A queue for a branch of a graph, which nothing but the graph orders."""
        self._branches += 1
        self.made(BRANCHES + self._branches, non_blocking=True)
        return BRANCHES + self._branches

    def reached(self, queue: int) -> dict[int, int]:
        """What comes before whatever is put into a queue next."""
        queue = _SAME.get(queue, queue)
        self._learn(queue, self._known[HOST])
        self._legacy(queue)
        return dict(self._known[queue])

    def comes_after(self, queue: int, reached: dict[int, int]) -> None:
        """What is put into a queue next comes after that."""
        self._learn(_SAME.get(queue, queue), reached)

    def finished(self) -> None:
        """The host has waited for everything."""
        self._known[HOST] = {queue: len(names) for queue, names in self._launched.items()}

    def unfinished(self, queue: int) -> list[tuple[int, str]]:
        """(queue, its latest kernel) of work that neither the host nor `queue` has waited for."""
        queue = _SAME.get(queue, queue)
        found = []
        for other, names in self._launched.items():
            ordered = DEFAULT in (queue, other) and not {queue, other} & self._non_blocking
            known = max(self._known[of].get(other, 0) for of in (queue, HOST))
            if other != queue and not ordered and known < len(names):
                found.append((other, names[-1]))
        return found

    def _learn(self, queue: int, clock: dict[int, int]) -> None:
        mine = self._known[queue]
        for other, count in clock.items():
            mine[other] = max(mine.get(other, 0), count)
