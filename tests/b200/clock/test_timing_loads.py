"""Ordinary loads from DRAM, as SemiAnalysis measured LDGSTS on a B200 (ldgsts_tput): no constant was
fitted to that table.
"""

import pytest
import torch

from b200.clock import accesses
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run

CTAS, WARM, LOOPS = 148, 1, 2


def ring(threads: int, stages: int) -> str:
    """Each thread keeps `stages` loads of 16 bytes under way."""
    step = CTAS * threads * 16

    def load(s: int) -> str:
        words = ", ".join(f"%r{20 + 4 * s + i}" for i in range(4))
        return f"ld.global.v4.u32 {{{words}}}, [%rd5]; add.u64 %rd5, %rd5, {step};"

    again = "".join(f"xor.b32 %r16, %r16, %r{20 + 4 * s}; {load(s)}" for s in range(stages))
    return kernel(
        f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r16, 0; mov.b32 %r7, 0;
        mad.lo.u32 %r3, %r2, {threads}, %r1; mul.wide.u32 %rd4, %r3, 16; add.u64 %rd5, %rd2, %rd4;
        mul.wide.u32 %rd6, %r2, 8; add.u64 %rd1, %rd1, %rd6;
        {"".join(load(s) for s in range(stages))}
        LOOP: setp.ne.u32 %p3, %r7, {WARM}; @%p3 bra SKIP; mov.u64 %rd20, %clock64;
        SKIP: {again} add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, {WARM + LOOPS}; @%p2 bra LOOP;
        mov.u64 %rd21, %clock64; sub.u64 %rd22, %rd21, %rd20; st.global.u64 [%rd1], %rd22;
        st.global.u32 [%rd2], %r16;""",
        [".u64 out", ".u64 data"],
        reqntid=threads,
    )


@pytest.mark.parametrize(
    "stages, measured",
    [
        (1, 1.352),
        pytest.param(2, 2.486, marks=pytest.mark.slow),
        pytest.param(4, 4.234, marks=pytest.mark.slow),
        pytest.param(8, 5.699, marks=pytest.mark.slow),
    ],
)
def test_loads_of_256_threads_an_sm_reach_the_published_bandwidth(stages, measured):
    threads = 256
    nbytes = CTAS * threads * 16 * stages
    data = torch.empty(nbytes * (WARM + LOOPS + 1), dtype=torch.uint8)
    out = torch.zeros(CTAS, dtype=torch.int64)
    run(ring(threads, stages), out, data, grid=(CTAS, 1, 1), block=(threads, 1, 1), gpu=timed())
    clk = out.double().mean().item() / LOOPS
    assert nbytes / clk * 1.965e9 / 1e12 == pytest.approx(measured, rel=0.12)


def test_a_load_waits_for_a_sector_that_another_load_has_on_its_way():
    """The second warp comes a little later, and finds the sector in the L1, not there yet."""
    waits = "".join("add.f32 %r20, %r20, %r20;" for _ in range(20))
    body = f"""
ld.param.u64 %rd1, [out]; ld.param.u64 %rd5, [data]; mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 8; add.u64 %rd3, %rd1, %rd2;
setp.lt.u32 %p1, %r1, 32; mov.b32 %r20, 0; mov.u64 %rd40, %clock64;
@%p1 bra GO; {waits}
GO: ld.global.f32 %r21, [%rd5]; add.f32 %r20, %r20, %r21; mov.u64 %rd41, %clock64;
sub.u64 %rd42, %rd41, %rd40; st.global.u64 [%rd3], %rd42; st.global.f32 [%rd5+128], %r20;
"""
    out, data = torch.zeros(64, dtype=torch.int64), torch.zeros(64)
    text = kernel(body, [".u64 data", ".u64 out"], reqntid=64)
    run(text, data, out, block=(64, 1, 1), gpu=timed())
    first, second = out[0].item(), out[32].item()
    assert first > 500 and second == pytest.approx(first, abs=100)


def test_of_two_loads_of_a_sector_the_earlier_one_fetches():
    """In whichever order they are carried out, and it takes as long: 350 clk from 100 on, or from 50."""
    asked, arrived = 100.0, 450.0
    assert accesses._there(120.0, asked, arrived) == arrived
    assert accesses._there(50.0, asked, arrived) == 50.0 + arrived - asked
