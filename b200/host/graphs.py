"""CUDA graphs of torch on a build without CUDA: capture records launches, replay runs them.

Kernel parameters are recorded by value, as the driver does it.
"""

from __future__ import annotations

import contextlib

from b200.host.runtime import Runtime


def patch_torch(runtime: Runtime) -> None:
    """Put `torch.cuda.CUDAGraph` and `torch.cuda.graph` in place."""
    import torch

    class Graph:
        """Recorded launches; `replay` runs them in order."""

        def __init__(self, keep_graph: bool = False):
            self.launches: list[tuple] = []

        def replay(self):
            for launch in self.launches:
                runtime.gpu.launch(*launch)

        def reset(self):
            self.launches.clear()

    @contextlib.contextmanager
    def capture(graph: Graph, **_options):
        runtime.recording = graph.launches
        try:
            yield
        finally:
            runtime.recording = None

    torch.cuda.CUDAGraph = Graph
    torch.cuda.graph = capture
