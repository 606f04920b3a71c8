"""Who waits when much is under way."""

from b200.clock.under_way import UnderWay


def test_who_wants_more_waits_for_the_oldest_to_arrive():
    stores = UnderWay()
    assert stores.room(5.0, most=10) == 5.0
    stores.add(100.0, 8)
    stores.add(200.0, 8)
    assert stores.room(5.0, most=10) == 100.0
    assert stores.room(300.0, most=10) == 300.0 and stores.amount == 0


def test_what_is_admitted_counts_though_not_asked_for():
    window = UnderWay()
    window.add(50.0, 60)
    window.amount += 40
    assert window.room(1.0, most=60) == 50.0 and window.amount == 40
    assert window.room(2.0, most=0) == 2.0  # nothing that arrives is awaited


def test_what_has_arrived_makes_room():
    window = UnderWay()
    window.add(50.0, 100)
    assert window.room(50.0, most=0) == 50.0 and window.amount == 0
