"""Planted bugs in CuTe DSL kernels: each is named with its lines of Python; the twins are clean."""

import pytest

pytest.importorskip("cutlass")

from tests.planted_bugs import dsl  # noqa: E402

TWINS = list({c.kernel: c for c in reversed(dsl.PLANTED)}.values())
SCHEDULES = (None, "early", "late", "random:1", "random:2")


@pytest.mark.parametrize("planted", dsl.PLANTED, ids=lambda c: c.name)
def test_the_bug_is_named(planted):
    listing, outcome = planted.run(True)
    assert planted.kind in outcome.kinds, outcome.text
    for words in planted.words:
        assert words in outcome.text, outcome.text
    for mark in planted.marks:
        places = [f"{planted.file}:{n}" for n in listing.marks[mark]]
        assert any(place in outcome.text for place in places), (mark, outcome.text)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("planted", TWINS, ids=lambda c: c.kernel.__name__)
def test_the_corrected_twin_is_clean(planted, schedule):
    """One bug of each kernel: its bugs share the twin."""
    _, outcome = planted.run(False, schedule)
    assert outcome.clean, outcome.text
    assert outcome.right is True
