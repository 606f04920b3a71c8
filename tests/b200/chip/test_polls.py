"""Loops that read memory: which end, what is said of those that do not."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from b200 import EmulatorError
from b200.chip import hang, polls, spin
from b200.chip.fragment import ClusterBarrier
from b200.chip.gpu import Gpu
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import MBarrier
from b200.program.module import Instr
from tests.b200.chip.machine_support import output
from tests.b200.ptx_support import kernel, own_element, run


@pytest.mark.parametrize("rounds", [40, 300, 5000])
@pytest.mark.parametrize("counter", ["%r1", "0"], ids=["a lane", "all lanes"])
def test_a_loop_that_gives_up_after_some_rounds_ends(counter, rounds):
    """It reads a word that nobody writes, and counts: from another number in each lane, or not."""
    got = output(
        f"""
    mov.b32 %r10, dyn; mov.b32 %r11, 0; st.shared.u32 [%r10], %r11;
    bar.warp.sync -1;
    mov.b32 %r5, {counter}; add.u32 %r6, %r5, {rounds};
    AGAIN: ld.volatile.shared.u32 %r7, [%r10];
    add.u32 %r5, %r5, 1;
    setp.ne.u32 %p1, %r7, 0; @%p1 bra OUT;
    setp.lt.u32 %p2, %r5, %r6; @%p2 bra AGAIN;
    OUT: st.global.u32 [%rd3], %r5;""",
        smem=64,
    )
    assert got == [rounds + (lane if counter == "%r1" else 0) for lane in range(32)]


def test_a_lane_that_goes_on_keeps_its_warp_from_standing(monkeypatch):
    """Lane 5 follows a list to its end while the others read one word again and again. A counter
    makes the registers of each round differ, and nobody writes.
    """
    monkeypatch.setattr(spin, "LONG", 1 << 9)
    links = torch.arange(1, 2001, dtype=torch.int32)
    links[0] = links[-1] = 0
    body = f"""{own_element(4)}
    ld.param.u64 %rd5, [links];
    setp.eq.u32 %p1, %r1, 5; selp.b32 %r5, 1, 0, %p1; mov.b32 %r6, 0;
    AGAIN: mul.wide.u32 %rd6, %r5, 4; add.u64 %rd6, %rd6, %rd5;
    ld.volatile.global.u32 %r5, [%rd6]; add.u32 %r6, %r6, 1;
    setp.ne.u32 %p2, %r5, 0; vote.sync.any.pred %p3, %p2, -1; @%p3 bra AGAIN;
    st.global.u32 [%rd3], %r6;"""
    out = torch.zeros(32, dtype=torch.int32)
    gpu = Gpu()
    gpu.machine.order.turn = 256
    run(kernel(body, [".u64 out", ".u64 links"]), out, links, gpu=gpu)
    assert out.tolist() == [1999] * 32


LOOKS = {
    "once": "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], 0; AGAIN:",
    "in each round": "AGAIN: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], 0;",
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_look_in_vain_does_not_keep_a_poll_from_standing(look):
    """A phase is not over, and then a word is polled that nobody writes."""
    body = f"""mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; setp.eq.u32 %p3, %r1, 0;
    @%p3 mbarrier.init.shared::cta.b64 [%r2], 1; @%p3 st.volatile.shared.u32 [%r2+8], 0;
    bar.warp.sync -1;
    {look} ld.volatile.shared.u32 %r6, [%r2+8]; setp.eq.u32 %p2, %r6, 0; @%p2 bra AGAIN;"""
    with pytest.raises(EmulatorError) as caught:
        run(kernel(body, []), smem=128)
    assert caught.value.kind == "deadlock"


VOTES = {  # the lanes whose flag comes, the vote, the lane that is told
    "any": (1 << 13 ^ 0xFFFFFFFF, "vote.sync.any.pred %p3, !%p2, -1;", 13),
    "all": (1 << 13, "vote.sync.all.pred %p4, %p2, -1; not.pred %p3, %p4;", 0),
    "ballot": (
        1 << 21 ^ 0xFFFFFFFF,
        "vote.sync.ballot.b32 %r7, %p2, -1; setp.ne.u32 %p3, %r7, -1;",
        21,
    ),
}


@pytest.mark.parametrize("comes, vote, lane", VOTES.values(), ids=VOTES)
def test_of_lanes_that_vote_one_is_told_that_holds_the_others(comes, vote, lane):
    body = f"""mov.u32 %r1, %tid.x; mov.u32 %r2, dyn;
    and.b32 %r3, %r1, 31; shl.b32 %r4, %r3, 2; add.u32 %r2, %r2, %r4;
    mov.u32 %r5, {comes}; shr.u32 %r5, %r5, %r3; and.b32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r1, 32; @!%p1 st.volatile.shared.u32 [%r2], %r5; @!%p1 bra OUT;
    st.volatile.shared.u32 [%r2], 0;
    AGAIN: ld.volatile.shared.u32 %r6, [%r2];
    setp.eq.u32 %p2, %r6, 1; {vote} @%p3 bra AGAIN;
    OUT:"""
    with pytest.raises(EmulatorError) as caught:
        run(kernel(body, [], reqntid=64), block=(64, 1, 1), smem=128)
    assert f"polls shared memory at {0x400 + 4 * lane:#x} of CTA" in str(caught.value)
    assert "it reads 0, and 0 == 1 is false" in str(caught.value)


@pytest.mark.parametrize(
    "kind, value, text",
    [
        ("u32", 0xFFFFFFFE, "4294967294"),
        ("s32", 0xFFFFFFFE, "-2"),
        ("b32", 5, "5"),
        ("u16", 0xFFFE, "65534"),
        ("s16", 0xFFFE, "-2"),
        ("u64", 2**64 - 2, str(2**64 - 2)),
        ("s64", 2**64 - 2, "-2"),
        ("s64", 2**63, str(-(2**63))),
        ("f32", int(np.float32(1.5).view(np.uint32)), "1.5"),
        ("f64", int(np.float64(-2.25).view(np.uint64)), "-2.25"),
    ],
)
def test_a_number_is_told_as_its_type_has_it(kind, value, text):
    assert polls._number(Instr(f"setp.lt.{kind}", ()), value) == text


SPACES = {  # the poll's address in %r20 or %rd20, of CTA `other`; what is said of it
    "shared": "mov.u32 %r20, cell;",
    "shared::cta": "mov.u32 %r20, cell;",
    "shared::cluster": "mov.u32 %r21, cell; mapa.shared::cluster.u32 %r20, %r21, {other};",
    "generic": "mov.u64 %rd20, cell; cvta.shared.u64 %rd20, %rd20;",
    "generic of a peer": "mov.u64 %rd20, cell; cvta.shared.u64 %rd20, %rd20;"
    "mapa.u64 %rd20, %rd20, {other};",
}


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("space", SPACES)
def test_the_cta_is_named_whose_memory_is_polled(space, reader, other):
    generic = space.startswith("generic")
    load = "ld.volatile" if generic else f"ld.relaxed.cluster.{space}"
    if space in ("shared", "shared::cta"):
        load = f"ld.volatile.{space}"
    body = f"""mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x;
    st.shared.u32 [cell], 0; barrier.cluster.arrive; barrier.cluster.wait;
    setp.ne.u32 %p1, %r1, {reader}; @%p1 bra OUT;
    {SPACES[space].format(other=other)}
    AGAIN: {load}.u32 %r5, [{"%rd20" if generic else "%r20"}];
    setp.eq.u32 %p2, %r5, 0; @%p2 bra AGAIN;
    OUT: barrier.cluster.arrive; barrier.cluster.wait;"""
    text = kernel(body, [], ".shared .b32 cell;")
    with pytest.raises(EmulatorError) as caught:
        run(text, grid=(2, 1, 1), cluster=(2, 1, 1))
    where = other if "::cluster" in space or "peer" in space else reader
    assert caught.value.kind == "deadlock"
    found = re.search(
        r"warp 0 of (.*) polls shared memory at .* of (.*): it reads", str(caught.value)
    )
    assert found is not None, caught.value
    assert found.groups() == (f"CTA ({reader}, 0, 0)", f"CTA ({where}, 0, 0)")


def test_printf_returns_how_many_arguments_each_lane_has_printed(capsys):
    """System Calls (PTX Writer's Guide to Interoperability): vprintf gives a number a lane."""
    form = torch.tensor([*b"%d and %d\n\0"], dtype=torch.uint8)
    out = torch.full((32,), 77, dtype=torch.int32)
    body = f"""{own_element(4)}
    .local .align 8 .b8 buffer[8];
    ld.param.u64 %rd5, [form]; mov.u64 %rd6, buffer; cvta.local.u64 %rd6, %rd6;
    st.local.u32 [buffer], %r1; st.local.u32 [buffer+4], 9;
    setp.lt.u32 %p1, %r1, 30; @%p1 bra OUT;
    {{ .param .b64 a; .param .b64 b; .param .b32 r;
    st.param.b64 [a], %rd5; st.param.b64 [b], %rd6;
    call.uni (r), vprintf, (a, b);
    ld.param.b32 %r9, [r]; }}
    add.u32 %r9, %r9, %r1; st.global.u32 [%rd3], %r9;
    OUT:"""
    declared = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);"
    run(kernel(body, [".u64 out", ".u64 form"], declared), out, form)
    assert capsys.readouterr().out == "30 and 9\n31 and 9\n"
    assert out.tolist() == [77] * 30 + [2 + 30, 2 + 31]


@pytest.mark.parametrize(
    "waits_for, words",
    [
        (None, "waits for lanes of its own warp"),
        (MBarrier.__new__(MBarrier), "waits for an mbarrier"),
        (NamedBarrier.__new__(NamedBarrier), "waits for a barrier"),
        (ClusterBarrier.__new__(ClusterBarrier), "waits for its cluster"),
        (object(), "waits for something"),
    ],
)
def test_what_keeps_a_warp_from_a_write_is_told(monkeypatch, waits_for, words):
    monkeypatch.setattr(hang, "where", lambda machine, fragment: "k.py:3")
    assert hang._kept(None, SimpleNamespace(waits_for=waits_for)) == f"{words} at k.py:3"


@pytest.mark.parametrize("rounds", [10, 300, 3000])
@pytest.mark.parametrize("worker", [0, 5, 31])
def test_a_lane_at_work_is_not_taken_for_those_of_its_warp_that_poll(worker, rounds):
    """It reads no memory meanwhile, and writes what they wait for in the end."""
    got = output(
        f"""
    mov.b32 %r10, dyn; mov.b32 %r11, 0; st.shared.u32 [%r10], %r11;
    bar.warp.sync -1;
    setp.eq.u32 %p1, %r1, {worker}; @%p1 bra WORK;
    POLL: ld.volatile.shared.u32 %r5, [%r10];
    setp.eq.u32 %p2, %r5, 0; @%p2 bra POLL;
    bra END;
    WORK: mov.u32 %r6, 0;
    MORE: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, {rounds}; @%p3 bra MORE;
    mov.u32 %r5, %r6; st.volatile.shared.u32 [%r10], %r6;
    END: st.global.u32 [%rd3], %r5;""",
        smem=64,
    )
    assert got == [rounds] * 32


def test_a_warp_that_has_changed_something_and_then_polls_is_left_within_its_turn():
    """A grid barrier: each CTA adds to a counter and polls until all have. A turn has thousands of
    blocks; none goes on to the end of one.
    """
    body = f"""{own_element(4)}
    mov.u32 %r10, %nctaid.x; ld.param.u64 %rd4, [count]; mov.u32 %r5, 0;
    ROUND: add.u32 %r5, %r5, 1; mul.lo.u32 %r11, %r5, %r10;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra MEET;
    red.release.gpu.global.add.u32 [%rd4], 1;
    AGAIN: ld.acquire.gpu.global.u32 %r7, [%rd4];
    setp.lt.u32 %p2, %r7, %r11; @%p2 bra AGAIN;
    MEET: bar.warp.sync -1;
    setp.lt.u32 %p3, %r5, 3; @%p3 bra ROUND;
    st.global.u32 [%rd3], %r7;"""
    ctas = 16
    out, count = torch.zeros(32 * ctas, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launch = run(kernel(body, [".u64 out", ".u64 count"]), out, count, grid=(ctas, 1, 1))
    assert out[::32].tolist() == [3 * ctas] * ctas
    assert launch.counters["ld.acquire"] < 3 * ctas * 256
