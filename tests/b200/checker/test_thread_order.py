"""Accesses of CTAs abreast are in order, or not, as a list of all pairs of accesses says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from b200.checker.memory.thread_order import NotInOrder, ThreadOrder
from b200.checker.steps import READS, UPDATES, WRITES

CTAS, WARPS, CELLS = 2, 2, 16


class Reference:
    """Every access of a cell: who has made it, in which phase and in which turn of its warp."""

    def __init__(self) -> None:
        self.phase, self.turn = 0, [0] * WARPS
        self.seen: dict[tuple[int, int], list[tuple]] = {}

    def access(self, cta: int, warp: int, lane: int, cell: int, way: str) -> bool:
        """Whether the access is in order with all before it."""
        before = self.seen.setdefault((cta, cell), [])
        now = warp, lane, self.phase, self.turn[warp], way
        before.append(now)
        return all(self._ordered(old, now) for old in before[:-1])

    @staticmethod
    def _ordered(old: tuple, new: tuple) -> bool:
        if old[4] == new[4] != WRITES or old[:2] == new[:2] or old[2] < new[2]:
            return True
        return old[0] == new[0] and old[3] < new[3]


def play(seed: int, turns: bool) -> tuple[bool, bool]:
    """Random accesses until some are not in order: (what is said of the last ones, what the
    reference says of them).
    """
    dice = random.Random(seed)
    order, reference = ThreadOrder(CTAS, WARPS, 4), Reference()
    cells = order.cells(0, 4 * CTAS * CELLS)
    for _ in range(dice.randint(2, 20)):
        roll, warp = dice.random(), dice.randrange(WARPS)
        if roll < 0.2:
            for w in range(WARPS):
                order.waits(w, 0, reference.phase)
            for w in range(WARPS):
                order.passes(w)
            reference.phase, reference.turn = reference.phase + 1, [0] * WARPS
        elif roll < 0.4 and turns:
            order.together(warp)
            reference.turn[warp] += 1
        else:
            threads = sorted(dice.sample(range(32 * CTAS), dice.randint(1, 3)))
            way = dice.choices((READS, WRITES, UPDATES), (4, 4, 2))[0]
            at = [dice.randrange(CELLS) for _ in threads]
            told = [
                reference.access(t // 32, warp, t % 32, cell, way)
                for t, cell in zip(threads, at, strict=True)
            ]
            index = np.array([[t // 32 * CELLS + c for t, c in zip(threads, at, strict=True)]])
            who = np.array([t % 32 + 1 for t in threads])
            try:
                order.access(warp, cells, index, who, way, shared=False)
            except NotInOrder:
                return False, all(told)
            if not all(told):
                return True, False
    return True, True


def test_without_turns_it_says_what_all_pairs_say():
    found = [play(seed, turns=False) for seed in range(400)]
    assert all(said == right for said, right in found)
    assert {said for said, _ in found} == {False, True}


def test_with_turns_it_passes_over_nothing():
    found = [play(seed, turns=True) for seed in range(400)]
    assert (True, False) not in found
    assert found.count((True, True)) > found.count((False, True))


def accesses(order: ThreadOrder, *some: tuple[int, int, str]) -> None:
    """(warp, lane, what it does) at one place."""
    for warp, lane, way in some:
        cells = order.cells(0, 8)
        order.access(warp, cells, np.array([[0]]), np.array([lane + 1]), way, shared=False)


def test_a_barrier_that_a_warp_is_not_at_orders_nothing():
    order = ThreadOrder(1, 3, 4)
    accesses(order, (0, 0, WRITES))
    for warp in (0, 1):
        order.waits(warp, 1, 0)
    for warp in (0, 1):
        order.passes(warp)
    with pytest.raises(NotInOrder):
        accesses(order, (1, 0, READS))


def test_generations_of_a_barrier_are_told_apart():
    """A warp comes to the next barrier before another has left this one."""
    order = ThreadOrder(1, 2, 4)
    for warp in (0, 1):
        order.waits(warp, 0, 0)
    order.passes(0)
    order.waits(0, 0, 1)
    accesses(order, (1, 0, WRITES))
    order.passes(1)
    accesses(order, (1, 0, WRITES))
    with pytest.raises(NotInOrder):
        accesses(order, (0, 0, READS))


def test_what_is_read_before_it_is_written():
    order = ThreadOrder(1, 1, 4)
    cells, who = order.cells(0, 8), np.array([1])
    order.access(0, cells, np.array([[0]]), who, WRITES, shared=True)
    order.access(0, cells, np.array([[0]]), who, READS, shared=True)
    with pytest.raises(NotInOrder):
        order.access(0, cells, np.array([[1]]), who, READS, shared=True)
    order.access(0, cells, np.array([[1]]), who, READS, shared=False)


@pytest.mark.parametrize("other", [(0, 0), (1, 7)], ids=["of its warp", "of another"])
def test_a_store_is_held_against_all_readers(other):
    order = ThreadOrder(1, 2, 4)
    accesses(order, (*other, READS), (0, 1, READS))
    with pytest.raises(NotInOrder):
        accesses(order, (0, 1, WRITES))


def test_a_store_is_held_against_all_lanes_of_a_load():
    order = ThreadOrder(1, 1, 4)
    order.access(0, order.cells(0, 8), np.array([[0, 0]]), np.array([1, 2]), READS, shared=False)
    with pytest.raises(NotInOrder):
        accesses(order, (0, 1, WRITES))


def test_lanes_that_meet_are_in_order_with_their_own_warp_alone():
    order = ThreadOrder(1, 2, 4)
    accesses(order, (0, 0, READS), (0, 1, READS))
    order.together(0)
    accesses(order, (0, 2, WRITES))
    order = ThreadOrder(1, 2, 4)
    accesses(order, (1, 0, READS), (0, 1, READS))
    order.together(0)
    with pytest.raises(NotInOrder):
        accesses(order, (0, 1, WRITES))
