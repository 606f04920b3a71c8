"""Planted bugs in a kernel on the CuTe DSL's pipelines; the twin is clean in every order."""

import pytest

pytest.importorskip("cutlass")

from tests.planted_bugs import pipelines  # noqa: E402
from tests.versions import since  # noqa: E402

pytestmark = since("nvidia-cutlass-dsl", "4.5", "its pipelines take no state known when compiling")
SCHEDULES = (None, "early", "late", "random:1", "random:2")
PLANTED = [
    pytest.param(c, id=c.name, marks=[pytest.mark.slow] if c.slow else [])
    for c in pipelines.PLANTED
]


@pytest.mark.parametrize("planted", PLANTED)
def test_the_bug_is_named(planted):
    listing, outcome = planted.run(True)
    assert planted.kind in outcome.kinds, outcome.text
    for words in planted.words:
        assert words in outcome.text, outcome.text
    for mark in planted.marks:
        places = [f"{planted.file}:{n}" for n in listing.marks[mark]]
        assert any(place in outcome.text for place in places), (mark, outcome.text)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_corrected_twin_is_clean(schedule):
    _, outcome = pipelines.PLANTED[0].run(False, schedule)
    assert outcome.clean, outcome.text
    assert outcome.right is True
