"""The runs of an executable graph: which of its works come after which, and after what else.

A run comes after what is in its queue, and after earlier runs of the same executable graph, in
whatever queue (CUDA runtime API, cudaGraphLaunch). In a run an edge orders, and nothing else does
(CUDA programming guide, "CUDA Graphs"). Works that no edge orders are put into branches, each a
queue to the checker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from b200.host.captures import Work

if TYPE_CHECKING:
    from b200.host.runtime import Runtime

Nodes = Mapping[int, tuple[Collection[int], Sequence[Work]]]  # what each comes after, and does


class Replay:
    """The runs of one executable graph. put: carries out a work, or records it, in a queue."""

    def __init__(self, runtime: Runtime, put: Callable[[Work, int], None]):
        self.runtime, self.put = runtime, put
        self._reached: dict[int, int] = {}  # by the latest run
        self._branches: list[int] = []

    def run(self, nodes: Nodes, queue: int) -> None:
        """Carry out the nodes in their order, or record them where the queue is under capture."""
        queues = self.runtime.queues
        if self.runtime.capture_of(queue) is not None:
            for _, works in nodes.values():
                self._put(works, queue)
            return
        queues.comes_after(queue, self._reached)
        start, lanes = queues.reached(queue), self._lanes(nodes, queue)
        done: dict[int, dict[int, int]] = {}
        several = len({*lanes.values()}) > 1
        for lane in (queue, *lanes.values()):
            self.runtime.ends(lane)
        for node, (after, works) in nodes.items():
            lane = lanes[node]
            for reached in (start, *(done[before] for before in after)) if several else ():
                queues.comes_after(lane, reached)
            self._put(works, lane)
            if several:
                done[node] = queues.reached(lane)
        for reached in done.values():
            queues.comes_after(queue, reached)
        self.runtime.ends(queue)
        self._reached = queues.reached(queue)

    def _put(self, works: Sequence[Work], queue: int) -> None:
        for work in works:
            self.put(work, queue)

    def _lanes(self, nodes: Nodes, queue: int) -> dict[int, int]:
        """The queue or branch of each node: that of a node just before it which has no other yet,
        else a branch of its own.
        """
        lanes: dict[int, int] = {}
        free = iter([*self._branches])
        ends: dict[int, int] = {}  # the latest node of a lane -> the lane
        for node, (after, _) in nodes.items():
            before = next((b for b in after if b in ends), None)
            if before is not None:
                lane = ends.pop(before)
            elif lanes:
                lane = next(free, None) or self._branch()
            else:
                lane = queue
            lanes[node] = ends[node] = lane
        return lanes

    def _branch(self) -> int:
        self._branches.append(self.runtime.queues.branch())
        return self._branches[-1]
