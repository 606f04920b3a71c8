"""Memory that torch's allocator hands out again while another queue may still use it.

PyTorch's caching allocator for CUDA knows the queue in which a tensor was made. When the tensor is
gone its memory is free for what is made next in that queue, at once, since work of one queue is in
order. Another queue that uses the tensor must be waited for first, or the allocator told of it by
`record_stream` (PyTorch, "CUDA semantics", and Tensor.record_stream).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.finding import Finding
from b200.host.callers import caller
from b200.host.queues import HOST, Queues
from b200.program.names import readable

if TYPE_CHECKING:
    from b200.checker.launches.dependent_launch import Footprint

SMALL = 1 << 20  # bytes: allocations up to this size share blocks (kSmallSize, c10/cuda)
KEPT = 64  # tensors that are gone and not handed out


@dataclass(frozen=True)
class LatestUse:
    """The latest work of a queue that uses an allocation. number: of the launch in its queue."""

    queue: int
    number: int
    name: str
    loc: str


@dataclass(frozen=True)
class Free:
    """Memory of a tensor that is gone. queue: in which it was made."""

    nbytes: int
    queue: int
    uses: tuple[LatestUse, ...]


class GivenBack:
    """What is free of the memory of one program."""

    def __init__(self, queues: Queues):
        self.queues = queues
        self.made: dict[int, int] = {}  # address of a storage -> queue
        self.recorded: dict[int, set[int]] = {}  # address -> queues that the allocator was told of
        self.free: list[Free] = []

    def take(self, address: int, nbytes: int, queue: int) -> list[Finding]:
        """A tensor is made: what is wrong with the memory that it may get."""
        self.made[address] = queue
        for free in self.free:
            fits = nbytes <= free.nbytes and (nbytes <= SMALL) == (free.nbytes <= SMALL)
            if free.queue == queue and fits:
                self.free.remove(free)
                late = [use for use in free.uses if self._runs(use, queue)]
                return [_finding(use, free) for use in late[:1]]
        return []

    def give_back(self, address: int, nbytes: int) -> None:
        queue, told = self.made.pop(address, None), self.recorded.pop(address, set())
        if queue is None:
            return
        uses = [
            LatestUse(other, number, footprint.kernel, _last(footprint, address))
            for other, number, footprint in self.queues.users(address)
            if other != queue and other not in told
        ]
        late = tuple(use for use in uses if self._runs(use, queue))
        if late:
            self.free.append(Free(nbytes, queue, late))
            del self.free[:-KEPT]

    def record(self, address: int, queue: int) -> None:
        self.recorded.setdefault(address, set()).add(queue)

    def _runs(self, use: LatestUse, queue: int) -> bool:
        """Whether a use may not be over when work is put into a queue now."""
        return not any(self.queues.knows(waiter, use.queue, use.number) for waiter in (queue, HOST))


def _last(footprint: Footprint, address: int) -> str:
    touched = footprint.places[address]
    number = int(max(touched.written.max(), touched.read.max()))
    return words.line(footprint.instructions[number])


def _finding(use: LatestUse, free: Free) -> Finding:
    name, its, mine = readable(use.name), f"queue {use.queue:#x}", f"queue {free.queue:#x}"
    return Finding(
        "global",
        f"memory that {name}, work of another queue, uses may be handed out again before that is "
        "done",
        (
            f"handed out: {caller()}: a tensor made in {mine}",
            f"used: {use.loc}: {name}, in {its}, of a tensor of {free.nbytes} bytes that was made "
            f"in {mine} and is gone",
            f"missing: Tensor.record_stream of {its}, or {mine} waiting for {its} before the "
            "tensor goes",
        ),
        caller(),
        use.loc,
    )
