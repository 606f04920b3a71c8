"""Published times as steps of 2.048 us."""

import pytest

from lab.tables import peers


@pytest.mark.parametrize(
    ("published", "on_step", "low"),
    [(8.192, True, 6.144), (8.4, True, 6.144), (10.1, False, 8.192), (19.0, False, 18.432)],
)
def test_what_a_published_time_says(published, on_step, low):
    assert peers.on_step(published) == on_step
    assert peers.bounds(published) == (pytest.approx(low), published)


@pytest.mark.parametrize(
    ("modelled", "outside"), [(6.3, 0), (8.4, 0), (3.072, -0.5), (10.5, 0.25), (6.144, 0)]
)
def test_how_far_a_modelled_time_is_outside(modelled, outside):
    record = {"published_us": 8.4, "time_us": modelled}
    assert peers.outside(record) == pytest.approx(outside)


def test_the_table():
    points = [
        {"parity": parity, "published_us": published, "time_us": modelled}
        for parity, published, modelled in (
            ("odd", 8.4, 6.3),
            ("odd", 8.4, 10.5),
            ("odd", 19.0, 18.9),
            ("even", 8.4, None),
            ("even", 12.4, 12.0),
        )
    ]
    rows = peers.ladder_steps(points).splitlines()[2:]
    assert rows == ["| odd | 3 | 2 | 2 | +25.0% |", "| even | 1 | 1 | 1 | +0.0% |"]
