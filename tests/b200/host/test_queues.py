"""Who waits for which queue (b200/host/queues.py)."""

from __future__ import annotations

import pytest

from b200.host.queues import DEFAULT, HOST, Queues

SIDE, OTHER = 0x1010, 0x1020


@pytest.fixture
def queues():
    found = Queues()
    found.made(SIDE, non_blocking=True)
    found.made(OTHER, non_blocking=True)
    return found


def test_work_of_a_side_queue_is_unfinished_until_somebody_waits(queues):
    queues.launched(DEFAULT, "first")
    assert queues.unfinished(DEFAULT) == []
    queues.launched(SIDE, "second")
    assert queues.unfinished(DEFAULT) == [(SIDE, "second")]
    queues.joins(DEFAULT, SIDE)
    assert queues.unfinished(DEFAULT) == []
    queues.launched(SIDE, "third")
    assert queues.unfinished(DEFAULT) == [(SIDE, "third")]


@pytest.mark.parametrize("waiter", [DEFAULT, HOST])
def test_an_event_covers_what_came_before_it(queues, waiter):
    queues.launched(SIDE, "k")
    queues.recorded(1, SIDE)
    queues.waits(waiter, 1)
    assert queues.unfinished(DEFAULT) == []
    queues.recorded(2, SIDE)
    queues.launched(SIDE, "behind")
    queues.waits(waiter, 2)
    assert queues.unfinished(DEFAULT) == [(SIDE, "behind")]


def test_waiting_is_handed_on(queues):
    """The default queue waits for a queue that has waited for another."""
    queues.launched(SIDE, "k")
    queues.joins(OTHER, SIDE)
    queues.launched(OTHER, "l")
    queues.joins(DEFAULT, OTHER)
    assert queues.unfinished(DEFAULT) == []


def test_what_the_host_waited_for_comes_before_later_launches(queues):
    queues.launched(SIDE, "k")
    queues.finished()
    queues.launched(DEFAULT, "l")
    assert queues.unfinished(OTHER) == [(DEFAULT, "l")]


def test_a_blocking_queue_is_ordered_with_the_default_queue(queues):
    queues.made(0x2000, non_blocking=False)
    queues.launched(0x2000, "k")
    assert queues.unfinished(DEFAULT) == [] and queues.unfinished(1) == []
    assert queues.unfinished(SIDE) == [(0x2000, "k")]


def test_what_was_launched_is_forgotten(queues):
    """b200.install() a second time: what was made stays non-blocking, its work is no more."""
    queues.launched(SIDE, "k")
    queues.recorded(1, SIDE)
    queues.keep(SIDE, "what it has accessed")
    queues.begin()
    assert not queues.several and queues.unfinished(DEFAULT) == []
    queues.launched(SIDE, "another")
    queues.launched(DEFAULT, "k")
    queues.waits(DEFAULT, 1)  # recorded before
    assert queues.unfinished(DEFAULT) == [(SIDE, "another")]
    assert queues.unordered(DEFAULT) == []
