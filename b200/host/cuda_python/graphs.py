"""CUDA graphs of cuda.bindings: captured, or made node by node (../cuda/graphs.py).

Dependencies come as a list of nodes and their number, parameters as objects of cuda.bindings, whose
`kernelParams` is the address of an array of pointers.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from b200.host.captures import Capture
from b200.host.cuda.graph_nodes import COPY, EMPTY, FILL, HOST, KERNEL, call_of, fill_of
from b200.host.cuda.graphs import Graphs
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda_python.host_memory import address_of
from b200.host.refusals import UNJOINED, Refused, invalid


class GraphFunctions:
    """Functions by name. kinds: the module's types of a graph, a node, an executable graph. move:
    copies (to, source, bytes).
    """

    def __init__(self, graphs: Graphs, kinds: tuple[Any, ...], move: Callable[..., None]):
        self.graphs, self.move = graphs, move
        self.graph_type, self.node_type, self.executable_type = kinds

    def named(self, prefix: str) -> dict[str, Callable[..., tuple]]:
        """prefix: "cuda" or "cu"."""
        graphs = self.graphs
        names = {
            "GraphCreate": lambda *_flags: (self.graph_type(graphs.make()),),
            "GraphAddKernelNode": self.add(KERNEL, self._kernel),
            "GraphAddMemsetNode": self.add(FILL, _fill),
            "GraphAddEmptyNode": self.add(EMPTY, lambda: ()),
            "GraphAddHostNode": self.add(HOST, lambda p: (call_of(int(p.fn), int(p.userData)),)),
            "GraphGetNodes": self.nodes,
            "GraphInstantiate": self.instantiate,
            "GraphLaunch": lambda graph, queue: graphs.launch(int(graph), int(queue)) or (),
            "GraphDestroy": lambda graph: graphs.destroy(int(graph)) or (),
            "GraphExecDestroy": lambda graph: graphs.destroy_executable(int(graph)) or (),
            "StreamBeginCapture": self.begin_capture,
            "StreamEndCapture": self.end_capture,
        }
        if prefix == "cuda":
            names["GraphAddMemcpyNode1D"] = self.add(COPY, self._copy)
        return {prefix + name: action for name, action in names.items()}

    def add(self, kind: int, make: Callable[..., tuple]) -> Callable[..., tuple]:
        """A function that adds a node. make(parameters): its work."""

        def call(graph, after, count, *parameters: Any):
            before = [int(node) for node in (after or ())[: int(count)]]
            return (self.node_type(self.graphs.put(int(graph), before, kind, *make(*parameters))),)

        return call

    def nodes(self, graph, room=0) -> tuple:
        found = self.graphs.graph(int(graph))
        return [self.node_type(node) for node in found], len(found)

    def instantiate(self, graph, *_flags: Any) -> tuple:
        return (self.executable_type(self.graphs.instantiated(int(graph))),)

    def begin_capture(self, *_queue: Any) -> tuple:
        """All queues are under capture: cuda-python's launches do not say theirs."""
        self.graphs.runtime.recording = Capture()
        return ()

    def end_capture(self, _queue) -> tuple:
        runtime = self.graphs.runtime
        capture, runtime.recording = runtime.recording, None
        if capture is None:
            raise invalid("a capture ended that was never begun")
        if capture.unjoined:
            raise Refused(UNJOINED, "a capture ends with work that it has not joined")
        return (self.graph_type(self.graphs.captured(capture)),)

    def _kernel(self, p) -> tuple:
        words = LaunchWords.of(_size(p, "grid"), _size(p, "block"), p.sharedMemBytes)
        words.arguments, words.packed = int(p.kernelParams), int(p.extra)
        kernel = int(p.func) or int(getattr(p, "kern", 0))
        return (self.graphs.modules.prepared(kernel, words),)

    def _copy(self, to, source, size, _kind) -> tuple:
        there, here = address_of(to), address_of(source)
        return (lambda: self.move(there, here, int(size)),)


def _size(p: Any, name: str) -> tuple[int, int, int]:
    """A grid or a block of the runtime's parameters, or of the driver's."""
    found = getattr(p, f"{name}Dim", None)
    if found is not None:
        return found.x, found.y, found.z
    x, y, z = (int(getattr(p, f"{name}Dim{axis}")) for axis in "XYZ")
    return x, y, z


def _fill(p: Any, *_context: Any) -> tuple:
    words = (int(p.dst), int(p.value), p.elementSize, p.width, p.height, p.pitch)
    held = ctypes.create_string_buffer(struct.pack("<6Q", *map(int, words)))
    return (fill_of(ctypes.addressof(held), int),)
