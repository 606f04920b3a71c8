"""What the host puts into queues beside launches, and what it touches itself.

Copies, fills and torch's own functions are work of a queue as launches are. Here they run when they
are called, so what is kept of each is what it has read and written
(checker/launches/other_queues.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from b200.checker.launches.dependent_launch import Footprint, units
from b200.checker.launches.other_queues import Act, ActAccess, against
from b200.errors import Fault
from b200.host.given_back import GivenBack
from b200.host.queues import HOST

if TYPE_CHECKING:
    from b200.host.runtime import Runtime


class Works:
    """The work of one program. pinned: whether the host shares memory with copies that it does not
    wait for.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.pinned = False
        self.begin()

    def begin(self) -> None:
        self.given_back = GivenBack(self.runtime.queues)

    @property
    def looks(self) -> bool:
        """Whether anything can go wrong by order, and somebody looks."""
        runtime = self.runtime
        if not (self.pinned or runtime.queues.several) or runtime.recording is not None:
            return False
        return runtime.checker is not None

    @property
    def overlap(self) -> bool:
        """Whether a launch may still run when a dependent one starts."""
        runtime = self.runtime
        checker = runtime.checker if runtime.recording is None else None
        return checker is not None and bool(checker.in_flight)

    def made(self, address: int, nbytes: int, queue: int) -> None:
        if self.looks:
            self._report(self.given_back.take(address, nbytes, queue))

    def gone(self, address: int, nbytes: int) -> None:
        """The last tensor of a storage is gone. On a GPU the next one there has other memory."""
        if self.looks:
            self.given_back.give_back(address, nbytes)
            self.runtime.queues.forget(address)

    def copied(self, to: int, source: int, nbytes: int, queue: int, waits: bool) -> None:
        """A copy between addresses. waits: whether the host waits for it."""
        self.moved("cudaMemcpy", ((source, nbytes, False), (to, nbytes, True)), queue)
        if waits:
            self.runtime.queues.joins(HOST, queue)

    def of_allocator(self, name: str, address: int, queue: int) -> None:
        """Memory is allocated or freed in the order of a queue. It may be used in between (CUDA
        programming guide, "Stream Ordered Memory Allocator").
        """
        if self.looks and (first := self.span(address, 1, True)):
            act = Act(name, self.runtime.queues.place())
            self.put(queue, act, self.span(address, first[0].region.size, True))

    def moved(self, name: str, spans: Iterable[tuple[int, int, bool]], queue: int) -> None:
        """A copy or a fill. spans: address, bytes, whether they are written."""
        self.runtime.ends(queue)
        if self.looks:
            accesses = [access for span in spans for access in self.span(*span)]
            self.put(queue, Act(name, self.runtime.queues.place()), accesses)

    def span(self, address: int, nbytes: int, write: bool) -> list[ActAccess]:
        """The access of contiguous bytes; none where they are in no allocation: the host's own."""
        try:
            region = self.runtime.gpu.memory.region(address, max(nbytes, 1))
        except Fault:
            return []
        return [ActAccess(region, units(address - region.base, nbytes), write)]

    def put(self, queue: int, act: Act, accesses: Iterable[ActAccess]) -> None:
        queues, accesses = self.runtime.queues, list(accesses)
        queues.launched(queue, act.text)
        missed = functools.partial(queues.missed, queue)
        self._report(against(act, queue, accesses, queues.unordered(queue), missed))
        footprint: Any = Footprint(act.text)
        for region, index, write in accesses:
            footprint.add(region, index, write, act)
        queues.keep(queue, footprint)

    def by_host(self, act: Act, accesses: Iterable[ActAccess]) -> None:
        """What the host does itself."""
        queues = self.runtime.queues
        missed = functools.partial(queues.missed, HOST)
        self._report(against(act, None, accesses, queues.unordered(HOST), missed))

    def _report(self, found: list) -> None:
        """Findings are a launch's: the latest one's, or the next one's."""
        launches = self.runtime.gpu.launches
        where = launches[-1].findings if launches else self.runtime.mismatched
        if where is not None:
            known = {(f.diagnosis, f.loc, f.other) for f in where}
            new = [f for f in found if (f.diagnosis, f.loc, f.other) not in known]
            where.extend(new)
            if new:
                self.runtime.told()
