"""Small parts of the checker, each by itself: which lanes, which bytes, which allocations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from b200.checker import accesses, steps
from b200.checker.agent import Agent
from b200.checker.barriers.arrivals import Uses
from b200.checker.following import Following, Traces
from b200.checker.memory.between_lanes import differ
from b200.checker.memory.lane_sync import LaneRelease, left_out
from b200.checker.memory.last_writers import UNIT, LaunchStores
from b200.checker.memory.parts import own_lanes
from b200.checker.memory.release_acquire import Learned, merged
from b200.checker.steps import READS, UPDATES, WRITES
from b200.checker.streams import NEVER
from b200.checker.tensor import pairs
from b200.checker.vector_clocks import HB, ORDER
from b200.chip.copies.tensormap import TensorMap
from b200.chip.global_memory import GlobalMemory
from tests.b200.checker.test_checker import findings_of

WORD = 0xFFFFFFFF  # the bits that are stored


@pytest.mark.parametrize("mask", [0b1, 0b100, 0b11, 0b1010, (1 << 32) - 1])
def test_lanes_of_one_address_do_not_access_it_each_for_itself(mask):
    one, each = np.array([64]), 64 + 4 * np.arange(mask.bit_count())
    alone = mask.bit_count() == 1
    assert own_lanes(mask, one) == (mask if alone else 0)
    assert own_lanes(mask, each) == mask
    assert own_lanes(0b11, np.array([64, 68])) == 0b11


def test_lanes_that_store_different_values_at_one_address():
    lanes, here = 0b111, np.array([64])
    apart, two = np.array([64, 68, 72]), np.array([64, 68, 64])
    alike, others = np.full(32, 5), np.arange(32)
    assert not differ(lanes, here, 5, WORD) and not differ(lanes, here, alike, WORD)
    assert differ(lanes, here, others, WORD) and differ(lanes, two, others, WORD)
    assert not differ(lanes, apart, others, WORD) and not differ(0b100, here, others, WORD)
    assert differ(lanes, here, (alike, others), WORD) and not differ(lanes, here, (7, alike), WORD)
    assert not differ(lanes, here, np.arange(32) * 256, 0xFF)  # the byte that is stored is 0


@pytest.mark.parametrize(
    "lanes, most",
    [
        ([0], 1),
        ([0, 1, 2], 3),
        ([0, 0, 0], 1),
        ([0, 1, 1, 2, 3], 3),
        ([5, 3, 4], 2),
        ([None, None], 1),
        ([0, None, 1], 1),
    ],
)
def test_lanes_of_one_execution_come_in_order(lanes, most):
    uses, warp = Uses(None), object()
    for phase, lane in enumerate(lanes):
        uses.add(warp, lane, phase)
    assert uses.lanes == {warp: most}
    begun = [
        n
        for n, lane in enumerate(lanes)
        if n == 0 or lane is None or lane <= (32 if lanes[n - 1] is None else lanes[n - 1])
    ]
    assert uses.phases == begun[-1]


def test_who_wrote_each_part_of_what_is_asked_for():
    stores = LaunchStores()
    stores._shadows = {1000: np.array([1, 2, 0, 4], np.uint32), 1008: np.array([5], np.uint32)}
    assert UNIT == 2
    assert stores.written(1000, 8).tolist() == [1, 2, 0, 4]
    assert stores.written(996, 8).tolist() == [0, 0, 1, 2]
    assert stores.written(1002, 10).tolist() == [2, 0, 4, 5, 0]
    assert stores.written(2000, 4).tolist() == stores.written(0, 4).tolist() == [0, 0]


def test_who_stored_what_and_how():
    """Lanes, a copy of contiguous bytes, boxes that lie partly outside: the last one stays."""
    memory, buffer = GlobalMemory(), np.zeros(2048, np.uint8)
    base = buffer.ctypes.data
    memory.register(base, 2048, "16 rows of 64 elements of two bytes")
    region = memory.region(base, 2048)
    first, second, third = (
        SimpleNamespace(cta=SimpleNamespace(index=(i, 0, 0)), index=i) for i in range(3)
    )
    stores, want = LaunchStores(), np.zeros((16, 64), int)
    stores.span(region, first, base + 128, 256)
    want[1:3] = 1
    box = TensorMap(base, 1, (64, 16), (128,), (8, 4), (1, 1))
    access = SimpleNamespace(
        tensormap=box, region=region, boxes=[(4, 2), (60, 14), (64, 0), (-4, -2)]
    )
    stores.boxes(second, access)
    want[2:6, 4:12] = want[14:, 60:] = want[:2, :4] = 2
    stores.lanes(memory, third, base + 4 * np.arange(0, 512, 64), 4)
    want[::2, :2] = 3
    assert (stores.written(base, 2048).reshape(16, 64) == want).all() and stores.copied
    assert [w and w.warp for w in stores.writers] == [None, 0, 1, 2]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2), (1,)])
@pytest.mark.parametrize(
    "way, another", [(READS, WRITES), (WRITES, READS), (UPDATES, READS), (WRITES, UPDATES)]
)
def test_all_allocations_that_lanes_touch_are_noted(order, way, another):
    memory, buffer = GlobalMemory(), np.zeros(4096, np.uint8)
    bases = [buffer.ctypes.data + at for at in (0, 1024, 2048)]
    for base in bases:
        memory.register(base, 1024, "t")
    observer = SimpleNamespace(
        wrote=False, unwritten=SimpleNamespace(writes_to=lambda region: None)
    )
    following = Following(observer, memory, Traces())
    places = [bases[i] + at for i in order for at in (0, 512, 1020)]
    assert following._touches(way, np.array(places), 4)
    assert following.bases.pop(way) == (both := {bases[i] for i in order})
    assert not any(following.bases.values()) and observer.wrote is (way != READS)
    following.bases[way] = set(both)
    for base in bases:
        assert following._touches(another, np.array([base]), 4)
    assert following.in_place == both and following.traces.in_place
    # Here the checked cluster keeps them apart, and the one that follows does not.
    following = Following(observer, memory, Traces())
    assert following._touches(way, np.array(places), 4)
    following.follower = SimpleNamespace()
    for base in bases:
        apart = base not in both
        assert following._touches(another, np.array([base]), 4) is apart
        assert following._touches(way, np.array([base]), 4) is not apart


def test_the_odd_cta_of_a_pair_waits_for_the_same_allocation_of_the_even_one():
    state = SimpleNamespace(pairs={})
    even, odd = SimpleNamespace(rank=0), SimpleNamespace(rank=1)
    even.pair = odd.pair = (even, odd)
    learned = []

    def record(cta, step):
        learn = lambda *what: learned.append(what)  # noqa: E731
        agent = SimpleNamespace(cta=cta, state=state, learn_order=learn)
        return SimpleNamespace(agent=agent, component=cta.rank, step=step)

    for step in (3, 6, 9):
        pairs.allocated(record(even, step), 32)
    for step in (2, 4, 8):
        pairs.allocated(record(odd, step), 32)
    assert learned == [(0, 3), (0, 6), (0, 9)]


@pytest.mark.parametrize("known", range(5))
def test_a_clock_that_is_older_than_a_warp_knows_nothing_of_it(known):
    """known: how many components the clock has; that of the warp is number 2. Lane 0 has spoken."""
    spoken = LaneRelease(None, 0b1, 1, 0b10, 0, 0)
    warp = cast(Agent, SimpleNamespace(component=2, lane_releases={7: [spoken]}))
    found = left_out(warp, 1, np.full(known, 7))
    assert found == (None if known <= 2 else (spoken, 0b10))


@pytest.mark.parametrize("size", [16, 32, 512, 528])
@pytest.mark.parametrize("offset", [0, 16, 480, 496, 512, 528])
def test_copies_out_of_shared_memory_wherever_they_lie(offset, size):
    """The one word that a copy reads behind a plain store is found at its first and its last byte,
    and neighbours are left alone.
    """

    def found(stored: int, fence: str = "") -> list[str]:
        body = f"""
        mov.u32 %r1, dyn; add.u32 %r2, %r1, {offset}; ld.param.u64 %rd1, [data];
        mov.u32 %r3, %tid.x; setp.ne.u32 %p1, %r3, 0; @%p1 bra END;
        st.shared.u32 [%r2+{stored}], %r3; {fence}
        cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], {size};
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END:"""
        said = findings_of(body, torch.zeros(256, dtype=torch.int32))
        return [finding.kind for finding in said if finding.severity == "error"]

    for at in (0, size - 4):
        assert "proxy" in found(at)
        assert "proxy" not in found(at, "fence.proxy.async.shared::cta;")
    if offset:
        assert "proxy" not in found(-4)
    assert "proxy" not in found(size)


REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16;"
COPY = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;"


@pytest.mark.parametrize(
    "one, other, clean",
    [
        (REDUCE, REDUCE, True),
        (REDUCE, "red.relaxed.gpu.global.add.u32 [%rd1], 1;", True),
        (
            "red.relaxed.gpu.global.add.u32 [%rd1], 1;",
            "atom.relaxed.gpu.global.add.u32 %r9, [%rd1], 1;",
            True,
        ),
        (REDUCE, COPY, False),
        (REDUCE, "st.global.u32 [%rd1], 1;", False),
        ("red.relaxed.gpu.global.add.u32 [%rd1], 1;", "st.global.u32 [%rd1], 1;", False),
        (COPY, COPY, False),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_reductions_of_two_ctas_meet_each_other_and_nothing_else(one, other, clean, turned):
    first, second = (other, one) if turned else (one, other)
    body = f"""
    mov.u32 %r1, dyn; mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; ld.param.u64 %rd1, [data];
    setp.ne.u32 %p1, %r2, 0; @%p1 bra END;
    st.shared.v4.u32 [%r1], {{%r2, %r2, %r2, %r2}}; fence.proxy.async;
    setp.ne.u32 %p2, %r3, 0; @%p2 bra SECOND;
    {first} bra DONE;
    SECOND: {second}
    DONE: cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:"""
    found = findings_of(body, torch.zeros(64, dtype=torch.int32), grid=(2, 1, 1))
    assert [finding for finding in found if finding.kind == "global"] == [] or not clean
    assert clean or found


@pytest.mark.parametrize("address, stops", [(0x7F0000001000, True), (3 << 56 | 128, False)])
def test_a_tensormap_in_global_memory_ends_following(address, stops):
    """Somebody may edit it, and clusters that follow are not seen to. 3 << 56: a parameter's."""
    box = TensorMap(1 << 20, 6, (64, 32), (128,), (32, 8), (1, 1))
    stopped: list[int] = []
    trail = SimpleNamespace(
        stop=lambda: stopped.append(1),
        following=SimpleNamespace(names={box.address: "x"}),
        again=lambda *_: False,
    )
    access = SimpleNamespace(address=address, tensormap=box, boxes=[(0, 0)], whole=[True])
    found = steps._box(trail, None, SimpleNamespace(access=access))
    assert found == (box.form, "x", (None,), False)
    assert bool(stopped) == stops


def test_an_access_is_before_what_its_own_warp_does():
    """Of another warp it is known if the clocks say so: `known` asks for the end, `issued_before`
    for the beginning.
    """

    def agent(component, **knows):
        return SimpleNamespace(
            component=component,
            knows=lambda row, of, step: knows.get("row") == row and step <= knows["step"],
        )

    mine, other = agent(1), agent(2)
    access = SimpleNamespace(agent=other, component=2, step=5, epoch=4, followers=[])
    assert accesses.known(other, access) and accesses.issued_before(other, access)
    assert not accesses.known(mine, access) and not accesses.issued_before(mine, access)
    assert accesses.known(agent(1, row=HB, step=5), access)
    assert not accesses.known(agent(1, row=HB, step=4), access)
    assert accesses.issued_before(agent(1, row=ORDER, step=4), access)
    assert not accesses.issued_before(agent(1, row=ORDER, step=3), access)
    copy = SimpleNamespace(
        agent=other, component=7, step=NEVER, epoch=4, followers=[]
    )  # still under way
    assert not accesses.known(agent(1, row=HB, step=NEVER), copy)
    assert accesses.issued_before(other, copy)


def test_what_several_have_learned_is_shared_where_one_knows_all_of_it():
    """Of a cluster the latest clock, itself, if it knows what the others do; else a new one."""
    early, late, other = (np.zeros((9, 64), np.int32) for _ in range(3))
    early[HB, 3], late[HB, 3], other[HB, 5] = 2, 7, 1
    found = merged([{"x": early, "y": other}, {"x": late}, {"x": early}])
    assert found["x"] is late and found["y"] is other
    found = merged([{"x": late}, {"x": other}])["x"]
    assert (int(found[HB, 3]), int(found[HB, 5])) == (7, 1)
    assert int(late[HB, 5]) == 0  # a clock that others may have is not changed


def test_what_a_warp_has_learned_is_known_from_the_epoch_on_at_which_it_did():
    clock, learned = np.zeros((12, 64), np.int32), Learned()
    first, second = (np.full((9, 64), n, np.int32) for n in (1, 2))
    for epoch, part in ((4, {"x": first}), (9, {"y": second})):
        learned.add(SimpleNamespace(component=2, now=lambda epoch=epoch: epoch), [part])
    for known, clusters in ((3, []), (4, ["x"]), (8, ["x"]), (9, ["x", "y"])):
        clock[HB, 2] = known
        (found,) = learned.by(clock)
        assert sorted(found) == clusters
    clock[HB, 2] = 0
    assert [sorted(found) for found in learned.by(clock, own=2)] == [["x", "y"]]
