"""What a CPC has under way at most."""

from b200.clock.window import Window


def test_who_wants_more_waits_for_the_oldest_to_arrive():
    window = Window(100)
    assert window.admit(0.0, 60) == 0.0
    window.asked(50.0, 60)
    assert window.admit(1.0, 40) == 1.0  # there is room for it
    window.asked(70.0, 40)
    assert window.admit(2.0, 40) == 50.0
    assert window.admit(2.0, 40) == 70.0  # what was admitted before counts, though not asked for


def test_what_has_arrived_makes_room():
    window = Window(100)
    window.admit(0.0, 100)
    window.asked(50.0, 100)
    assert window.admit(50.0, 100) == 50.0


def test_one_piece_that_is_larger_goes_alone():
    window = Window(100)
    window.admit(0.0, 30)
    window.asked(20.0, 30)
    assert window.admit(0.0, 200) == 20.0
