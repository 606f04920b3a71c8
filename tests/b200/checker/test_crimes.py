"""Every planted bug is named with its lines; its corrected twin is clean in every schedule."""

import pytest

from tests.b200.checker.checks_page import unexplained
from tests.crimes.listed import CRIMES

SCHEDULES = (None, "early", "late", "random:1", "random:2")


@pytest.mark.parametrize("crime", CRIMES, ids=lambda c: c.name)
def test_the_bug_is_named(crime):
    source, outcome = crime.run(True)
    assert crime.kind in outcome.kinds, outcome.text
    assert unexplained(outcome.findings) == []
    for expected in crime.words:
        assert expected in outcome.text
    for mark in crime.marks:
        assert any(f"{crime.name}.ptx:{n}" in outcome.text for n in source.marks[mark]), (
            mark,
            outcome.text,
        )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("crime", CRIMES, ids=lambda c: c.name)
def test_the_corrected_twin_is_clean(crime, schedule):
    _, outcome = crime.run(False, schedule)
    assert outcome.clean, outcome.text
    assert outcome.right is True


def test_names_are_unique():
    names = [crime.name for crime in CRIMES]
    assert len(set(names)) == len(names) >= 30
