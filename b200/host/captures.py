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
    """What was recorded so far. queues: those that are under capture; None stands for all. kept:
    what lives as long as the graph, as the memory that was made for it.
    """

    def __init__(self, queue: int | None = None):
        self.launches: list[Work] = []
        self.kept: list[Any] = []
        self.queues = None if queue is None else {queue}

    def takes(self, queue: int | None) -> bool:
        """Whether a launch on a queue is recorded; None for one whose queue is not known."""
        return queue is None or self.queues is None or queue in self.queues

    def waits(self, queue: int, other: int) -> None:
        """A queue waits for what is on another."""
        if self.queues is not None and other in self.queues:
            self.queues.add(queue)

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
