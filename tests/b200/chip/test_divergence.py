"""Lanes of a warp that part and meet again."""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.chip.machine_support import output, report
from tests.b200.ptx_support import HEADER, kernel, own_element, run


def test_if_else_reconverges_and_keeps_each_lane_its_value():
    got = output("""
    setp.lt.u32 %p1, %r1, 10;
    mov.b32 %r5, 7;
    @%p1 bra A;
    add.u32 %r5, %r1, 1000;
    bra B;
    A:
    add.u32 %r5, %r1, 100;
    B:
    vote.sync.ballot.b32 %r6, 1, -1;
    popc.b32 %r7, %r6;
    add.u32 %r5, %r5, %r7;
    st.global.u32 [%rd3], %r5;""")
    assert got == [t + 132 if t < 10 else t + 1032 for t in range(32)]


def test_loop_that_lanes_leave_at_different_times():
    got = output("""
    mov.b32 %r5, 0;
    mov.b32 %r6, 0;
    L:
    add.u32 %r5, %r5, %r6;
    add.u32 %r6, %r6, 1;
    setp.le.u32 %p1, %r6, %r1;
    @%p1 bra L;
    st.global.u32 [%rd3], %r5;
    mul.lo.u32 %r6, %r6, 1000;
    red.global.add.u32 [%rd3], %r6;""")
    assert got == [t * (t + 1) // 2 + 1000 * (t + 1) for t in range(32)]


def test_nested_divergence_with_early_exit():
    got = output("""
    setp.ge.u32 %p1, %r1, 20;
    @%p1 bra OUT;
    and.b32 %r4, %r1, 1;
    setp.eq.b32 %p2, %r4, 0;
    @%p2 bra EVEN;
    setp.gt.u32 %p3, %r1, 9;
    @%p3 ret;
    mov.b32 %r5, 1;
    bra JOIN;
    EVEN:
    mov.b32 %r5, 2;
    JOIN:
    add.u32 %r5, %r5, 10;
    st.global.u32 [%rd3], %r5;
    OUT:""")
    assert got == [-1 if t >= 20 or (t % 2 and t > 9) else (11 if t % 2 else 12) for t in range(32)]


def test_uniform_counter_of_an_elected_lane_does_not_leak_into_the_other_lanes():
    """r6 counts in the elected lane only; the others still see its old value after the loop."""
    got = output("""
    mov.b32 %r6, 5;
    elect.sync %r9|%p1, -1;
    @!%p1 bra JOIN;
    mov.b32 %r7, 0;
    L:
    add.u32 %r6, %r6, 1;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p2, %r7, 10;
    @%p2 bra L;
    JOIN:
    st.global.u32 [%rd3], %r6;""")
    assert got == [15] + [5] * 31


def test_guarded_instruction_keeps_the_other_lanes():
    got = output("""
    mov.b32 %r5, 3;
    setp.gt.u32 %p1, %r1, 15;
    @%p1 mov.b32 %r5, 4;
    @!%p1 add.u32 %r5, %r5, 10;
    st.global.u32 [%rd3], %r5;""")
    assert got == [13] * 16 + [4] * 16


@pytest.mark.parametrize("first", ["setp.ne.u32 %p1, %r1, 0;", "setp.gt.u32 %p1, %r1, 7;"])
def test_lanes_meet_at_a_barrier_that_the_post_dominator_lies_behind(first):
    """%p2 is never true, which the compiler knew: the lanes that leave at it would pass the barrier.
    The checker does not count them apart.
    """
    body = (
        """
    mov.b32 %r10, dyn;
    setp.gt.u32 %p2, %r1, 99;
    """
        + first
        + """
    @%p1 bra BAR;
    mov.b32 %r5, 7;
    st.shared.u32 [%r10], %r5;
    @%p2 bra END;
    BAR:
    bar.sync 0;
    ld.shared.u32 %r6, [%r10];
    add.u32 %r6, %r6, %r1;
    st.global.u32 [%rd3], %r6;
    END:"""
    )
    assert output(body, smem=64) == [7 + t for t in range(32)]
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(32, dtype=torch.int32)
    launch = run(kernel(own_element(4) + body, [".u64 out"]), out, smem=64, gpu=gpu)
    assert launch.findings == []


def test_a_barrier_that_some_lanes_pass_is_a_fault():
    error = report(
        """
    setp.ne.u32 %p1, %r1, 0;
    setp.lt.u32 %p2, %r1, 99;
    @%p1 bra BAR;
    st.global.u32 [%rd3], %r1;
    @%p2 bra END;
    BAR:
    bar.sync 0;
    END:
    st.global.u32 [%rd3], %r1;"""
    )
    assert error.kind == "fault" and "active lanes 0xfffffffe" in str(error)


LEAVE = {  # what lanes do on a way of which the rest of their arm is left out
    "trap": "@%p2 trap;",
    "trap in a block": "@!%p2 bra GO; st.global.u32 [%rd3], 1; trap; GO:",
    "exit": "@%p2 exit;",
    "exit in a block": "@!%p2 bra GO; mov.b32 %r8, 1; st.global.u32 [%rd3], %r8; exit; GO:",
}


@pytest.mark.parametrize("leaves", [False, True], ids=["nobody leaves", "some leave"])
@pytest.mark.parametrize("how", LEAVE)
def test_lanes_meet_behind_an_arm_of_which_a_way_leaves(how, leaves):
    """As __trap(), and `return` within an if: then the whole warp comes to an aligned barrier."""
    if leaves and how.startswith("trap"):
        return
    last = 12 if leaves else 99
    got = output(
        f"""
    mov.b32 %r5, %r1; setp.lt.u32 %p1, %r1, 8;
    @%p1 bra NEXT;
    add.u32 %r5, %r5, 1;
    setp.eq.u32 %p2, %r1, {last};
    {LEAVE[how]}
    NEXT:
    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra SYNC;
    add.u32 %r5, %r5, 1;
    setp.gt.u32 %p2, %r5, 1000;
    @%p2 trap;
    SYNC:
    bar.sync 0;
    st.global.u32 [%rd3], %r5;"""
    )
    want = [t + (t > 7) + (t > 15) for t in range(32)]
    if leaves:
        want[12] = 1 if how.endswith("block") else -1
    assert got == want


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_breakpoint_is_refused_where_it_is_reached(lanes):
    """C++ CUTLASS has one behind each of its checks."""
    body = f"""
    setp.lt.u32 %p1, %r1, {lanes};
    @!%p1 bra GO;
    brkpt;
    GO:
    st.global.u32 [%rd3], %r1;"""
    if lanes:
        assert "brkpt stops for a debugger" in str(report(body))
    else:
        assert output(body) == list(range(32))


def test_lanes_that_leave_are_missed_at_no_outer_place():
    """Two branches deep, some lanes return while their siblings wait for them at the inner end."""
    got = output("""
    setp.lt.u32 %p1, %r1, 4;
    @%p1 bra OUTER;
    setp.lt.u32 %p2, %r1, 8;
    @%p2 bra INNER;
    mov.b32 %r6, 0;
    L: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, %r1; @%p3 bra L;
    setp.gt.u32 %p4, %r1, 15;
    @%p4 exit;
    INNER:
    st.global.u32 [%rd3], %r1;
    OUTER:
    bar.sync 0;
    mov.b32 %r7, 100;
    st.global.u32 [%rd3], %r7;""")
    assert got == [100] * 16 + [-1] * 16


def test_lanes_meet_behind_a_loop_that_some_return_from():
    got = output("""
    mov.b32 %r5, 0;
    L:
    add.u32 %r5, %r5, 1;
    setp.eq.u32 %p2, %r5, 20;
    @%p2 ret;
    setp.lt.u32 %p1, %r5, %r1;
    @%p1 bra L;
    bar.sync 0;
    st.global.u32 [%rd3], %r5;""")
    assert got == [max(t, 1) if t < 20 else -1 for t in range(32)]


def test_lanes_that_wait_for_their_own_siblings():
    """Lane 0 spins on an mbarrier that lane 1 of the same warp arrives on."""
    got = output(
        """
    mov.b32 %r10, dyn;
    mov.b32 %r11, 1;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r10], %r11;
    bar.warp.sync -1;
    setp.eq.u32 %p2, %r1, 1;
    @%p1 bra WAIT;
    @%p2 bra ARRIVE;
    bra JOIN;
    WAIT:
    { .reg .pred P1;
    LAB: mbarrier.try_wait.parity.shared.b64 P1, [%r10], 0, 10000000;
    @P1 bra DONE; bra LAB; DONE: }
    bra JOIN;
    ARRIVE:
    mbarrier.arrive.shared.b64 %rd9, [%r10];
    JOIN:
    st.global.u32 [%rd3], %r1;""",
        smem=64,
    )
    assert got == list(range(32))


RETURN_EARLY = """
    setp.ge.u32 %p1, %r1, 18;
    @%p1 bra END;
"""


def test_lanes_that_return_are_not_waited_for():
    got = output(
        RETURN_EARLY
        + """
    shfl.sync.idx.b32 %r5, %r1, 0, 31, -1;
    vote.sync.ballot.b32 %r6, 1, -1;
    bar.sync 0;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%rd3], %r5;
    END:"""
    )
    assert got == [0x3FFFF] * 18 + [-1] * 14


def test_a_predicate_on_a_barrier_of_the_warp_is_a_branch():
    """Odd lanes come to the first bar.warp.sync, even lanes to the second one."""
    got = output("""
    and.b32 %r5, %r1, 1;
    setp.eq.u32 %p1, %r5, 1;
    @%p1 bar.warp.sync -1;
    @!%p1 bar.warp.sync -1;
    st.global.u32 [%rd3], %r1;""")
    assert got == list(range(32))


def test_groups_of_one_instruction_that_name_themselves_get_results_of_their_own():
    got = output("""
    setp.lt.u32 %p1, %r1, 16;
    selp.b32 %r5, 0xffff, 0xffff0000, %p1;
    vote.sync.ballot.b32 %r6, 1, %r5;
    bar.warp.sync %r5;
    st.global.u32 [%rd3], %r6;""")
    assert [value & 0xFFFFFFFF for value in got] == [0xFFFF] * 16 + [0xFFFF0000] * 16


def test_lanes_that_name_different_lanes_at_different_places_are_told_apart():
    error = report("""
    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra LOW;
    vote.sync.ballot.b32 %r6, 1, -1;
    bra END;
    LOW:
    bar.warp.sync -1;
    END:
    st.global.u32 [%rd3], %r6;""")
    assert error.kind == "fault" and "which have diverged and do not come" in str(error)
    assert "lanes 16-31 wait at" in str(error)


def test_a_lane_that_spins_for_another_lane_of_its_warp_gets_it_to_run():
    """Lane 0 polls a word that the others store behind the branch."""
    got = output(
        """
    mov.b32 %r10, dyn;
    mov.b32 %r11, 0;
    setp.eq.u32 %p1, %r1, 0;
    st.shared.u32 [%r10], %r11;
    bar.warp.sync -1;
    @!%p1 bra ON;
    SPIN:
    ld.volatile.shared.u32 %r5, [%r10];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra SPIN;
    ON:
    mov.b32 %r6, 1;
    st.volatile.shared.u32 [%r10], %r6;
    st.global.u32 [%rd3], %r1;""",
        smem=64,
    )
    assert got == list(range(32))


def test_a_kernel_may_end_without_ret():
    """What stands last is executed by the lanes that come there, then they are gone."""
    out = torch.zeros(32, dtype=torch.int32)
    text = f"""{HEADER}.visible .entry k(.param .u64 out) {{
    .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r2, 0;
    AGAIN: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra AGAIN;
    st.global.u32 [%rd3], %r2;
    }}"""
    run(text, out)
    assert out.tolist() == [max(1, lane) for lane in range(32)]
