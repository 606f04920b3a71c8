"""CUDA graphs of compiled programs: made node by node, or captured; each call of shim/*graph*.cpp.

A graph that is launched runs its nodes one after the other, in an order that its dependencies
allow. Arguments of kernels are copied when a node gets them, as the driver does it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from b200.errors import EmulatorError
from b200.host import refusals
from b200.host.captures import Capture, Work
from b200.host.cuda.graph_memory import GraphMemory, MemoryWork
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda.modules import Modules
from b200.host.poke import poke
from b200.host.refusals import Refused

KERNEL, COPY, FILL, HOST, CHILD, EMPTY, WAIT, RECORD = range(8)  # cudaGraphNodeType
_HOST_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostWork:
    """What a node does that launches nothing. kind: of its node."""

    def __init__(self, kind: int, act: Callable[[], Any]):
        self.kind, self._act = kind, act

    def __call__(self) -> None:
        self._act()


@dataclass(frozen=True)
class Node:
    """kind: its number in cudaGraphNodeType. work: what it does. after: nodes that come before."""

    kind: int
    work: tuple[Work, ...]
    after: frozenset[int] = field(default_factory=frozenset)


Graph = dict[int, Node]


class Graphs:
    """Graphs and executable graphs of a process, by handle. on_event: what a node does with an
    event, WAIT or RECORD.
    """

    def __init__(self, modules: Modules, on_event: Callable[[int, int], None] = lambda *_: None):
        self.modules, self.runtime, self._on_event = modules, modules.runtime, on_event
        self._graphs: dict[int, Graph] = {}
        self._executables: dict[int, Graph] = {}
        self._owner: dict[int, int] = {}  # node -> its graph
        self._clones: dict[int, dict[int, int]] = {}  # graph -> node of its original -> its own
        self._captures: dict[Capture, int] = {}  # those whose graph has a handle before they end
        self.memory = GraphMemory(modules)

    # --- graphs
    def make(self, nodes: Graph | None = None, handle: int | None = None) -> int:
        """A graph, by a new handle or one that it has."""
        handle = self.modules.handle() if handle is None else handle
        self._graphs[handle] = {} if nodes is None else nodes
        self._owner |= dict.fromkeys(self._graphs[handle], handle)
        return handle

    def graph(self, handle: int) -> Graph:
        if handle not in self._graphs:
            raise _unknown("graph", handle)
        return self._graphs[handle]

    def executable(self, handle: int) -> Graph:
        if handle not in self._executables:
            raise _unknown("executable graph", handle)
        return self._executables[handle]

    def put(self, graph: int, after: Sequence[int], kind: int, *work: Work) -> int:
        """A new node of a graph."""
        nodes, handle = self.graph(graph), self.modules.handle()
        _check_known(nodes, after)
        nodes[handle] = Node(kind, work, frozenset(after))
        self._owner[handle] = graph
        return handle

    def captured(self, capture: Capture) -> int:
        """The graph of a capture: each node comes after the one that was recorded before. It may
        have had a handle since the capture began.
        """
        handle = self._captures.pop(capture, None)
        nodes: Graph = {} if handle is None else self.graph(handle)
        for work in capture.launches:
            kind = work.kind if isinstance(work, (HostWork, MemoryWork)) else KERNEL
            nodes[self.modules.handle()] = Node(kind, (work,), frozenset(list(nodes)[-1:]))
        return self.make(nodes, handle)

    def instantiated(self, graph: int) -> int:
        handle = self.modules.handle()
        self._executables[handle] = _in_order(self.graph(graph))
        return handle

    def run(self, executable: int, queue: int) -> None:
        try:
            for node in self.executable(executable).values():
                for work in node.work:
                    self.runtime.put(work, queue)
        except EmulatorError as error:
            self.modules.note_failure(error)
            raise

    def changed(self, graph: Graph, node: int, *work: Work) -> None:
        """A node of a graph, or of an executable one, gets other parameters."""
        if node not in graph:
            raise _unknown("node of the graph", node)
        graph[node] = replace(graph[node], work=work)

    # --- calls of shim/*graph*.cpp: handles, and addresses of what is read and written
    def create(self, out: int) -> None:
        poke(out, "<Q", self.make())

    def clone(self, out: int, graph: int) -> None:
        """The nodes of the copy have handles of their own."""
        nodes = self.graph(graph)
        own = {node: self.modules.handle() for node in nodes}
        copies = {
            own[handle]: replace(node, after=frozenset(own[x] for x in node.after))
            for handle, node in nodes.items()
        }
        made = self.make(copies)
        self._clones[made] = own
        poke(out, "<Q", made)

    def find_in_clone(self, out: int, node: int, clone: int) -> None:
        own = self._clones.get(clone, {}).get(node, 0)
        if own not in self.graph(clone):
            raise _unknown("node of the copy", node)
        poke(out, "<Q", own)

    def destroy(self, graph: int) -> None:
        for node in self.graph(graph):
            self._owner.pop(node, None)
        del self._graphs[graph]

    def destroy_executable(self, executable: int) -> None:
        self.executable(executable)
        del self._executables[executable]

    def add_kernel(self, out: int, graph: int, after: int, count: int, *words: int) -> None:
        kernel, at = words
        work = self.modules.prepared(kernel, LaunchWords.from_address(at))
        poke(out, "<Q", self.put(graph, _handles(after, count), KERNEL, work))

    def add_copy(self, out: int, graph: int, after: int, count: int, at: int) -> None:
        poke(
            out, "<Q", self.put(graph, _handles(after, count), COPY, copy_of(at, self.modules.own))
        )

    def add_fill(self, out: int, graph: int, after: int, count: int, at: int) -> None:
        poke(
            out, "<Q", self.put(graph, _handles(after, count), FILL, fill_of(at, self.modules.own))
        )

    def add_host(self, out: int, graph: int, after: int, count: int, *words: int) -> None:
        poke(out, "<Q", self.put(graph, _handles(after, count), HOST, call_of(*words)))

    def add_allocation(self, out: int, graph: int, after: int, count: int, *words: int) -> None:
        """words: bytes, and where their address is written."""
        if not words[0]:
            raise Refused(refusals.INVALID_VALUE, "a node of a graph allocates no bytes")
        work = self.memory.allocates(*words)
        poke(out, "<Q", self.put(graph, _handles(after, count), work.kind, work))

    def add_free(self, out: int, graph: int, after: int, count: int, address: int) -> None:
        work = self.memory.frees(address)
        poke(out, "<Q", self.put(graph, _handles(after, count), work.kind, work))

    def memory_attribute(self, number: int, out: int) -> None:
        self.memory.attribute(number, out)

    def reset_memory_attribute(self, number: int) -> None:
        self.memory.reset(number)

    def add_event(self, out: int, graph: int, after: int, count: int, *words: int) -> None:
        """words: WAIT or RECORD, and the event."""
        kind, event = words
        work = HostWork(kind, lambda: self._on_event(kind, event))
        poke(out, "<Q", self.put(graph, _handles(after, count), kind, work))

    def add_empty(self, out: int, graph: int, after: int, count: int) -> None:
        poke(out, "<Q", self.put(graph, _handles(after, count), EMPTY))

    def add_child(self, out: int, graph: int, after: int, count: int, child: int) -> None:
        work = [w for node in _in_order(self.graph(child)).values() for w in node.work]
        poke(out, "<Q", self.put(graph, _handles(after, count), CHILD, *work))

    def add_dependencies(self, graph: int, first: int, then: int, count: int) -> None:
        nodes = self.graph(graph)
        for before, node in zip(_handles(first, count), _handles(then, count), strict=True):
            _check_known(nodes, (before, node))
            if before == node:
                raise Refused(refusals.INVALID_VALUE, "a node of a graph cannot come after itself")
            nodes[node] = replace(nodes[node], after=nodes[node].after | {before})

    def set_kernel(self, node: int, kernel: int, at: int, executable: int) -> None:
        """executable: 0 for the node of the graph itself."""
        work = self.modules.prepared(kernel, LaunchWords.from_address(at))
        self.changed(self._of(node, executable), node, work)

    def set_copy(self, node: int, at: int, executable: int) -> None:
        self.changed(self._of(node, executable), node, copy_of(at, self.modules.own))

    def set_fill(self, node: int, at: int, executable: int) -> None:
        self.changed(self._of(node, executable), node, fill_of(at, self.modules.own))

    def _of(self, node: int, executable: int) -> Graph:
        if executable:
            return self.executable(executable)
        return self.graph(self._owner.get(node, 0))

    def nodes(self, graph: int, out: int, count: int, roots: int) -> None:
        """The number of nodes, and as many handles as `out` has room for. roots: those alone that
        come after none.
        """
        found = [h for h, node in self.graph(graph).items() if not (roots and node.after)]
        _write_handles(out, count, found)

    def edges(self, graph: int, first: int, then: int, count: int) -> None:
        """The number of edges, and their two ends as far as there is room."""
        found = [(x, node) for node, kept in self.graph(graph).items() for x in sorted(kept.after)]
        _write_handles(first, count, [edge[0] for edge in found], leave=True)
        _write_handles(then, count, [edge[1] for edge in found])

    def neighbours(self, node: int, out: int, count: int, behind: int) -> None:
        """Nodes that come just before a node, or behind it."""
        nodes = self._graph_of(node)
        after = [x for x, kept in nodes.items() if node in kept.after]
        _write_handles(out, count, after if behind else sorted(nodes[node].after))

    def remove_dependencies(self, graph: int, first: int, then: int, count: int) -> None:
        nodes = self.graph(graph)
        for before, node in zip(_handles(first, count), _handles(then, count), strict=True):
            _check_known(nodes, (before, node))
            if before not in nodes[node].after:
                raise Refused(refusals.INVALID_VALUE, "the graph has no such edge")
            nodes[node] = replace(nodes[node], after=nodes[node].after - {before})

    def destroy_node(self, node: int) -> None:
        nodes = self._graph_of(node)
        del nodes[node], self._owner[node]
        for other, kept in nodes.items():
            nodes[other] = replace(kept, after=kept.after - {node})

    def _graph_of(self, node: int) -> Graph:
        if node not in self._owner:
            raise _unknown("node of a graph", node)
        return self.graph(self._owner[node])

    def kind_of(self, node: int, out: int) -> None:
        poke(out, "<i", self._graph_of(node)[node].kind)

    def instantiate(self, out: int, graph: int) -> None:
        poke(out, "<Q", self.instantiated(graph))

    def update(self, executable: int, graph: int) -> None:
        """An executable graph takes the parameters of a graph of the same shape."""
        old, new = self.executable(executable), list(_in_order(self.graph(graph)).values())
        if [n.kind for n in old.values()] != [n.kind for n in new]:
            raise Refused(refusals.GRAPH_UPDATE, "the graph's nodes are of other kinds")
        for handle, node in zip(list(old), new, strict=True):
            old[handle] = replace(old[handle], work=node.work)

    def launch(self, executable: int, queue: int) -> None:
        self.run(executable, queue)

    def begin_capture(self, queue: int) -> None:
        if self.runtime.recording is not None:
            raise Refused(refusals.ILLEGAL_STATE, "a graph is under capture")
        self.runtime.recording = Capture(queue)

    def capture_info(self, queue: int, out: int) -> None:
        """Whether a queue is under capture, and the graph that is going to have its nodes."""
        capture = self.runtime.recording
        if capture is None or not capture.takes(queue):
            return poke(out, "<2Q", 0, 0)
        if capture not in self._captures:
            self._captures[capture] = self.make()
        poke(out, "<2Q", 1, self._captures[capture])

    def end_capture(self, out: int) -> None:
        capture, self.runtime.recording = self.runtime.recording, None
        if capture is None:
            raise Refused(refusals.ILLEGAL_STATE, "a capture ends that has not begun")
        poke(out, "<Q", self.captured(capture))

    def fill(self, at: int, queue: int) -> None:
        """A fill by elements of several bytes: now, or in the graph under capture."""
        self.runtime.put(fill_of(at, self.modules.own), queue)

    def call_host(self, function: int, data: int, queue: int) -> None:
        """cudaLaunchHostFunc: now, or in the graph under capture."""
        self.runtime.put(call_of(function, data), queue)


def _in_order(graph: Graph) -> Graph:
    """The nodes in an order that their dependencies allow; Refused where they go round."""
    done: Graph = {}
    left = dict(graph)
    while left:
        ready = [h for h, node in left.items() if node.after <= done.keys()]
        if not ready:
            raise Refused(refusals.INVALID_VALUE, "the nodes of the graph wait for each other")
        done[ready[0]] = left.pop(ready[0])
    return done


def _check_known(nodes: Graph, asked: Sequence[int]) -> None:
    for node in asked:
        if node not in nodes:
            raise _unknown("node of the graph", node)


def _unknown(what: str, handle: int) -> Refused:
    return Refused(refusals.INVALID_VALUE, f"no {what} has the handle {handle:#x}")


def copy_of(at: int, own: Callable[[int], int]) -> HostWork:
    """The copy of 9 words: to and from; bytes of a row; rows, slices; from row to row and from
    slice to slice, at the destination and at the source. own: where the bytes of an address lie.
    """
    to, source, width, height, depth, *steps = struct.unpack("<9Q", ctypes.string_at(at, 72))

    def act() -> None:
        for z in range(depth):
            for y in range(height):
                ahead = (y * steps[i] + z * steps[i + 1] for i in (0, 2))
                there, here = (x + n for x, n in zip((to, source), ahead, strict=True))
                ctypes.memmove(own(there), own(here), width)

    if width * height * depth and not (to and source):
        raise Refused(refusals.INVALID_VALUE, "a copy at a null pointer")
    return HostWork(COPY, act)


def fill_of(at: int, own: Callable[[int], int]) -> HostWork:
    """The fill of 6 words: address, value, bytes of an element, elements of a row, rows, and bytes
    from row to row. own: as in copy_of.
    """
    to, value, size, width, height, pitch = struct.unpack("<6Q", ctypes.string_at(at, 48))
    if size not in (1, 2, 4) or not to:
        raise Refused(refusals.INVALID_VALUE, f"a fill of elements of {size} bytes at {to:#x}")
    row = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little") * width

    def act() -> None:
        for y in range(height):
            ctypes.memmove(own(to + y * pitch), row, len(row))

    return HostWork(FILL, act)


def call_of(function: int, data: int) -> HostWork:
    """A function of the host, which takes one pointer."""
    return HostWork(HOST, lambda: _HOST_CALL(function)(data or None))


def _write_handles(out: int, count: int, found: list[int], leave: bool = False) -> None:
    """Handles where there is room for the number at `count`, zeros behind them; then how many there
    are. out: 0 where the number alone is asked. leave: the number stays as it is.
    """
    if out:
        (room,) = struct.unpack("<Q", ctypes.string_at(count, 8))
        given = found[:room] + [0] * max(0, room - len(found))
        poke(out, f"<{len(given)}Q", *given)
    if not leave:
        poke(count, "<Q", len(found))


def _handles(at: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", ctypes.string_at(at, 8 * count)) if count else ()
