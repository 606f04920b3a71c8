"""CUDA graphs of torch: capture records launches and torch's own operations, replay runs them.

Kernel parameters are recorded by value, as the driver does it. Tensors that are made during the
capture live as long as the graph, as its memory pool does (PyTorch, "CUDA semantics", CUDA graphs).
"""

# Names of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch

from b200.host.captures import Capture, Work
from b200.host.replay import Replay
from b200.host.runtime import Runtime
from b200.host.torch.recording import Recording

# what PyTorch says
EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
    "wrong device or stream."
)


def patch_torch(runtime: Runtime) -> None:
    """Put torch.cuda's `CUDAGraph`, `graph` and `graph_pool_handle` in place."""
    CUDAGraph.runtime = runtime
    names = {
        "CUDAGraph": CUDAGraph,
        "graph": _Capturing,
        "graph_pool_handle": _new_pool,
        "make_graphed_callables": torch.cuda.graphs.make_graphed_callables,  # torch's own works
    }
    for name, value in names.items():
        setattr(torch.cuda, name, value)
        setattr(torch.cuda.graphs, name, value)


_numbers = itertools.count(1)


def _new_pool() -> tuple[int, int]:
    """A handle of a memory pool. Here each graph keeps its own memory."""
    return 0, next(_numbers)


class CUDAGraph:
    """torch.cuda.CUDAGraph: recorded work; `replay` puts it into the current queue, in order."""

    runtime: Runtime

    def __init__(self, keep_graph: bool = False):
        self.launches: list[Work] = []
        self.kept: list[Any] = []
        self.runs = Replay(self.runtime, self.runtime.put)
        self.mode: Recording | None = None
        self._pool = _new_pool()

    def capture_begin(self, pool: tuple | None = None, capture_error_mode: str = "global") -> None:
        queue = torch.cuda.current_stream().cuda_stream
        if queue == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture,"
                " it's ok to replay them on the default stream.)"
            )
        self._pool = pool or self._pool
        capture = self.runtime.recording = Capture(queue)
        self.mode = Recording(capture, torch.cuda.is_current_stream_capturing)
        self.mode.__enter__()

    def capture_end(self) -> None:
        if self.mode is None:
            raise RuntimeError("capture_end of a graph whose capture has not begun")
        mode, self.mode, self.runtime.recording = self.mode, None, None
        mode.__exit__(None, None, None)
        self.launches, self.kept = mode.capture.launches, mode.capture.kept
        self.runs = Replay(self.runtime, self.runtime.put)
        if not self.launches:
            warnings.warn(EMPTY, stacklevel=3)

    def instantiate(self) -> None:
        """A graph can be replayed as it is."""

    def replay(self) -> None:
        before = ((), *((number,) for number in range(len(self.launches))))
        works = ((work,) for work in self.launches)
        nodes = dict(enumerate(zip(before, works)))  # torch's own go on in the current queue
        self.runs.run(nodes, torch.cuda.current_stream().cuda_stream)

    def reset(self) -> None:
        self.launches, self.kept = [], []

    def pool(self) -> tuple[int, int]:
        return self._pool


class _Capturing:
    """torch.cuda.graph: inside, a graph is captured on a queue of its own."""

    def __init__(
        self,
        cuda_graph,
        pool: tuple | None = None,
        stream=None,
        capture_error_mode: str = "global",
        **_options: Any,
    ):
        self.graph, self.pool, self.mode = cuda_graph, pool, capture_error_mode
        self.queue = torch.cuda.stream(stream or torch.cuda.Stream())

    def __enter__(self) -> None:
        self.queue.__enter__()
        self.graph.capture_begin(self.pool, capture_error_mode=self.mode)

    def __exit__(self, *exception: Any) -> None:
        try:
            with warnings.catch_warnings():
                if exception[0] is not None:
                    warnings.simplefilter("ignore")
                self.graph.capture_end()
        finally:
            self.queue.__exit__(*exception)
