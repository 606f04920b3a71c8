"""Where no time is modelled the clocks stand, and go on once all warps that could run poll."""

from __future__ import annotations

import pytest
import torch

from b200.chip import standing_clock
from b200.chip.gpu import Gpu
from b200.errors import EmulatorError
from b200.hardware import SM_COUNT
from tests.b200.ptx_support import kernel

# Thread 0 goes round until the clock has gone on by %rd9, or a word at `a` is not 0.
WAIT = """
ld.param.u64 %rd1, [a]; ld.param.u64 %rd9, [cycles]; mov.u32 %r1, %tid.x;
setp.ne.u32 %p0, %r1, 0; @%p0 bra END;
mov.u64 %rd2, {clock};
AGAIN: {poll}
mov.u64 %rd3, {clock}; sub.u64 %rd3, %rd3, %rd2; setp.lt.u64 %p1, %rd3, %rd9; @%p1 bra AGAIN;
mov.u32 %r3, 7; st.global.u32 [%rd1+4], %r3;
END:
"""
POLL = "ld.volatile.global.u32 %r2, [%rd1]; setp.ne.u32 %p2, %r2, 0; @%p2 bra END;"


def launch(body: str, cycles: int) -> list[int]:
    out = torch.zeros(2, dtype=torch.int32)
    text = kernel(body, [".u64 a", ".u64 cycles"])
    Gpu().launch(text, None, (2, 1, 1), (64, 1, 1), args=[out, cycles])
    return out.tolist()


@pytest.mark.parametrize("cycles", [1, 1000, 1 << 33])
@pytest.mark.parametrize("poll", ["", POLL], ids=["pause", "limit"])
@pytest.mark.parametrize("clock", ["%clock64", "%globaltimer"])
def test_a_loop_that_looks_at_a_clock_ends(clock, poll, cycles):
    assert launch(WAIT.format(clock=clock, poll=poll), cycles) == [0, 7]


def test_clocks_do_not_go_on_while_a_warp_works():
    """Both readings lie between the same two polls, so nothing tells them apart."""
    body = """ld.param.u64 %rd1, [a]; mov.u32 %r1, %clock; mov.u32 %r4, 0;
    LOOP: add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 2000; @%p1 bra LOOP;
    mov.u32 %r2, %clock; sub.u32 %r3, %r2, %r1; st.global.u32 [%rd1], %r3;"""
    assert launch(body, 0) == [0, 0]


def test_each_wave_of_a_grid_may_wait(monkeypatch):
    """A CTA takes all the shared memory of its SM, so that the grid has three waves."""
    monkeypatch.setattr(standing_clock, "FARTHEST", 1 << 14)
    out = torch.zeros(2, dtype=torch.int32)
    text = kernel(WAIT.format(clock="%clock64", poll=""), [".u64 a", ".u64 cycles"])
    Gpu().launch(text, None, (3 * SM_COUNT, 1, 1), (32, 1, 1), smem=200_000, args=[out, 5000])
    assert out.tolist() == [0, 7]


def test_what_no_clock_ends_is_a_deadlock():
    body = f"mov.u64 %rd7, %clock64; ld.param.u64 %rd1, [a]; AGAIN: {POLL} bra AGAIN; END:"
    with pytest.raises(EmulatorError) as caught:
        launch(body, 0)
    assert caught.value.kind == "deadlock" and "it reads 0" in str(caught.value)


def test_a_warp_that_comes_later_reads_no_earlier_time():
    """CTAs that start when others have waited."""
    body = WAIT.format(clock="%clock64", poll="").replace("[%rd1+4], %r3", "[%rd1], %r3")
    body += "mov.u32 %r8, %clock; ld.param.u64 %rd1, [a]; st.global.u32 [%rd1+4], %r8;"
    assert launch(body, 5000)[1] >= 5000
