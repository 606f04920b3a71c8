"""`--schedule all` beside the truth: every order of small programs, carried out by other code."""

from __future__ import annotations

from itertools import islice

import pytest

from b200.explore import DEADLOCK, FREE, INCOMPLETE
from b200.explore import verdict as verdicts
from tests.b200.explore import every_order
from tests.b200.explore.against_force import AT_MOST, PROGRAMS, judge, verdict
from tests.b200.explore.small_programs import Program

SAMPLE = 12


def program(*warps: list[tuple], counts=(1, 1), ctas: int = 1) -> Program:
    return Program(tuple(map(tuple, warps)), counts, ctas, False)


MEET, AGAIN, DONE = ("sync", 4, 64), ("sync", 1, 64), ("come", 1, 64)
# What decides is ... -> the program, and what can come of it.
DECIDED: dict[str, tuple[Program, str]] = {
    "the last of two strong stores": (
        program(
            [("store", "s0", 1), MEET, AGAIN],
            [("store", "s0", 2), MEET, ("look at", "s0"), ("skip", "ne", 1), AGAIN],
        ),
        every_order.HANGS,
    ),
    "the last of two plain stores to global memory": (
        program(
            [("plain", "g0", 1), MEET, AGAIN],
            [("plain", "g0", 2), MEET, ("look at", "g0"), ("skip", "ne", 1), AGAIN],
        ),
        every_order.HANGS,
    ),
    "what an exchange leaves": (
        program(
            [("exch", "s0", 1), MEET, AGAIN],
            [("exch", "s0", 2), MEET, ("look at", "s0"), ("skip", "ne", 1), DONE],
        ),
        every_order.HANGS,
    ),
    "what an atomic finds": (
        program(
            [("sync", 0, 0), AGAIN],
            [("sync", 0, 0), ("store", "s0", 2), DONE],
            [("sync", 0, 0), ("add", "s0", 1), ("skip", "ne", 0), DONE],
        ),
        every_order.HANGS,
    ),
    "what a red leaves": (
        program(
            [("red", "g0", 1), MEET, ("look at", "g0"), ("skip", "ne", 2), AGAIN],
            [("red", "g0", 1), MEET, ("look at", "g0"), ("skip", "ne", 2), AGAIN],
        ),
        every_order.FREE,
    ),
    "a flag that is overwritten": (
        program([("store", "g0", 1)], [("store", "g0", 2), ("poll", "g0", "eq", 2)]),
        every_order.HANGS,
    ),
    "a flag that is taken back": (
        program(
            [("store", "s0", 1), ("sync", 2, 64), ("store", "s0", 0)],
            [("poll", "s0", "eq", 1), DONE],
            [("sync", 2, 64)],
            [AGAIN],
        ),
        every_order.HANGS,
    ),
    "a flag that stays": (
        program(
            [("store", "s0", 1), ("sync", 2, 64)],
            [("poll", "s0", "eq", 1), DONE],
            [("sync", 2, 64)],
            [AGAIN],
        ),
        every_order.FREE,
    ),
    "a counter of a grid that is reset": (
        program(
            [("add", "g0", 1), ("poll", "g0", "ge", 2), ("store", "g0", 0)],
            [("add", "g0", 1), ("poll", "g0", "ge", 2)],
            ctas=2,
        ),
        every_order.HANGS,
    ),
    "a counter of a grid that is not": (
        program(
            [("add", "g0", 1), ("poll", "g0", "ge", 2)],
            [("add", "g0", 1), ("poll", "g0", "ge", 2)],
            ctas=2,
        ),
        every_order.FREE,
    ),
    "a look that is asked once": (
        program(
            [("arrive", 0), ("arrive", 0)],
            [("arrive", 0), ("arrive", 0), ("look", 0, 0), ("skip", "ne", 1), DONE],
            counts=(2, 1),
        ),
        every_order.FREE,
    ),
    "a poll that sleeps": (
        program([("pace", "s0", "ge", 1), DONE], [("store", "s0", 1), AGAIN]),
        every_order.FREE,
    ),
    "a poll that sleeps, of a flag that is taken back": (
        program([("pace", "s0", "ge", 1)], [("store", "s0", 1), ("store", "s0", 0)]),
        every_order.HANGS,
    ),
    "some tries of an mbarrier, in time": (
        program([AGAIN, ("arrive", 0)], [("tries", 0, 0), AGAIN], [AGAIN, AGAIN]),
        every_order.HANGS,
    ),
    "a ticket": (
        program(
            [("add", "g0", 1), ("skip", "ne", 0), AGAIN],
            [("add", "g0", 1), ("skip", "ne", 0), AGAIN],
        ),
        every_order.HANGS,
    ),
}


@pytest.mark.parametrize("what", DECIDED)
def test_what_decides_is_followed(what):
    small, so = DECIDED[what]
    assert every_order.truth(small) == so
    said, why = verdict(small)
    assert said == (FREE if so == every_order.FREE else DEADLOCK), why


@pytest.mark.parametrize("what", DECIDED)
def test_one_run_alone_proves_none_of_them(what, monkeypatch):
    """Where no order is carried out: incomplete, with a reason, or a deadlock that the run met."""
    monkeypatch.setattr(verdicts, "WALKED", 0)
    small, _ = DECIDED[what]
    said, why = verdict(small)
    assert (
        said == INCOMPLETE
        and any("another order may change" in reason for reason in why)
        or (said == DEADLOCK and "in the usual order" in why[0])
    ), (said, why)


def test_the_twin_of_some_tries():
    small = program([AGAIN, ("arrive", 0)], [("wait", 0, 0), AGAIN], [AGAIN, AGAIN])
    assert every_order.truth(small) == every_order.FREE
    assert verdict(small)[0] == FREE


def test_a_clock_that_decides_over_a_barrier():
    small = program([("late",), ("skip", "ne", 0), DONE], [AGAIN])
    assert every_order.truth(small) == every_order.HANGS
    said, why = verdict(small)
    assert said == INCOMPLETE and any("globaltimer" in reason for reason in why)


@pytest.mark.parametrize("first", [0, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_verdict_is_false(first):
    seen = list(islice(judge(first), SAMPLE))
    assert [judged for judged in seen if judged.false] == []
    assert {judged.verdict for judged in seen} >= {FREE, DEADLOCK}


@pytest.mark.slow
def test_no_verdict_of_many_is_false():
    seen = list(islice(judge(1_000_000), PROGRAMS))
    assert [judged for judged in seen if judged.false] == []
    assert sum(judged.verdict == INCOMPLETE for judged in seen) <= AT_MOST * PROGRAMS
