"""Waits for an mbarrier that give up, and loops around several waits."""

from __future__ import annotations

import pytest

from b200.chip.gpu import Gpu
from b200.clock.timed import timed_machine
from tests.b200.chip.machine_support import output, report

START = """
mov.b32 %r10, dyn; mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r10], 1;
mbarrier.init.shared::cta.b64 [%r10+8], 1;
READY: bar.sync 0;
mov.u32 %r5, 0;
"""


def look(at: int, done: str = "%p2", kind: str = "try_wait") -> str:
    return f"mbarrier.{kind}.parity.shared::cta.b64 {done}, [%r10+{at}], 0;"


def counted(limit: int, kind: str = "try_wait", then: str = "") -> str:
    """A loop of at most `limit` looks at the first mbarrier; %r5 are those in vain."""
    return f"""
    AGAIN: {look(0, kind=kind)} @%p2 bra OUT;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, {limit}; @%p3 bra AGAIN;
    {then}
    OUT: st.global.u32 [%rd3], %r5;"""


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
@pytest.mark.parametrize("limit", [2, 3, 1000])
def test_who_counts_its_tries_goes_on_after_the_last(limit, kind):
    assert output(START + counted(limit, kind), smem=64) == [limit] * 32


def test_a_trap_behind_the_last_try_is_reached_and_told_with_the_wait():
    said = report(START + counted(100, then="trap;"), smem=64)
    assert said.kind == "fault"
    assert "trap executed" in str(said)
    assert "waits gave up, as try_wait does after a time limit" in str(said)
    assert "1 of 1 arrival(s) missing" in str(said)


def test_a_limit_by_the_clock_is_reached():
    said = report(
        START
        + f"""
    mov.u64 %rd10, %clock64;
    AGAIN: {look(0)} @%p2 bra OUT;
    mov.u64 %rd11, %clock64; sub.u64 %rd12, %rd11, %rd10;
    setp.lt.u64 %p3, %rd12, 20000000; @%p3 bra AGAIN;
    trap;
    OUT: st.global.u32 [%rd3], %r5;""",
        smem=64,
    )
    assert said.kind == "fault" and "trap executed" in str(said)


@pytest.mark.parametrize("bound", [True, False])
def test_the_clock_reaches_a_time_limit_of_billions_of_cycles(bound):
    """With a modelled clock, too: a wait that would hang takes its time."""
    limit = "setp.lt.u64 %p3, %rd12, 2000000000; @%p3 bra AGAIN; trap;"
    body = f"""
    mov.u64 %rd10, %clock64;
    AGAIN: {look(0)} @%p2 bra OUT;
    mov.u64 %rd11, %clock64; sub.u64 %rd12, %rd11, %rd10;
    {limit if bound else "bra AGAIN;"}
    OUT: st.global.u32 [%rd3], %r5;"""
    gpu = Gpu()
    gpu.machine = timed_machine(gpu.memory)
    said = report(START + body, smem=64, gpu=gpu)
    assert said.kind == ("fault" if bound else "deadlock")
    assert ("trap executed" in str(said)) == bound


def test_who_gives_up_lets_those_go_on_that_do_not():
    """Warp 1 tries a hundred times for a barrier that nobody completes, and then arrives at the one
    that warp 0 waits for.
    """
    body = f"""
    setp.ge.u32 %p4, %r1, 32; @%p4 bra SECOND;
    FIRST: {look(8)} @!%p2 bra FIRST;
    bra DONE;
    SECOND: {look(0)} @%p2 bra DONE;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 100; @%p3 bra SECOND;
    setp.ne.u32 %p5, %r1, 32; @%p5 bra DONE;
    mbarrier.arrive.shared::cta.b64 _, [%r10+8];
    DONE: st.global.u32 [%rd3], %r5;"""
    assert output(START + body, threads=64, smem=64) == [0] * 32 + [100] * 32


def test_a_wait_without_a_bound_is_a_deadlock_of_its_mbarrier():
    said = report(START + f"AGAIN: {look(0)} @!%p2 bra AGAIN;", smem=64)
    assert said.kind == "deadlock"
    assert "nobody has ever arrived on it" in str(said) and "a bound of" not in str(said)


def test_a_deadlock_says_that_a_loop_may_have_a_bound_of_its_own():
    said = report(START + counted(1 << 30), smem=64)
    assert said.kind == "deadlock"
    assert "loop that counts or looks at a clock: a bound of the loop's own may" in str(said)


BOTH = f"""
AGAIN: {look(0)} @%p2 bra OUT;
{look(8, "%p3")} @!%p3 bra AGAIN;
OUT: st.global.u32 [%rd3], %r5;"""


def test_a_loop_around_two_waits_that_nobody_completes_is_a_deadlock():
    said = report(START + BOTH, smem=64)
    assert said.kind == "deadlock" and "any of: mbarrier" in str(said)


@pytest.mark.parametrize("at", [0, 8])
def test_a_loop_around_two_waits_ends_with_either(at):
    body = f"""
    setp.lt.u32 %p4, %r1, 32; @%p4 bra AGAIN;
    setp.ne.u32 %p5, %r1, 32; @%p5 bra OUT;
    mbarrier.arrive.shared::cta.b64 _, [%r10+{at}];
    bra OUT;"""
    assert output(START + body + BOTH, threads=64, smem=64) == [0] * 64


def test_a_wait_that_passes_beside_one_that_does_not_is_a_deadlock():
    body = f"""
    setp.ne.u32 %p5, %r1, 0; @%p5 bra CAME;
    mbarrier.arrive.shared::cta.b64 _, [%r10+8];
    CAME: bar.warp.sync -1;
    AGAIN: {look(8, "%p3")} @!%p3 bra AGAIN;
    {look(0)} @!%p2 bra AGAIN;"""
    said = report(START + body, smem=64)
    assert said.kind == "deadlock" and "waits for mbarrier" in str(said)


def test_an_atomic_that_changes_nothing_does_not_hide_a_wait_for_ever():
    body = f"""
    AGAIN: atom.shared.max.u32 %r6, [%r10+16], 0;
    {look(0)} @!%p2 bra AGAIN;"""
    said = report(START + "st.shared.u32 [%r10+16], %r5;" + body, smem=64)
    assert said.kind == "deadlock"
