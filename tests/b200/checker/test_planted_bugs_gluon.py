"""Planted bugs in a Gluon kernel: each is named with its lines; the twin is clean in any order."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", minversion="3.8")

from tests.planted_bugs import gluon  # noqa: E402

SCHEDULES = (None, "early", "late", "random:1", "random:2")


@pytest.mark.parametrize("planted", gluon.PLANTED, ids=lambda c: c.name)
def test_the_bug_is_named(planted):
    listing, outcome = planted.run(True)
    assert planted.kind in outcome.kinds, outcome.text
    for words in planted.words:
        assert words in outcome.text, outcome.text
    for mark in planted.marks:
        places = [f"{planted.file}:{n}" for n in listing.marks[mark]]
        assert any(place in outcome.text for place in places), (mark, outcome.text)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_twin_is_clean(schedule):
    _, outcome = gluon.PLANTED[0].run(False, schedule)
    assert outcome.clean, outcome.text
    assert outcome.right is True
