"""A CUDA graph under capture: which launches go into it.

What is put on the queue under capture is recorded, and what is put on a queue that waits for one
of it (CUDA programming guide, "Cross-stream Dependencies and Events"). A launch on any other queue
runs as always and is no part of the graph: PyTorch captures on a queue of its own, so this is what
a launch comes to that names no queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from b200.checker.finding import Finding
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from b200.host.callers import caller
from b200.program.module import Program
from b200.program.names import readable


@dataclass(frozen=True)
class KernelWork:
    """A launch with all that it needs. params: all parameters as they lie in memory."""

    program: Program
    kernel: str
    shape: Shape
    params: bytes
    cooperative: bool = False

    def carry_out(self, gpu: Gpu) -> Launch:
        rest = self.params, self.shape.dependent, self.cooperative
        return gpu.launch(self.program, self.kernel, *self.shape.sizes, *rest)


# What a graph does: a launch, or what the host does in a queue.
Work = KernelWork | Callable[[], None]


class Capture:
    """What was recorded so far. queues: those that are under capture; None stands for all. after:
    for each work, what comes before it: numbers of works, or what `ends` was set to. ends: for each
    queue, what its next work comes after. kept: what lives as long as the graph, as the memory that
    was made for it.
    """

    def __init__(self, queue: int | None = None):
        self.launches: list[Work] = []
        self.after: list[tuple[int, ...]] = []
        self.kept: list[Any] = []
        self.queues = None if queue is None else {queue}
        self.ends: dict[int | None, tuple[int, ...]] = {}
        self._first = queue
        self._of_others: set[int] = set()  # works of queues that wait for the first one
        self._events: dict[int, tuple[int, ...]] = {}

    def takes(self, queue: int | None) -> bool:
        """Whether a launch on a queue is recorded; None for one whose queue is not known."""
        return queue is None or self.queues is None or queue in self.queues

    def take(self, work: Work, queue: int | None) -> None:
        queue = self.known(queue)
        if queue != self._first:
            self._of_others.add(len(self.launches))
        self.after.append(self.ends.get(queue, ()))
        self.ends[queue] = (len(self.launches),)
        self.launches.append(work)

    def known(self, queue: int | None) -> int | None:
        """The queue that `ends` has something for: the first one for a work that names none."""
        return self._first if queue is None or self.queues is None else queue

    def recorded(self, event: int, queue: int) -> None:
        self._events[event] = self.ends.get(self.known(queue), ())

    def waits(self, queue: int, other: int, event: int | None = None) -> None:
        """A queue waits for what is on another, up to the latest record of an event."""
        if self.queues is None or other not in self.queues:
            return
        self.queues.add(queue)
        before = self.ends.get(other, ()) if event is None else self._events.get(event, ())
        self.ends[queue] = tuple(dict.fromkeys((*self.ends.get(queue, ()), *before)))

    @property
    def unjoined(self) -> bool:
        """Whether work of another queue is left that the first one has not waited for (CUDA
        programming guide, "Cross-stream Dependencies and Events"). Not looked at where the program
        has put nodes between, which have negative numbers.
        """
        left, joined = [*self.ends.get(self._first, ())], set()
        while left:
            work = left.pop()
            if work < 0:
                return False
            if work not in joined:
                joined.add(work)
                left += self.after[work]
        return not self._of_others <= joined

    def missed(self, launch: Any, queue: int) -> None:
        """A launch has run that the capture did not take."""
        if launch.findings is None:
            return
        what = "the default queue" if queue in (0, 1) else f"queue {queue:#x}"
        own = ", ".join(f"{q:#x}" for q in sorted(self.queues or ()))
        launch.findings.append(
            Finding(
                "graph",
                f"{readable(launch.kernel)} is launched on {what} while a graph is captured on "
                "another: it is not part of the graph, and a replay does not run it",
                (
                    f"under capture: queue {own}, the current one of PyTorch",
                    "missing: the current queue (torch.cuda.current_stream().cuda_stream) as an "
                    "argument of the launch",
                ),
                caller(),
            )
        )
