"""CUDA graphs of compiled programs: made node by node, or captured; each call of shim/*graph*.cpp.

A graph that is launched runs its nodes one after the other, in an order that its dependencies
allow; the checker is told which of them nothing orders (host/replay.py). Arguments of kernels are
copied when a node gets them, as the driver does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from b200.errors import EmulatorError
from b200.host import refusals
from b200.host.captures import Capture, KernelWork, Work
from b200.host.cuda import graph_nodes as g
from b200.host.cuda.graph_memory import GraphMemory
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda.modules import Modules
from b200.host.poke import poke
from b200.host.refusals import Refused, invalid
from b200.host.replay import Replay

_FREES_FIRST = 1  # of the flags: cudaGraphInstantiateFlagAutoFreeOnLaunch
_CHANGED, _OF_OTHER_KIND = 2, 3  # CU_GRAPH_EXEC_UPDATE_ERROR_*: TOPOLOGY_, NODE_TYPE_CHANGED


class Graphs:
    """Graphs and executable graphs of a process, by handle. on_event: what a node does with an
    event, WAIT or RECORD.
    """

    def __init__(self, modules: Modules, on_event: Callable[[int, int], None] = lambda *_: None):
        self.modules, self.runtime, self._on_event = modules, modules.runtime, on_event
        self._graphs: dict[int, g.Graph] = {}
        self._executables: dict[int, g.Graph] = {}
        self._owner: dict[int, int] = {}  # node -> its graph
        self._clones: dict[int, dict[int, int]] = {}  # graph -> node of its original -> its own
        self._replays: dict[int, Replay] = {}  # of executable graphs that have run
        self._captures: dict[Capture, g.Captured] = {}  # those that have not ended
        self._arguments: dict[int, Any] = {}  # node -> its kernel's, for programs that ask
        self._frees: set[int] = set()  # executable graphs that free what they have allocated
        self.memory = GraphMemory(modules)

    # --- graphs
    def make(self, nodes: g.Graph | None = None) -> int:
        handle = self.modules.handle()
        self._graphs[handle] = nodes or {}
        self._owner |= dict.fromkeys(self._graphs[handle], handle)
        return handle

    def graph(self, handle: int) -> g.Graph:
        if handle not in self._graphs:
            raise g.unknown("graph", handle)
        return self._graphs[handle]

    def executable(self, handle: int) -> g.Graph:
        if handle not in self._executables:
            raise g.unknown("executable graph", handle)
        return self._executables[handle]

    def put(self, graph: int, after: Sequence[int], kind: int, *work: Work, child: int = 0) -> int:
        nodes, handle = self.graph(graph), self.modules.handle()
        g.check_known(nodes, after)
        nodes[handle] = g.GraphNode(kind, work, frozenset(after), child)
        self._owner[handle] = graph
        return handle

    def so_far(self, capture: Capture) -> g.Captured:
        """The graph of a capture with a node for all that it has recorded."""
        if capture not in self._captures:
            self._captures[capture] = g.Captured(self.make())
        found = self._captures[capture]
        for work, after in found.new(capture):
            kind = work.kind if isinstance(work, g.HostWork) else g.KERNEL
            found.nodes.append(self.put(found.graph, found.handles(after), kind, work))
        return found

    def captured(self, capture: Capture) -> int:
        graph = self.so_far(capture).graph
        del self._captures[capture]
        return graph

    def instantiated(self, graph: int) -> int:
        handle = self.modules.handle()
        self._executables[handle] = self._flat(graph)
        return handle

    def _flat(self, graph: int) -> g.Graph:
        """The nodes in an order that they can be carried out in; one of a graph has its works."""
        return {
            handle: replace(node, work=self._works(node.child)) if node.child else node
            for handle, node in g.in_order(self.graph(graph)).items()
        }

    def _works(self, graph: int) -> tuple[Work, ...]:
        return tuple(work for node in self._flat(graph).values() for work in node.work)

    def launch(self, executable: int, queue: int) -> None:
        nodes = self.executable(executable)
        replay = self._replays.setdefault(executable, Replay(self.runtime, self._put))
        try:
            if executable in self._frees:
                for work in (work for node in nodes.values() for work in node.work):
                    self.memory.free_again(work)
            replay.run({h: (node.after, node.work) for h, node in nodes.items()}, queue)
        except EmulatorError as error:
            self.modules.note_failure(error)
            raise

    def _put(self, work: Work, queue: int) -> None:
        if isinstance(work, g.HostWork) and work.kind in g.NAMES:
            self.runtime.works.moved(g.NAMES[work.kind], g.spans(work), queue)
        self.runtime.put(work, queue)

    # --- calls of shim/*graph*.cpp: handles, and addresses of what is read and written
    def create(self, out: int) -> None:
        poke(out, "<Q", self.make())

    def clone(self, out: int, graph: int) -> None:
        poke(out, "<Q", self._cloned(graph))

    def _cloned(self, graph: int) -> int:
        """A copy, whose nodes have handles of their own, and whose nodes of graphs have copies."""
        nodes = self.graph(graph)
        g.check_without_memory(nodes, "cloned")
        own = {node: self.modules.handle() for node in nodes}
        copies = {
            own[handle]: replace(
                node,
                after=frozenset(own[x] for x in node.after),
                child=self._cloned(node.child) if node.child else 0,
            )
            for handle, node in nodes.items()
        }
        made = self.make(copies)
        self._clones[made] = own
        return made

    def find_in_clone(self, out: int, node: int, clone: int) -> None:
        own = self._clones.get(clone, {}).get(node, 0)
        if own not in self.graph(clone):
            raise g.unknown("node of the copy", node)
        poke(out, "<Q", own)

    def destroy(self, graph: int) -> None:
        for handle, node in self.graph(graph).items():
            self._forget(handle, node)
        del self._graphs[graph]

    def _forget(self, handle: int, node: g.GraphNode) -> None:
        """A node is destroyed, and the graph that it owns."""
        self._owner.pop(handle, None)
        self._arguments.pop(handle, None)
        if node.child:
            self.destroy(node.child)

    def destroy_executable(self, executable: int) -> None:
        self.executable(executable)
        del self._executables[executable]
        self._replays.pop(executable, None)
        self._frees.discard(executable)

    def add(self, out: int, graph: int, after: int, count: int, kind: int, *words: int) -> None:
        """A new node. kind: a cudaGraphNodeType; words: what `_work` takes."""
        before, work = g.handles(after, count), self._work(kind, words)
        poke(out, "<Q", self.put(graph, before, kind, work))

    def add_empty(self, out: int, graph: int, after: int, count: int) -> None:
        poke(out, "<Q", self.put(graph, g.handles(after, count), g.EMPTY))

    def add_child(self, out: int, graph: int, after: int, count: int, child: int) -> None:
        """A node that owns a copy of a graph."""
        before, own = g.handles(after, count), self._cloned(child)
        poke(out, "<Q", self.put(graph, before, g.CHILD, child=own))

    def _work(self, kind: int, words: Sequence[int]) -> Work:
        """What a node does. words: a kernel, and where its launch is; where the words of a copy or
        a fill are; a function of the host and its data; bytes, and where their address is written;
        an address that is freed; an event.
        """
        if kind == g.KERNEL:
            kernel, at = words
            return self.modules.prepared(kernel, LaunchWords.from_address(at))
        if kind == g.COPY:
            return g.copy_of(words[0], self.modules.own)
        if kind == g.FILL:
            return g.fill_of(words[0], self.modules.own)
        if kind == g.HOST:
            return g.call_of(*words)
        if kind == g.ALLOCATES:
            if not words[0]:
                raise invalid("a node of a graph allocates no bytes")
            return self.memory.allocates(*words)
        if kind == g.FREES:
            return self.memory.frees(*words)
        return g.HostWork(kind, lambda: self._on_event(kind, *words), tuple(words))

    def child_of(self, node: int, out: int) -> None:
        """The graph that a node owns, which may be changed there."""
        found = self._graph_of(node)[node]
        if not found.child:
            raise invalid(f"expected a node that owns a graph, got one of kind {found.kind}")
        poke(out, "<Q", found.child)

    def add_dependencies(self, graph: int, first: int, then: int, count: int) -> None:
        nodes = self.graph(graph)
        for before, node in zip(g.handles(first, count), g.handles(then, count), strict=True):
            g.check_known(nodes, (before, node))
            if before == node:
                raise invalid("a node of a graph cannot come after itself")
            nodes[node] = replace(nodes[node], after=nodes[node].after | {before})

    def set(self, node: int, executable: int, kind: int, *words: int) -> None:
        """Other parameters of a node. executable: 0 for the node of the graph itself."""
        nodes, work = self._of(node, executable), self._work(kind, words)
        if node not in nodes:
            raise g.unknown("node of the graph", node)
        nodes[node] = replace(nodes[node], work=(work,))

    def _of(self, node: int, executable: int) -> g.Graph:
        if executable:
            return self.executable(executable)
        return self.graph(self._owner.get(node, 0))

    def nodes(self, graph: int, out: int, count: int, roots: int) -> None:
        """The number of nodes, and as many handles as `out` has room for. roots: those alone that
        come after none.
        """
        found = [h for h, node in self.graph(graph).items() if not (roots and node.after)]
        g.write_handles(out, count, found)

    def edges(self, graph: int, first: int, then: int, count: int) -> None:
        """The number of edges, and their two ends as far as there is room."""
        found = [(x, node) for node, kept in self.graph(graph).items() for x in sorted(kept.after)]
        g.write_handles(first, count, [edge[0] for edge in found], leave=True)
        g.write_handles(then, count, [edge[1] for edge in found])

    def neighbours(self, node: int, out: int, count: int, behind: int) -> None:
        """Nodes that come just before a node, or behind it."""
        nodes = self._graph_of(node)
        after = [x for x, kept in nodes.items() if node in kept.after]
        g.write_handles(out, count, after if behind else sorted(nodes[node].after))

    def remove_dependencies(self, graph: int, first: int, then: int, count: int) -> None:
        nodes = self.graph(graph)
        for before, node in zip(g.handles(first, count), g.handles(then, count), strict=True):
            g.check_known(nodes, (before, node))
            g.check_without_memory(nodes, "cut")
            if before not in nodes[node].after:
                raise invalid("the graph has no such edge")
            nodes[node] = replace(nodes[node], after=nodes[node].after - {before})

    def destroy_node(self, node: int) -> None:
        nodes = self._graph_of(node)
        g.check_without_memory(nodes, "cut")
        self._forget(node, nodes.pop(node))
        for other, kept in nodes.items():
            nodes[other] = replace(kept, after=kept.after - {node})

    def _graph_of(self, node: int) -> g.Graph:
        if node not in self._owner:
            raise g.unknown("node of a graph", node)
        return self.graph(self._owner[node])

    def kind_of(self, node: int, out: int) -> None:
        poke(out, "<i", self._graph_of(node)[node].kind)

    def instantiate(self, out: int, graph: int, flags: int) -> None:
        made = self.instantiated(graph)
        if flags & _FREES_FIRST:
            self._frees.add(made)
        poke(out, "<Q", made)

    def parameters(self, node: int, kind: int, out: int) -> None:
        """The words of a node's parameters. kind: what the program takes it for."""
        found = self._graph_of(node)[node]
        if found.kind != kind or len(found.work) != 1:
            said = f"expected a node of kind {kind} with parameters, got one of kind {found.kind}"
            raise invalid(said)
        (work,) = found.work
        if isinstance(work, g.HostWork):
            return poke(out, f"<{len(work.words)}Q", *work.words)
        assert isinstance(work, KernelWork)
        words, held = g.words_of(self.modules, work)
        self._arguments[node] = held
        poke(out, f"<{len(words)}Q", *words)

    def update(self, executable: int, graph: int, out: int) -> None:
        """An executable graph takes the parameters of a graph of the same shape. out: a
        CUgraphExecUpdateResult, in the case of an error.
        """
        old, new = self.executable(executable), self._flat(graph)
        poke(out, "<Q", _CHANGED)
        if g.edges(old) != g.edges(new):
            raise Refused(refusals.GRAPH_UPDATE, "the graph has other nodes or edges")
        poke(out, "<Q", _OF_OTHER_KIND)
        if [n.kind for n in old.values()] != [n.kind for n in new.values()]:
            raise Refused(refusals.GRAPH_UPDATE, "the graph's nodes are of other kinds")
        for handle, node in zip(list(old), new.values(), strict=True):
            old[handle] = replace(old[handle], work=node.work)

    def begin_capture(self, queue: int) -> None:
        if self.runtime.recording is not None:
            raise Refused(refusals.ILLEGAL_STATE, "a graph is under capture")
        self.runtime.recording = Capture(queue)

    def capture_info(self, queue: int, out: int) -> None:
        """Whether a queue is under capture, its graph, and where the nodes lie that the next one
        comes after, and how many.
        """
        capture = self.runtime.capture_of(queue)
        if capture is None:
            return poke(out, "<4Q", 0, 0, 0, 0)
        found = self.so_far(capture)
        last = found.handles(capture.ends.get(capture.known(queue), ()))
        poke(out, "<4Q", 1, found.graph, found.address(last), len(last))

    def capture_after(self, queue: int, nodes: int, count: int, is_set: int) -> None:
        """The next node of a capture comes after these: alone, or as well."""
        capture = self.runtime.capture_of(queue)
        if capture is None:
            raise Refused(refusals.ILLEGAL_STATE, "the queue is not under capture")
        found, asked = self.so_far(capture), g.handles(nodes, count)
        g.check_known(self.graph(found.graph), asked)
        known, works = capture.known(queue), found.works(asked)
        before = () if is_set else capture.ends.get(known, ())
        capture.ends[known] = tuple(dict.fromkeys((*before, *works)))

    def end_capture(self, out: int) -> None:
        capture, self.runtime.recording = self.runtime.recording, None
        if capture is None:
            raise Refused(refusals.ILLEGAL_STATE, "a capture ends that has not begun")
        if capture.unjoined:
            raise Refused(refusals.UNJOINED, "a capture ends with work that it has not joined")
        poke(out, "<Q", self.captured(capture))

    def fill(self, at: int, queue: int) -> None:
        """A fill by elements of several bytes: now, or in the graph under capture."""
        self.runtime.put(g.fill_of(at, self.modules.own), queue)

    def call_host(self, function: int, data: int, queue: int) -> None:
        """cudaLaunchHostFunc: now, or in the graph under capture."""
        self.runtime.put(g.call_of(function, data), queue)
