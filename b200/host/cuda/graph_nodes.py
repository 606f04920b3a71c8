"""The nodes of CUDA graphs, what those of them do that launch nothing, and what is asked of all.
And the graph of a capture that goes on: programs ask for its nodes, and add some.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from b200.host.captures import Capture, KernelWork, Work
from b200.host.cuda.modules import Modules
from b200.host.poke import peek, poke
from b200.host.refusals import NOT_SUPPORTED, Refused, invalid

KERNEL, COPY, FILL, HOST, CHILD, EMPTY, WAIT, RECORD = range(8)  # cudaGraphNodeType
ALLOCATES, FREES = 10, 11
_HOST_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass(frozen=True, eq=False)
class HostWork:
    """What a node does that launches nothing. kind: of its node. words: its parameters, as the C++
    side has them (shim/graph_words.h).
    """

    kind: int
    act: Callable[[], Any]
    words: tuple[int, ...] = ()

    def __call__(self) -> None:
        self.act()


@dataclass(frozen=True)
class GraphNode:
    """kind: its number in cudaGraphNodeType. work: what it does. after: nodes that come before.
    child: the handle of the graph that it owns and carries out, 0 for none.
    """

    kind: int
    work: tuple[Work, ...]
    after: frozenset[int] = field(default_factory=frozenset)
    child: int = 0


Graph = dict[int, GraphNode]


def in_order(graph: Graph) -> Graph:
    """The nodes in an order that their dependencies allow; Refused where they go round."""
    done: Graph = {}
    left = dict(graph)
    while left:
        ready = [h for h, node in left.items() if node.after <= done.keys()]
        if not ready:
            raise invalid("the nodes of the graph wait for each other")
        done[ready[0]] = left.pop(ready[0])
    return done


def edges(graph: Graph) -> list[list[int]]:
    """Of each node, by its place in the order, the places of those that come before."""
    place = {handle: i for i, handle in enumerate(graph)}
    return [sorted(place[x] for x in node.after) for node in graph.values()]


def check_without_memory(nodes: Graph, what: str) -> None:
    """CUDA programming guide, "Graph Memory Nodes": such graphs keep their nodes and edges, and
    cannot be cloned.
    """
    if any(node.kind in (ALLOCATES, FREES) for node in nodes.values()):
        said = f"a graph that allocates or frees memory cannot be {what}"
        raise Refused(NOT_SUPPORTED, said)


def check_known(nodes: Graph, asked: Sequence[int]) -> None:
    for node in asked:
        if node not in nodes:
            raise unknown("node of the graph", node)


def unknown(what: str, handle: int) -> Refused:
    return invalid(f"no {what} has the handle {handle:#x}")


def write_handles(out: int, count: int, found: list[int], leave: bool = False) -> None:
    """Handles where there is room for the number at `count`, zeros behind them; then how many there
    are. out: 0 where the number alone is asked. leave: the number stays as it is.
    """
    if out:
        (room,) = peek(count, "<Q")
        given = found[:room] + [0] * max(0, room - len(found))
        poke(out, f"<{len(given)}Q", *given)
    if not leave:
        poke(count, "<Q", len(found))


def handles(at: int, count: int) -> tuple[int, ...]:
    return peek(at, f"<{count}Q")


def copy_of(at: int, own: Callable[[int], int]) -> HostWork:
    """The copy of 9 words: to and from; bytes of a row; rows, slices; from row to row and from
    slice to slice, at the destination and at the source. own: where the bytes of an address lie.
    """
    to, source, width, height, depth, *steps = peek(at, "<9Q")

    def act() -> None:
        for z in range(depth):
            for y in range(height):
                ahead = (y * steps[i] + z * steps[i + 1] for i in (0, 2))
                there, here = (x + n for x, n in zip((to, source), ahead, strict=True))
                ctypes.memmove(own(there), own(here), width)

    if width * height * depth and not (to and source):
        raise invalid(f"a copy: expected two addresses, got {to:#x} and {source:#x}")
    return HostWork(COPY, act, (to, source, width, height, depth, *steps))


def line_of(to: int, source: int, nbytes: int) -> tuple[int, ...]:
    """The words of a copy of bytes in a row."""
    return (to, source, nbytes, 1, 1, *4 * (nbytes,))


def fill_of(at: int, own: Callable[[int], int]) -> HostWork:
    """The fill of 6 words: address, value, bytes of an element, elements of a row, rows, and bytes
    from row to row. own: as in copy_of.
    """
    to, value, size, width, height, pitch = peek(at, "<6Q")
    if size not in (1, 2, 4) or not to:
        said = f"expected elements of 1, 2 or 4 bytes and an address, got {size} bytes at {to:#x}"
        raise invalid(f"a fill: {said}")
    row = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little") * width

    def act() -> None:
        for y in range(height):
            ctypes.memmove(own(to + y * pitch), row, len(row))

    return HostWork(FILL, act, (to, value, size, width, height, pitch))


NAMES = {COPY: "cudaMemcpy", FILL: "cudaMemset"}


def spans(work: HostWork) -> Iterator[tuple[int, int, bool]]:
    """What a copy or a fill accesses: address, bytes, whether they are written."""
    if work.kind == FILL:
        to, _, size, width, height, pitch = work.words
        yield from ((to + y * pitch, width * size, True) for y in range(height))
        return
    to, source, width, height, depth, *steps = work.words
    for z, y in itertools.product(range(depth), range(height)):
        yield source + y * steps[2] + z * steps[3], width, False
        yield to + y * steps[0] + z * steps[1], width, True


def call_of(function: int, data: int) -> HostWork:
    """A function of the host, which takes one pointer."""
    return HostWork(HOST, lambda: _HOST_CALL(function)(data or None), (function, data))


@dataclass
class Captured:
    """graph: its handle. nodes: one for each work of the capture. A node that the program has added
    itself is a negative number to the capture.
    """

    graph: int
    nodes: list[int] = field(default_factory=list[int])
    _shown: ctypes.Array | None = field(default=None, repr=False)

    def new(self, capture: Capture) -> list[tuple[Work, tuple[int, ...]]]:
        """What has no node yet, and what it comes after."""
        first = len(self.nodes)
        return list(zip(capture.launches[first:], capture.after[first:], strict=True))

    def handles(self, works: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes of what comes before a work."""
        return tuple(self.nodes[number] if number >= 0 else -number for number in works)

    def works(self, handles: tuple[int, ...]) -> tuple[int, ...]:
        """The capture's numbers of nodes."""
        number = {handle: i for i, handle in enumerate(self.nodes)}
        return tuple(number.get(handle, -handle) for handle in handles)

    def address(self, handles: tuple[int, ...]) -> int:
        """Where handles lie, until the next call."""
        self._shown = (ctypes.c_uint64 * max(1, len(handles)))(*handles)
        return ctypes.addressof(self._shown)


def words_of(modules: Modules, launch: KernelWork) -> tuple[tuple[int, ...], object]:
    """A launch that was prepared, as numbers: its kernel, grid, block, dynamic bytes, and the
    address of its arguments' addresses, which live as long as the second result.
    """
    handle, function = modules.handle_of_kernel(launch.program, launch.kernel)
    data = ctypes.create_string_buffer(launch.params, max(len(launch.params), 1))
    first = ctypes.addressof(data)
    places = [first + parameter.offset for parameter in function.kernel.params]
    array = (ctypes.c_uint64 * max(len(places), 1))(*places)
    shape = launch.shape
    words = (handle, *shape.grid, *shape.block, shape.smem, ctypes.addressof(array))
    return words, (data, array)
