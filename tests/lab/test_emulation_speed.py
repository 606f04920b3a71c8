"""The comparison of two trees: what it calls the same, and its sums."""

from __future__ import annotations

import pytest

from lab.emulation import speed as emulation_speed
from lab.emulation.speed import differences, numbers, total

ANSWER = {
    "error": "",
    "seconds": 4.0,
    "peak_mb": 100.0,
    "bits": ["a", "b"],
    "launches": [[(1.0, 1_000_000)], [(0.25, 500_000), (0.25, 500_000)]],
    "said": "",
}


def test_columns_are_of_the_launches_of_a_call():
    assert numbers(ANSWER) == {"CPU s": 4.0, "1st": 1.0, "2nd": 0.5, "us": 0.75, "MB": 100.0}


def test_a_sum_weighs_cases_by_what_they_execute():
    short = {"CPU s": 2.0, "1st": 0.5, "2nd": 0.5, "us": 10.0, "MB": 300.0}
    (found,) = total([[numbers(ANSWER)], [short]])
    assert found["CPU s"] == 6.0
    assert found["us"] == pytest.approx(1e6 * 2.5 / 2_100_000)
    assert found["MB"] == 300.0


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, []),
        ({"seconds": 9.0, "peak_mb": 1.0}, []),
        ({"bits": ["a", "c"]}, ["other bits"]),
        ({"said": "race"}, ["only the other says: race"]),
        ({"error": "it died"}, ["it died"]),
        ({"launches": [[], []]}, [emulation_speed.NOTHING]),
    ],
)
def test_what_is_not_the_same(change, words):
    assert differences([ANSWER, ANSWER | change]) == words


def test_modelled_times_are_compared_to_the_last_bit():
    mine, other = ({"error": "", "modelled": {"time_us": t}} for t in (0.3, 0.1 + 0.2))
    assert differences([mine, mine]) == []
    assert differences([mine, other]) == ["time_us: 0.3, other 0.30000000000000004"]
    idle = {"error": "", "modelled": None}
    assert differences([idle, idle]) == differences([idle]) == [emulation_speed.NOTHING]


def test_a_revision_that_is_none(capsys):
    with pytest.raises(SystemExit):
        emulation_speed.main(["--against", "no such revision"])
    assert "expected a folder or a revision" in capsys.readouterr().err
