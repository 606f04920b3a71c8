"""The search over all orders against brute force on small random protocols."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from b200.explore.search import Search
from b200.explore.settle import settle
from tests.b200.explore.brute_force import random_protocol, replay, run, trace_of, worst

SOON, LATER = range(1500), range(1500, 3000)  # seeds: with every `pytest`, with the slow tests


def runs(seeds: Iterable[int] = SOON):
    """Random protocols, each with an order that ends well: (warps, counts, its moves)."""
    for seed in seeds:
        rng = random.Random(seed)
        protocol, counts = random_protocol(rng)
        moves = next(filter(None, (run(protocol, counts, rng) for _ in range(8))), None)
        if moves is not None:
            yield protocol, counts, moves


@pytest.mark.parametrize("seeds", [SOON, pytest.param(LATER, marks=pytest.mark.slow)])
def test_verdicts_are_those_of_brute_force(seeds):
    """Free of deadlocks where all orders end well; else an order that gets stuck, and no shorter one
    does, or one that breaks a rule.
    """
    seen = {"free": 0, "stuck": 0, "broken": 0, "proved": 0}
    for protocol, counts, moves in runs(seeds):
        broken, shortest = worst(protocol, counts)
        trace = trace_of(protocol, counts, moves)
        settled = settle(trace)
        found = Search(trace, settled).run()
        assert not found.bound
        bad = found.stuck
        assert (bad is None) == (not broken and shortest is None), (protocol, counts, bad)
        if bad is None:
            seen["free"] += 1
            seen["proved"] += not settled.open_places
            continue
        assert settled.open_places, (protocol, counts)  # the proof alone does not settle it
        seen["broken" if bad.broken else "stuck"] += 1
        world = replay(protocol, counts, bad.order)
        if bad.broken:
            assert broken
        else:
            assert not world.moves() and not world.over()
            assert len(bad.order) - len(counts) == shortest
    assert min(seen.values()) > 50, seen


def test_a_bound_is_said():
    for protocol, counts, moves in runs():
        trace = trace_of(protocol, counts, moves)
        settled = settle(trace)
        if Search(trace, settled).run().states > 60:
            found = Search(trace, settled, limit=10).run()
            assert found.bound and found.states <= 60
            return
    raise AssertionError("no protocol has so many states")
