"""What an arrival without memory order hands over, and how grave a conflict behind it is."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.weak_order import Edge, edge_of, severity
from b200.program.module import Instr

ARRIVE = Instr("mbarrier.arrive.relaxed.cluster.shared::cta.b64", ())


def edge(order: list[int], landed: list[int]) -> Edge:
    return Edge(None, ARRIVE, np.array(order), np.array(landed))


@pytest.mark.parametrize(
    "component, step, covered",
    [
        (0, 0, True),
        (1, 4, True),
        (1, 5, True),
        (1, 6, False),
        (2, 1, False),
        (2, 0, True),
        (3, 0, False),
    ],
)
def test_an_arrival_covers_the_steps_that_its_warp_knew_of(component, step, covered):
    """A component that is younger than the clock is unknown to it."""
    record = SimpleNamespace(component=component, step=step)
    assert edge([0, 5, 0], [9] * 4).covers(record) is covered
    assert edge([9] * 4, [0, 5, 0]).behind_proxy_fence(record) is covered


def test_the_first_arrival_that_covers_an_access_is_named():
    record = SimpleNamespace(component=1, step=3)
    early, right, late = (edge([0, n], [0, 0]) for n in (2, 3, 4))
    state = SimpleNamespace(edges=[early, right, late])
    assert edge_of(state, record) is right
    assert edge_of(SimpleNamespace(edges=[early]), record) is None


MINE, PEER = SimpleNamespace(), SimpleNamespace()
PLAIN, FENCED = edge([9, 9], [0, 0]), edge([9, 9], [9, 9])
GRAVE = [  # kind of the older access, its CTA, whether the new one waits for a read, the arrival
    ("tma", MINE, False, PLAIN, PORTABILITY),  # landed before its mbarrier said so
    ("mma", PEER, False, PLAIN, PORTABILITY),
    ("generic", PEER, False, PLAIN, ERROR),  # on its way to another CTA
    ("generic", PEER, True, FENCED, ERROR),
    ("generic", MINE, True, PLAIN, PORTABILITY),  # a read of the CTA's own memory is over
    ("generic", MINE, False, PLAIN, ERROR),
    ("generic", MINE, False, FENCED, PORTABILITY),  # a store that a proxy fence has made land
    ("generic", MINE, False, None, ERROR),
    ("atomic", MINE, False, FENCED, ERROR),
    ("cp.async", MINE, False, FENCED, ERROR),
    ("cp.async", MINE, True, PLAIN, PORTABILITY),
]


@pytest.mark.parametrize("kind, cta, reads, arrival, grave", GRAVE)
def test_how_grave_a_conflict_is(kind, cta, reads, arrival, grave):
    old = SimpleNamespace(kind=kind, agent=SimpleNamespace(cta=cta), component=1, step=3)
    state = SimpleNamespace(edges=[arrival] if arrival else [])
    assert severity(state, MINE, old, reads) == grave
