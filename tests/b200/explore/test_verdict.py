"""Launches under `--schedule all`: what is found, what is said, and when it is incomplete."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

import b200
from b200.chip.gpu import Gpu
from b200.explore import DEADLOCK, FREE, INCOMPLETE, Explorer, states, walk
from b200.explore import verdict as verdicts
from tests.planted_bugs import cta, orders
from tests.planted_bugs.case import Source
from tests.planted_bugs.clusters import mbarriers


@pytest.fixture
def one_run(monkeypatch):
    """Nothing is carried out in other orders: what does one run tell?"""
    monkeypatch.setattr(verdicts, "WALKED", 0)


USUAL = (None, "early", "late", "random:1", "random:2", "random:3")


@pytest.mark.parametrize("schedule", USUAL)
@pytest.mark.parametrize("planted", orders.PLANTED, ids=lambda c: c.name)
def test_the_usual_orders_miss_it(planted, schedule):
    """So that finding it says something of exploring all orders."""
    plain = dataclasses.replace(planted, schedule=None)
    _, outcome = plain.run(True, schedule)
    assert outcome.right and "deadlock" not in outcome.kinds, outcome.text
    if (
        "overtaken" not in planted.name
    ):  # a rule of every order names these (checker/barriers/phases.py)
        assert outcome.clean, outcome.text


def explore(k: Source, args: list):
    """The verdict on a kernel."""
    return explore_launch(k, args).orders


def explore_launch(k: Source, args: list, budget: float | None = None):
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, schedule="all", budget=budget)
    block = (k.threads, 1, 1)
    return gpu.launch(k.text("k"), "k", (1, 1, 1), block, smem=k.smem, args=args)


def verdict(write: Callable[[Source], None], threads: int = 64, budget: float | None = None):
    """The verdict on two warps with an mbarrier of count 1 that do what `write` adds."""
    k = cta.start(threads)
    k.only(0, lambda: k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;"))
    k("bar.sync 0;")
    write(k)
    cta.store_own(k, "%r0")
    return explore_launch(k, cta.ints(threads)(), budget).orders


def arrive(k: Source):
    k("mbarrier.arrive.shared::cta.b64 _, [%r1+1024];")


def hand_over(k: Source):
    k.only(32, lambda: arrive(k))
    k.only(0, lambda: k.wait("%r1+1024", 0))


def test_a_hand_over_is_free_of_deadlocks():
    found = verdict(hand_over)
    assert found.kind == FREE and found.clusters == found.distinct == 1 and not found.reasons
    # init; bar.sync of two warps; arrive; wait; of each warp the exits of its lanes and of the warp
    assert found.steps == 1 + 4 + 2 + 4
    assert found.states == found.steps + 1
    assert str(found).startswith("all orders: deadlock-free (1 cluster(s), 11 steps, 12 states in ")


def look_once(k: Source):
    def look():
        k("mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+1024], 0;", "look")
        k("@%p5 bra SEEN;", "branch")
        k("add.u32 %r9, %r9, 1;")
        k("SEEN: mov.u32 %r9, 0;")

    k.only(32, lambda: arrive(k))
    k.only(0, look)


def ask_the_clock(k: Source):
    k("mov.u32 %r9, %clock;")
    k("setp.eq.u32 %p5, %r9, 7;")
    k("@%p5 bra SKIP;")
    hand_over(k)
    k("SKIP: mov.u32 %r9, 0;")


def take_a_ticket(k: Source):
    """Which thread arrives is decided by an atomic, through shared memory."""
    k("mov.u32 %r9, 0;")
    k("atom.shared.add.u32 %r9, [%r1+2048], 1;")
    k("st.shared.u32 [%r3+64], %r9;")
    k("ld.shared.u32 %r10, [%r3+64];")
    k("setp.ne.u32 %p5, %r10, -1;")
    k("@%p5 bra SKIP;")
    arrive(k)
    k("SKIP: mov.u32 %r9, 0;")


def ticket(k: Source, body: tuple[str, ...]):
    """One lane of each warp takes a ticket; where warp 1 has the first, it executes `body`. Then the
    warps meet, and warp 0 sets a flag.
    """
    k.only(0, lambda: k("st.shared.v2.u32 [%r1+2048], {0, 0};"))
    k("bar.sync 0;")
    k("and.b32 %r8, %r0, 31;")
    k("shr.u32 %r7, %r0, 5;")
    k("setp.ne.u32 %p5, %r8, 0;")
    k("@%p5 bra MEET;")
    k("atom.shared.add.u32 %r9, [%r1+2048], 1;")
    k("setp.eq.u32 %p6, %r9, 0;")
    k("setp.eq.and.u32 %p7, %r7, 1, %p6;")
    k("@!%p7 bra MEET;")
    for line in body:
        k(line)
    k("MEET: bar.sync 0;")
    k.only(0, lambda: k("st.release.cta.shared.u32 [%r1+2052], 1;"))


POLL = (
    "POLL: ld.acquire.cta.shared.u32 %r10, [%r1+2052];",
    "setp.eq.u32 %p8, %r10, 0;",
    "@%p8 bra POLL;",
)
COUNT = ("mov.u32 %r10, 0;", "UP: add.u32 %r10, %r10, 1;", "setp.lt.u32 %p8, %r10, 9;")


def count_data(k: Source):
    """An atomic that only becomes data, and a look whose result nobody uses."""
    hand_over(k)
    k("atom.shared.add.u32 %r9, [%r1+2048], 1;")
    k("mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r1+1024], 0;")


def pipeline(k: Source, tiles: int = 3, late: bool = False):
    """Warp 1 fills a stage, warp 0 looks whether it is full, does something else, and waits if it
    was not. late: the wait comes after the arrival that the next fill waits for.
    """
    full, empty = "%r1+2048", "%r1+2056"
    mbarriers(k, 1, 2048, 2056)
    k("bar.sync 0;")

    def fill():
        for tile in range(tiles):
            if tile:
                k.wait(empty, 1 ^ tile & 1)
            k(f"mbarrier.arrive.shared::cta.b64 _, [{full}];")

    def drain():
        release = f"mbarrier.arrive.shared::cta.b64 _, [{empty}];"
        for tile in range(tiles):
            k(f"mbarrier.try_wait.parity.shared::cta.b64 %p5, [{full}], {tile & 1};", "look")
            k("add.u32 %r9, %r9, 1;")
            if late and tile + 1 < tiles:
                k(release)
            k(f"@%p5 bra SEEN{tile};")
            k("add.u32 %r10, %r1, 2048;")  # compilers put it here
            k.wait("%r10", tile & 1, "wait")
            k(f"SEEN{tile}: add.u32 %r9, %r9, 1;")
            if not late:
                k(release)

    k.only(32, fill)
    k.only(0, drain)


def test_a_look_in_front_of_a_wait_is_explored_with_both_outcomes():
    found = verdict(pipeline)
    assert (found.kind, found.reasons) == (FREE, [])


def test_a_deadlock_behind_a_look_is_found():
    """Right where the look finds the stage full; where it does not, the wait may come too late."""
    k = cta.start(64)
    pipeline(k, tiles=2, late=True)
    cta.store_own(k, "%r0")
    launch = explore_launch(k, cta.ints(64)())
    assert launch.orders.kind == DEADLOCK
    assert launch.findings is not None
    (finding,) = [f for f in launch.findings if "another order" in f.message]
    assert "another order of the warps hangs" in finding.message
    assert any(f":{n}" in finding.loc for n in k.marks["wait"]), finding.message
    assert "looks whether parity" in finding.message


def test_a_wait_that_is_left_out_where_the_look_has_failed_is_not_proved(one_run):
    def wrong(k: Source):
        def wait():
            k("mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+1024], 0;")
            k("@!%p5 bra SEEN;")
            k.wait("%r1+1024", 0)
            k("SEEN: mov.u32 %r9, 0;")

        k.only(32, lambda: arrive(k))
        k.only(0, wait)

    found = verdict(wrong)
    assert found.kind == INCOMPLETE
    assert any("what a look has found decides over something else" in r for r in found.reasons)


def test_a_look_at_another_phase_than_the_wait_is_not_proved(one_run):
    def other(k: Source):
        def complete_two():
            arrive(k)
            k.wait("%r1+1024", 0)
            arrive(k)

        def wait():
            k("mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+1024], 0;")
            k("@%p5 bra SEEN;")
            k.wait("%r1+1024", 1)
            k("SEEN: mov.u32 %r9, 0;")

        k.only(32, complete_two)
        k.only(0, wait)

    found = verdict(other)
    assert found.kind == INCOMPLETE


@pytest.mark.parametrize(
    "write, words",
    [
        (look_once, "bra goes on by a value that another order may change: of mbarrier.try_wait"),
        (ask_the_clock, "bra goes on by a value that another order may change: of mov"),
        (take_a_ticket, "bra goes on by a value that another order may change: of atom"),
    ],
)
def test_one_run_does_not_tell_what_another_order_may_change(one_run, write, words):
    found = verdict(write)
    assert found.kind == INCOMPLETE
    assert any(words in reason for reason in found.reasons), found.reasons


def fill_by_ticket(k: Source, fill: tuple[str, ...], hangs_on: int):
    """A lane of each warp takes a ticket. Warp 1, which has the second one in the usual order, does
    `fill` with its ticket in %r9. Warp 0 reads the word, and hangs on one of its values.
    """
    k.only(0, lambda: k("st.shared.v4.u32 [%r1+2048], {0, 0, 1, 0};"))
    k("bar.sync 0;")
    k.only(0, lambda: k("atom.shared.add.u32 %r8, [%r1+2048], 1;"))

    def second():
        k("atom.shared.add.u32 %r9, [%r1+2048], 1;")
        for line in fill:
            k(line)

    k.only(32, second)
    k("bar.sync 0;")

    def read():
        k("ld.shared.u32 %r10, [%r1+2056];")
        k(f"setp.ne.u32 %p5, %r10, {hangs_on};")
        k("@%p5 bra SKIP;")
        k.wait("%r1+1024", 0)
        k("SKIP: mov.u32 %r10, 0;")

    k.only(0, read)


# Nothing is filled by the second ticket, or only by it.
SIZE = (
    "sub.u32 %r11, 1, %r9;",
    "mul.wide.u32 %rd5, %r11, 8;",
    "st.bulk.shared::cta [%r1+2056], %rd5, 0;",
)
GUARD = ("setp.eq.u32 %p6, %r9, 1;", "@%p6 st.bulk.shared::cta [%r1+2056], 8, 0;")


@pytest.mark.parametrize("fill, hangs_on", [(SIZE, 0), (GUARD, 1)], ids=["size", "guard"])
def test_what_st_bulk_fills_may_decide(fill, hangs_on):
    assert verdict(lambda k: fill_by_ticket(k, fill, hangs_on)).kind == DEADLOCK


@pytest.mark.parametrize("fill, hangs_on", [(SIZE, 0), (GUARD, 1)], ids=["size", "guard"])
def test_one_run_does_not_tell_what_st_bulk_fills_in_another_order(one_run, fill, hangs_on):
    found = verdict(lambda k: fill_by_ticket(k, fill, hangs_on))
    assert found.kind == INCOMPLETE
    assert any("may change: of atom" in reason for reason in found.reasons), found.reasons


@pytest.mark.parametrize(
    "kind", ["st.bulk.shared::cta [%r1+2056], 8, 0;", "st.shared.u64 [%r1+2056], 0;"]
)
def test_a_fill_is_explored_as_a_store(kind):
    found = verdict(lambda k: fill_by_ticket(k, (kind,), 1))
    assert (found.kind, found.reasons) == (FREE, [])


@pytest.mark.parametrize(
    "body, kind",
    [
        (POLL, DEADLOCK),  # of a flag that is set behind the barrier
        (("ENDLESS: bra ENDLESS;",), INCOMPLETE),
        ((*COUNT, "@%p8 bra UP;"), FREE),
    ],
    ids=["poll", "endless", "count"],
)
def test_a_loop_that_another_order_enters_is_no_step_of_this_one(body, kind):
    assert verdict(lambda k: ticket(k, body)).kind == kind


def test_what_only_becomes_data_does_not():
    assert verdict(count_data).kind == FREE


def test_a_bound_makes_it_incomplete(monkeypatch):
    monkeypatch.setattr(Explorer, "limit", 20)
    planted = orders.PLANTED[1]
    found = explore(planted.build(True), planted.args())
    assert found.kind == INCOMPLETE
    assert "stopped at the bound of 20 states" in found.reasons[0]


@pytest.mark.parametrize("write", [hand_over, take_a_ticket], ids=["explored", "walked through"])
@pytest.mark.parametrize("seconds, over", [(1e9, False), (1.0, True)])
def test_a_budget_of_seconds_makes_it_incomplete(monkeypatch, write, seconds, over):
    """The orders of a launch are looked at 1,000 seconds after it began, by the clock."""
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000)
    monkeypatch.setattr(states, "time", later)
    found = verdict(write, budget=seconds)
    assert (found.kind == INCOMPLETE) is over
    assert any("stopped by the budget of seconds" in reason for reason in found.reasons) is over


def test_states_of_much_shared_memory_are_not_walked_through(monkeypatch):
    monkeypatch.setattr(walk, "SHARED", 1 << 14)
    found = verdict(take_a_ticket)
    assert found.kind == INCOMPLETE
    assert "its CTAs have more than 16,384 bytes of shared memory" in found.reasons[-1]


def test_it_takes_the_checker():
    with pytest.raises(ValueError, match="needs the checker"):
        b200.machine(Gpu().memory, check=False, schedule="all")


def copy_by_ticket(k: Source, loads: bool):
    """As fill_by_ticket: the second ticket copies 16 bytes, the first one would copy 32. loads: the
    copy signals an mbarrier that awaits 16; else warp 0 reads what is copied, and hangs where it
    finds the last 16 bytes.
    """
    k.only(0, lambda: k("st.shared.v4.u32 [%r1+2048], {0, 0, 1, 0};"))
    k.only(0, lambda: k("st.shared.v4.u32 [%r1+528], {5, 5, 5, 5};"))
    k("bar.sync 0;")
    k.only(0, lambda: k("atom.shared.add.u32 %r8, [%r1+2048], 1;"))

    def second():
        k("atom.shared.add.u32 %r9, [%r1+2048], 1;")
        k("sub.u32 %r11, 1, %r9;")
        k("shl.b32 %r11, %r11, 4;")
        k("add.u32 %r11, %r11, 16;")
        k("fence.proxy.async;")
        if loads:
            k("mbarrier.arrive.expect_tx.shared.b64 _, [%r1+1024], 16;")
            to, done = "cp.async.bulk.shared::cluster.global", "mbarrier::complete_tx::bytes"
            k(f"{to}.{done} [%r1+4096], [%rd0], %r11, [%r1+1024];")
            return k.wait("%r1+1024", 0)
        k("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+512], %r11;")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")
        k("fence.proxy.async;")

    k.only(32, second)
    k("bar.sync 0;")

    def read():
        k("ld.global.u32 %r10, [%rd0+16];")
        k("setp.ne.u32 %p5, %r10, 5;")
        k("@%p5 bra SKIP;")
        k.wait("%r1+1024", 0)
        k("SKIP: mov.u32 %r10, 0;")

    if not loads:
        k.only(0, read)


@pytest.mark.parametrize("loads", [True, False], ids=["load", "store"])
def test_how_much_is_copied_may_decide(loads):
    assert verdict(lambda k: copy_by_ticket(k, loads)).kind in (DEADLOCK, INCOMPLETE)


@pytest.mark.parametrize("loads", [True, False], ids=["load", "store"])
def test_one_run_does_not_tell_how_much_is_copied_in_another_order(one_run, loads):
    assert verdict(lambda k: copy_by_ticket(k, loads)).kind == INCOMPLETE


def test_a_racy_value_in_tensor_memory_decides():
    """Warps 0 and 4 store other values in the same columns; warp 0 goes on by what it finds there.
    A race is found, so the run does not tell what another order leaves there.
    """
    k = cta.start(160)
    k("mov.u32 %r4, 0;")
    k.only(0, lambda: k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;"), 31)
    k("bar.sync 0;")
    store = partial(k, "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r0};")
    k.only(0, store, 31)
    k.only(128, store, 159)
    k("tcgen05.wait::st.sync.aligned;")
    k("bar.sync 0;")
    k("setp.ge.u32 %p5, %r0, 32;")
    k("@%p5 bra DONE;")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];")
    k("tcgen05.wait::ld.sync.aligned;")
    k("setp.eq.u32 %p5, %r5, %r0;")
    k("@%p5 bra DONE;")
    k("bar.sync 1, 64;")
    k("DONE: bar.sync 0;")
    k.only(0, lambda: k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;"), 31)
    launch = explore_launch(k, cta.ints(160)())
    assert launch.orders.kind == DEADLOCK
    assert {"race", "deadlock"} == {f.kind for f in launch.findings or ()}


GRID_SYNC = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
.reqntid 32, 1, 1
{{
 .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
 mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra DONE;
 mov.u32 %r2, %envreg1; mov.u32 %r3, %envreg2; mov.b64 %rd0, {{%r3, %r2}};
 atom.add.release.gpu.global.u32 %r4, [%rd0+4], 1;
AGAIN: ld.acquire.gpu.global.u32 %r4, [%rd0+4]; setp.lt.u32 %p1, %r4, 2; @%p1 bra AGAIN;
 {behind}
DONE: ret;
}}
"""


@pytest.mark.parametrize(
    "behind, kind",
    [
        ("", FREE),
        ("setp.eq.u32 %p2, %r1, 0; @%p2 st.relaxed.gpu.global.u32 [%rd0+4], 0;", DEADLOCK),
    ],
    ids=["as it is", "taken back by one CTA"],
)
def test_the_workspace_of_a_cooperative_launch(behind, kind):
    """Two CTAs meet in the workspace that grid.sync() uses."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, schedule="all")
    text = GRID_SYNC.format(behind=behind)
    launch = gpu.launch(text, "k", (2, 1, 1), (32, 1, 1), args=[0], cooperative=True)
    assert launch.orders.kind == kind, launch.orders.reasons
