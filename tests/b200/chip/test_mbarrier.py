"""mbarrier: phases, counts and waiting, against a replay of the documented rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.sync import mbarrier as mb
from b200.chip.sync.mbarrier_instructions import PATIENCE
from b200.errors import Fault, Unsupported
from b200.hardware import SMEM_BASE
from b200.registry import FULL, QUIET, Blocked, find
from tests.b200.chip.async_support import Woken, address, cluster, run
from tests.b200.chip.isa_support import instruction

LIMIT = 2**20 - 1


def barrier(count=1, ctas=1, offset=0):
    machine, warps = cluster(ctas)
    for warp in warps:
        run("mbarrier.init.shared.b64")(warp, 0, address(warp, offset), count)
    return warps if ctas > 1 else warps[0]


def state(warp, offset=0):
    return warp.cta.mbarriers[SMEM_BASE + offset]


def wait(warp, parity, text="mbarrier.test_wait.parity.shared.b64", offset=0):
    return run(text)(warp, FULL, address(warp, offset), parity)


def test_fresh_barrier_has_completed_the_phase_before_its_first():
    warp = barrier()
    assert wait(warp, 1) == FULL
    assert wait(warp, 0) == 0


events = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 3)),
        st.tuples(st.just("arrive_drop"), st.just(1)),
        st.tuples(st.just("arrive.expect_tx"), st.integers(0, 3)),
        st.tuples(st.just("expect_tx"), st.integers(0, 3)),
        st.tuples(st.just("complete_tx"), st.integers(0, 3)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), events)
def test_phases_follow_a_replay_of_the_log(count, log):
    """The replay keeps only what happened in the phase, and ends it when sums match."""
    warp = barrier(count)
    phases, arrived, balance, expected, dropped = 0, 0, 0, count, 0
    for name, n in log:
        is_arrival = name.startswith("arrive")
        step = n if name == "arrive" else 1
        legal = not (is_arrival and arrived + step > expected)
        if name == "arrive_drop" and expected - dropped < 1:
            legal = False
        f = run(f"mbarrier.{name}.shared.b64")
        if not legal:
            with pytest.raises(Fault):
                f(warp, 0, address(warp, 0), n)
            continue
        f(warp, 0, address(warp, 0), n)
        arrived += step if is_arrival else 0
        dropped += name == "arrive_drop"
        balance += n if "expect_tx" in name else -n if name == "complete_tx" else 0
        if arrived == expected and balance == 0:
            phases, arrived, expected, dropped = phases + 1, 0, expected - dropped, 0
        assert state(warp).phase == phases % 2
        assert (state(warp).pending, state(warp).tx) == (expected - arrived, balance)


def test_expect_tx_that_repays_early_bytes_completes_the_phase():
    warp = barrier()
    run("mbarrier.complete_tx.shared.b64")(warp, 0, address(warp, 0), 64)
    run("mbarrier.arrive.shared.b64")(warp, 0, address(warp, 0))
    assert wait(warp, 0) == 0
    run("mbarrier.expect_tx.relaxed.cta.shared::cta.b64")(warp, 0, address(warp, 0), 64)
    assert wait(warp, 0) == FULL


def test_arrive_drop_lowers_the_following_phases():
    warp = barrier(3)
    at = address(warp, 0)
    run("mbarrier.arrive_drop.shared.b64")(warp, 0, at)
    assert state(warp).pending == 2
    run("mbarrier.arrive.shared.b64")(warp, 0, at, 2)
    assert (state(warp).phase, state(warp).pending) == (1, 2)


def test_state_tokens_tell_their_phase_and_pending_count():
    warp = barrier(2)
    at = address(warp, 0)
    first = run("mbarrier.arrive.shared.b64")(warp, 0, at)
    # As an H200 returns it: parity in bit 63, minus the pending count before in bits 43 to 62.
    assert first == (2**20 - 2) << 43
    assert run("mbarrier.test_wait.shared.b64")(warp, FULL, at, first) == 0
    second = run("mbarrier.arrive.shared.b64")(warp, 0, at)
    assert run("mbarrier.test_wait.shared.b64")(warp, FULL, at, second) == FULL
    third = run("mbarrier.arrive.shared.b64")(warp, 0, at)
    assert third >> 63 == 1
    assert run("mbarrier.test_wait.shared.b64")(warp, FULL, at, third) == 0
    count = run("mbarrier.pending_count.b64")
    tokens = np.array([first, second, third] + [0] * 29, np.uint64)
    assert [count.scalar(t) for t in (first, second, third)] == [2, 1, 2]
    assert count.vector(tokens).tolist() == [2, 1, 2] + [0] * 29


@pytest.mark.parametrize("name, sign", [("expect_tx", 1), ("complete_tx", -1)])
def test_tx_count_traps_outside_its_range(name, sign):
    warp = barrier()
    f = run(f"mbarrier.{name}.shared.b64")
    f(warp, 0, address(warp, 0), LIMIT)
    assert state(warp).tx == sign * LIMIT
    with pytest.raises(Fault, match="range"):
        f(warp, 0, address(warp, 0), 1)


@pytest.mark.parametrize("count", [0, LIMIT + 1])
def test_init_refuses_counts_outside_the_range(count):
    with pytest.raises(Fault, match="must be 1"):
        barrier(count)


def test_no_complete_must_not_complete():
    warp = barrier(2)
    f = run("mbarrier.arrive.noComplete.release.cta.shared.b64")
    f(warp, 0, address(warp, 0), 1)
    with pytest.raises(Fault, match="noComplete"):
        f(warp, 0, address(warp, 0), 1)


def test_inval_and_missing_barriers():
    warp = barrier(offset=8)
    with pytest.raises(Fault, match=r"no mbarrier is initialised at .* 0x400 .*initialised: 0x408"):
        wait(warp, 0)
    with pytest.raises(Fault, match="not aligned to 8"):
        wait(warp, 0, offset=4)
    run("mbarrier.inval.shared.b64")(warp, 0, address(warp, 8))
    with pytest.raises(Fault, match="initialised: none"):
        wait(warp, 0, offset=8)


def test_init_over_a_barrier_in_mid_phase_is_a_fault():
    warp = barrier(2)
    init = run("mbarrier.init.shared.b64")
    init(warp, 0, address(warp, 0), 3)  # untouched: allowed
    run("mbarrier.arrive.shared.b64")(warp, 0, address(warp, 0))
    with pytest.raises(Fault, match="in use"):
        init(warp, 0, address(warp, 0), 3)


def test_remote_arrive_and_address_rules():
    one, two = barrier(ctas=2)
    remote = run("mbarrier.arrive.release.cluster.shared::cluster.b64")
    remote(one, 0, address(two, 0))
    assert (state(one).phase, state(two).phase) == (0, 1)
    remote(two, 0, address(two, 0))  # an own address is valid where a cluster address is asked
    assert state(two).phase == 0
    with pytest.raises(Fault, match="CTA rank 1, from rank 0"):
        run("mbarrier.arrive.shared::cta.b64")(one, 0, address(two, 0))
    with pytest.raises(Fault, match="names CTA rank 5"):
        remote(one, 0, 5 << 24 | SMEM_BASE)
    with pytest.raises(Unsupported):
        run("mbarrier.try_wait.parity.shared::cluster.b64")


def test_generic_addresses_reach_shared_memory():
    one, two = barrier(ctas=2)
    run("mbarrier.arrive.b64")(one, 0, 1 << 56 | address(two, 0))
    assert state(two).phase == 1
    with pytest.raises(Fault, match="not in shared memory"):
        run("mbarrier.arrive.b64")(one, 0, 0x7F0000000000)


def test_a_spinning_try_wait_parks_until_the_phase_ends():
    warp = barrier()
    spin = run("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64")
    at = address(warp, 0)
    assert spin(warp, 1, at, 0, 10_000_000) == 0
    with pytest.raises(Blocked) as blocked:
        spin(warp, 1, at, 0, 10_000_000)
    fragment = Woken(blocked.value.waitable)
    run("mbarrier.arrive.shared.b64")(warp, 0, at)
    assert fragment.times == 1
    assert spin(warp, 1, at, 0, 10_000_000) == FULL
    assert warp.spin is QUIET  # it polls, and has changed nothing


def test_a_look_between_other_work_never_parks():
    warp = barrier(9)
    look = run("mbarrier.try_wait.parity.shared.b64")
    for _ in range(5):
        assert look(warp, 1, address(warp, 0), 0) == 0
        warp.spin = None  # as a block does before an instruction that changes something
        run("mbarrier.arrive.shared.b64")(warp, 0, address(warp, 0))
    wait_loop = run("mbarrier.try_wait.parity.shared.b64")
    assert look(warp, 1, address(warp, 0), 0) == 0
    assert wait_loop(warp, 1, address(warp, 0), 0) == 0  # another instruction has its own count


def test_a_polling_test_wait_parks_late():
    warp = barrier()
    poll = run("mbarrier.test_wait.parity.shared.b64")
    for _ in range(PATIENCE["test_wait"]):
        assert poll(warp, 1, address(warp, 0), 0) == 0
    with pytest.raises(Blocked):
        poll(warp, 1, address(warp, 0), 0)


def test_lanes_on_different_barriers():
    warp = barrier()
    run("mbarrier.init.shared.b64")(warp, 0, address(warp, 8), 1)
    run("mbarrier.init.shared.b64")(warp, 0, address(warp, 16), 1)
    at = np.array([address(warp, 8 * (i % 3)) for i in range(32)], np.uint32)
    spin = run("mbarrier.try_wait.parity.shared.b64")
    mask = 0b11_1011  # lane 2 (the third barrier) is not active, lane 5 is
    assert spin(warp, mask, at, 0) == 0
    with pytest.raises(Blocked) as blocked:
        spin(warp, mask, at, 0)
    fragment = Woken(blocked.value.waitable)
    assert "any of" in blocked.value.waitable.describe()
    run("mbarrier.arrive.shared.b64")(warp, 0, address(warp, 16))
    assert fragment.times == 1
    assert spin(warp, mask, at, 0) == 0b10_0000
    run("mbarrier.arrive.shared.b64")(warp, 0, address(warp, 0))
    assert fragment.times == 1  # woken once, and forgotten by the other barriers
    assert not state(warp, 8).waiters


def test_the_report_names_what_is_missing_and_who_came():
    warp = barrier(4)
    run("mbarrier.init.shared.b64")(warp, 0, address(warp, 8), 1)
    run("mbarrier.arrive.expect_tx.shared.b64")(warp, 0, address(warp, 0), 512)
    commit = instruction("tcgen05.commit", ["b64"], [])
    mb.mbarrier_at(warp.cta, SMEM_BASE).arrive(1, mb.Signaller(1, 0, commit, "commit"))
    mb.mbarrier_at(warp.cta, SMEM_BASE).complete_tx(128)
    text = state(warp).describe()
    assert "offset 0x400 of CTA rank 0 (number 0 of 2 in a row)" in text
    assert "2 of 4 arrival(s) missing, 384 byte(s) missing" in text
    assert "initialised by CTA rank 0 warp 0" in text
    assert "last signals: CTA rank 0 warp 0, CTA rank 1 commit" in text
    assert "nobody has arrived yet" in state(warp, 8).describe()


def test_arrivals_beyond_the_count_are_named():
    warp = barrier()
    run("mbarrier.arrive.expect_tx.shared.b64")(warp, 0, address(warp, 0), 16)
    with pytest.raises(Fault, match="only 0 more arrival"):
        run("mbarrier.arrive.shared.b64")(warp, 0, address(warp, 0))


def test_waits_are_cut_into_blocks():
    for op in ("mbarrier.try_wait.parity.shared.b64", "mbarrier.test_wait.shared.b64"):
        assert find(op).may_block and find(op).uniform == "args"


def test_no_more_arrivals_are_dropped_than_are_expected():
    warp = barrier(2)
    drop = run("mbarrier.arrive_drop.shared.b64")
    with pytest.raises(Fault, match=r"arrive_drop with count 3 .* expects only 2 arrival"):
        drop(warp, 0, address(warp, 0), 3)
    assert (state(warp).pending, state(warp).expected) == (2, 2)
    drop(warp, 0, address(warp, 0), 2)
    assert (state(warp).phase, state(warp).expected) == (1, 0)
