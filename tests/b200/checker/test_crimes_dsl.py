"""Planted bugs in CuTe DSL kernels: each is named with its lines of Python; the twins are clean."""

import pytest

pytest.importorskip("cutlass")

from tests.crimes import dsl  # noqa: E402

TWINS = list({c.kernel: c for c in reversed(dsl.CRIMES)}.values())
SCHEDULES = (None, "early", "late", "random:1", "random:2")


@pytest.mark.parametrize("crime", dsl.CRIMES, ids=lambda c: c.name)
def test_the_bug_is_named(crime):
    listing, outcome = crime.run(True)
    assert crime.kind in outcome.kinds, outcome.text
    for words in crime.words:
        assert words in outcome.text, outcome.text
    for mark in crime.marks:
        places = [f"{crime.file}:{n}" for n in listing.marks[mark]]
        assert any(place in outcome.text for place in places), (mark, outcome.text)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("crime", TWINS, ids=lambda c: c.kernel.__name__)
def test_the_corrected_twin_is_clean(crime, schedule):
    """One crime of each kernel: its crimes share the twin."""
    _, outcome = crime.run(False, schedule)
    assert outcome.clean, outcome.text
    assert outcome.right is True
