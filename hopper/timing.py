"""Times work on a Hopper GPU, in microseconds between two CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LAUNCHES, REPLAYS = 40, 5
ROUNDS = 20
AHEAD = 20_000_000  # clk that the GPU is busy, 10 ms, in which the host fills the queue


def between_events(work: Callable[[], object]) -> float:
    """Microseconds that the GPU takes for what `work` enqueues."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def captured(call: Callable[[int], None], calls: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the kernels that call(0), call(1) ... enqueue. call(0) runs once before."""
    import torch

    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    return graph


def graph_us(call: Callable[[int], None]) -> float:
    """Microseconds a call, of LAUNCHES calls in a CUDA graph: the median of REPLAYS replays."""
    graph = captured(call, LAUNCHES)
    times = [between_events(graph.replay) / LAUNCHES for _ in range(REPLAYS)]
    return sorted(times)[REPLAYS // 2]


def queue_us(call: Callable[[int], None], calls: int, rounds: int = ROUNDS) -> float:
    """Microseconds a call, of `calls` calls that wait in the GPU's queue: the median of the rounds,
    each of which takes 10 ms and its calls.
    """
    import torch

    def enqueue() -> None:
        for i in range(calls):
            call(i)

    times = []
    for _ in range(rounds):
        torch.cuda._sleep(AHEAD)
        times.append(between_events(enqueue) / calls)
    return sorted(times)[rounds // 2]
