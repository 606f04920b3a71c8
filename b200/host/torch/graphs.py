"""CUDA graphs of torch: capture records launches, replay runs them.

Kernel parameters are recorded by value, as the driver does it.
"""

from __future__ import annotations

import contextlib
import warnings

from b200.host.captures import Capture, Work
from b200.host.runtime import Runtime

# what PyTorch says
EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
    "wrong device or stream."
)


def patch_torch(runtime: Runtime) -> None:
    """Put `torch.cuda.CUDAGraph` and `torch.cuda.graph` in place."""
    import torch

    class Graph:
        """Recorded launches; `replay` runs them in order."""

        def __init__(self, keep_graph: bool = False):
            self.launches: list[Work] = []

        def replay(self):
            for launch in self.launches:
                runtime.put(launch, torch.cuda.current_stream().cuda_stream)

        def reset(self):
            self.launches.clear()

    @contextlib.contextmanager
    def capture(cuda_graph: Graph, pool=None, stream=None, **_options):
        queue = stream or torch.cuda.Stream()
        with torch.cuda.stream(queue):
            captured = runtime.recording = Capture(queue.cuda_stream)
            try:
                yield
            finally:
                runtime.recording = None
                cuda_graph.launches = captured.launches
        if not captured.launches:
            warnings.warn(EMPTY, stacklevel=3)

    torch.cuda.CUDAGraph = Graph
    torch.cuda.graph = capture
