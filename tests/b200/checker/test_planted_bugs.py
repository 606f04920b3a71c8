"""Every planted bug is named with its lines; its corrected twin is clean in every schedule."""

import pytest

from tests.b200.checker.checks_page import unexplained
from tests.planted_bugs.listed import PLANTED, part
from tests.planted_bugs.reports import recorded, told

REPORTS = recorded()
SCHEDULES = (None, "early", "late", "random:1", "random:2")


def soon(planted, schedule) -> bool:
    """Whether a twin runs in this schedule with every `pytest`: the usual one and another, so that
    each schedule has a quarter of the twins. The slow tests have the rest.
    """
    other = SCHEDULES[1 + part(planted, len(SCHEDULES) - 1)]
    return schedule in (None, other)


TWINS = [
    pytest.param(
        planted,
        schedule,
        id=f"{planted.name}-{schedule}",
        marks=() if soon(planted, schedule) else pytest.mark.slow,
    )
    for planted in PLANTED
    for schedule in SCHEDULES
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda c: c.name)
def test_the_bug_is_named(planted):
    source, outcome = planted.run(True)
    assert planted.kind in outcome.kinds, outcome.text
    assert unexplained(outcome.findings) == []
    for expected in planted.words:
        assert expected in outcome.text
    for mark in planted.marks:
        assert any(f"{planted.name}.ptx:{n}" in outcome.text for n in source.marks[mark]), (
            mark,
            outcome.text,
        )
    assert told(outcome) == REPORTS[planted.name]


@pytest.mark.parametrize(("planted", "schedule"), TWINS)
def test_the_corrected_twin_is_clean(planted, schedule):
    _, outcome = planted.run(False, schedule)
    assert outcome.clean, outcome.text
    assert outcome.right is True


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("verb", ["add", "store"])
def test_a_ticket_that_is_taken_too_soon_is_named_in_every_order(verb, schedule):
    """Also where the last CTA's own sums come after those that its ticket does not cover."""
    (planted,) = (p for p in PLANTED if p.name == f"ticket_before_other_warps_{verb}")
    _, outcome = planted.run(True, schedule)
    assert planted.words[0] in outcome.text
    assert any(finding.severity == "error" for finding in outcome.findings)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_sum_that_comes_too_soon_is_named_alone(schedule):
    """Not its reader, who has waited for the right one, nor that nobody reads the sum before."""
    (planted,) = (planted for planted in PLANTED if planted.name == "next_sum_too_soon")
    _, outcome = planted.run(True, schedule)
    assert [finding.kind for finding in outcome.findings] == ["race"], outcome.text


def test_names_are_unique():
    names = [planted.name for planted in PLANTED]
    assert len(set(names)) == len(names) >= 30
    assert list(REPORTS) == names
