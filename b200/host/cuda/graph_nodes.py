"""The nodes of a CUDA graph, and what is asked of all of them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from b200.host import refusals
from b200.host.captures import Work
from b200.host.cuda.graph_memory import ALLOCATES, FREES
from b200.host.poke import poke
from b200.host.refusals import Refused


@dataclass(frozen=True)
class Node:
    """kind: its number in cudaGraphNodeType. work: what it does. after: nodes that come before.
    child: the handle of the graph that it owns and carries out, 0 for none.
    """

    kind: int
    work: tuple[Work, ...]
    after: frozenset[int] = field(default_factory=frozenset)
    child: int = 0


Graph = dict[int, Node]


def in_order(graph: Graph) -> Graph:
    """The nodes in an order that their dependencies allow; Refused where they go round."""
    done: Graph = {}
    left = dict(graph)
    while left:
        ready = [h for h, node in left.items() if node.after <= done.keys()]
        if not ready:
            raise Refused(refusals.INVALID_VALUE, "the nodes of the graph wait for each other")
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
        raise Refused(
            refusals.NOT_SUPPORTED, f"a graph that allocates or frees memory cannot be {what}"
        )


def check_known(nodes: Graph, asked: Sequence[int]) -> None:
    for node in asked:
        if node not in nodes:
            raise unknown("node of the graph", node)


def unknown(what: str, handle: int) -> Refused:
    return Refused(refusals.INVALID_VALUE, f"no {what} has the handle {handle:#x}")


def write_handles(out: int, count: int, found: list[int], leave: bool = False) -> None:
    """Handles where there is room for the number at `count`, zeros behind them; then how many there
    are. out: 0 where the number alone is asked. leave: the number stays as it is.
    """
    if out:
        (room,) = struct.unpack("<Q", ctypes.string_at(count, 8))
        given = found[:room] + [0] * max(0, room - len(found))
        poke(out, f"<{len(given)}Q", *given)
    if not leave:
        poke(count, "<Q", len(found))


def handles(at: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", ctypes.string_at(at, 8 * count)) if count else ()
