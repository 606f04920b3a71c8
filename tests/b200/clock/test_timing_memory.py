"""Servers that are asked out of order, and the coalescer between a GPC's SMs and the L2."""

import numpy as np
import pytest

from b200.clock import Constants
from b200.clock.coalescer import Coalescer
from b200.clock.memory_system import Memory, Server
from b200.clock.placement import Placement
from b200.clock.rates import TABLE, rate


@pytest.fixture(autouse=True)
def at_the_start(monkeypatch):
    monkeypatch.setattr(Server, "now", 0.0)


def test_a_later_request_does_not_delay_an_earlier_one():
    server = Server()
    assert server.serve(1000.0, 10.0) == 1000.0
    assert server.serve(0.0, 10.0) == 0.0
    assert server.serve(995.0, 10.0) == 1010.0  # does not fit before the first one
    assert server.serve(0.0, 10.0) == 10.0
    assert server.busy == 40.0


def test_gaps_in_the_past_are_gone():
    server = Server()
    server.serve(1000.0, 10.0)
    Server.now = 1000.0
    assert server.serve(1000.0, 5.0) == 1010.0


def test_requests_in_order_are_first_come_first_served():
    server, starts = Server(), []
    for at in (0.0, 1.0, 2.0, 50.0):
        Server.now = at
        starts.append(server.serve(at, 10.0))
    assert starts == [0.0, 10.0, 20.0, 50.0]


class Region:
    """An allocation as the memory system sees it."""

    base, size = 1 << 20, 1 << 16


def test_sms_of_a_gpc_share_the_answer_to_what_is_under_way():
    """Two SMs of a GPC cost the L2 one request, as the counters of SemiAnalysis' groups of 16 say
    (2.05 to 2.09 sectors filled for one of the L2); SMs of two GPCs cost two.
    """
    sms = Placement().sms
    for second, requests in ((sms[1], 1), (sms[-1], 2)):
        chip = Memory(Constants.make(), 1.965, dirty=False, cold=True)
        arrivals = [
            chip.read(at, sm, Region, np.array([Region.base]), 4096, 400.0)
            for at, sm in ((0.0, sms[0]), (10.0, second))
        ]
        assert chip.l2_bytes == 4096 * requests
        assert chip.coalesced_bytes == 4096 * (2 - requests)
        assert chip.dram_bytes == 4096
        assert arrivals[1][1] >= arrivals[0][1] - 400.0


def test_what_has_arrived_is_asked_for_again():
    chip = Memory(Constants.make(), 1.965, dirty=False, cold=True)
    sm = Placement().sms[0]
    _, last = chip.read(0.0, sm, Region, np.array([Region.base]), 4096, 400.0)
    chip.read(last + 1.0, sm, Region, np.array([Region.base]), 4096, 400.0)
    assert chip.l2_bytes == 8192 and chip.coalesced_bytes == 0


def test_with_much_under_way_a_share_is_merged():
    gpc, index = Coalescer(capacity=1000.0), np.array([3])
    assert gpc.merge(0.0, Region, 100, index, 0.5) is None
    gpc.sent(Region, index, 900.0, 1500)
    assert gpc.merge(0.0, Region, 100, index, 0.5) == (900.0, 900.0)
    assert gpc.merge(0.0, Region, 100, index, 0.9) is None
    assert gpc.merge(900.0, Region, 100, index, 0.0) is None


def test_every_rate_has_a_name_of_its_own_and_a_grade():
    assert len({r.name for r in TABLE}) == len(TABLE)
    assert all(r.grade in ("published", "fitted", "derived", "unknown") for r in TABLE)
    assert rate("float") == (1.0, 4.0)  # 128 lanes a clk and SM, 4 clk (QuickRunCUDA)
    assert rate("integer")[0] == 2 * rate("float")[0]
