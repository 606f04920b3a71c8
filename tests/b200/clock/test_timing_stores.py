"""Stores to global memory by the clock of an H200, held against one (docs/results/h200-stores.json
has what `python -m lab h200 stores` measured).
"""

import numpy as np
import pytest
import torch

from b200.clock import Constants
from b200.clock.stores import alone, in_part, sectors_of
from hopper.h200 import H200
from hopper.rewrite import TARGET
from lab.h200 import stores
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run

CTAS, STEPS = 132, 8
EMPTY_US = 0.83  # a launch of as many CTAs that store nothing, in the same graph on the H200


def kernel_us(pattern: str) -> float:
    """Of 4.3 MB stored by all SMs, from the first CTA's start on."""
    data = torch.zeros(2 * CTAS * STEPS * stores.STEP, dtype=torch.uint8)
    out = torch.zeros(CTAS, dtype=torch.int64)
    gpu = timed(device=H200.name)
    text = stores.kernel(pattern, CTAS, STEPS, TARGET)
    done = run(text, out, data, grid=(CTAS, 1, 1), block=(128, 1, 1), gpu=gpu)
    time = done.time
    assert time.chip.stored_bytes == CTAS * STEPS * stores.STEP + CTAS * 8  # each once
    return time.time_us - Constants.make().cta_start_us


@pytest.mark.parametrize(
    ("pattern", "measured"),
    [
        pytest.param("halves", 3.91, marks=pytest.mark.slow),
        ("lone halves", 5.01),
        pytest.param("sectors", 2.69, marks=pytest.mark.slow),
        pytest.param("rows", 2.20, marks=pytest.mark.slow),
        pytest.param("lines", 2.15, marks=pytest.mark.slow),
        ("red rows", 4.23),
        pytest.param("red lines", 4.37, marks=pytest.mark.slow),
    ],
)
def test_stores_of_all_sms(pattern, measured):
    assert kernel_us(pattern) == pytest.approx(measured - EMPTY_US, rel=0.15)


def test_sectors_written_in_part():
    assert sectors_of(np.array([0, 128]), 64) == (0, 4)
    assert sectors_of(np.array([16]), 32) == (2, 0)
    assert sectors_of(np.array([16]), 64) == (2, 1)
    lanes = np.arange(32) * 32
    assert in_part(lanes, 16) == 32  # half of each
    assert in_part(np.arange(32) * 16, 16) == 0
    assert in_part(np.zeros(32, np.int64), 4) == 1


def test_sectors_without_the_other_of_their_64_bytes():
    assert alone(np.arange(8)) == 0 and alone(np.arange(0, 16, 2)) == 1
    assert alone(np.array([0, 1, 2, 5])) == 0.5


def add_us(instruction: str, behind: str = "") -> float:
    """Of adding a float a lane, 64 times, to whole lines that nobody else uses."""
    room = torch.zeros(64 * 32 + 32 + 32)
    first = -room.data_ptr() % 128 // 4
    out = room[first : first + 64 * 32 + 32]
    text = f""".reg .f32 %f<4>; ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd1, %rd1, %rd3; mov.b32 %f1, 0f3F800000; mov.b32 %f2, %f1; mov.b32 %r3, 0;
    LOOP: {instruction} {behind}
    add.u64 %rd1, %rd1, 128; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 64; @%p1 bra LOOP;
    st.global.f32 [%rd1], %f2;"""
    done = run(kernel(text, [".u64 out"]), out, gpu=timed())
    assert out[: 64 * 32].tolist() == [1.0] * (64 * 32)
    return done.time.time_us


def test_an_atom_whose_result_nobody_reads_is_a_red():
    """nvcc writes atom.global.add for atomicAdd whose result is not used; SASS has REDG."""
    red = add_us("red.global.add.f32 [%rd1], %f1;")
    assert add_us("atom.global.add.f32 %f3, [%rd1], %f1;") == red
    waited = add_us("atom.global.add.f32 %f3, [%rd1], %f1;", "add.f32 %f2, %f2, %f3;")
    assert waited > 2 * red


def push_clk(senders: int) -> int:
    """Until CTA 0 of a cluster of 4 has 16 KB from each of `senders` others."""
    nbytes = 16384
    out = torch.zeros(1, dtype=torch.int64)
    body = f"""ld.param.u64 %rd1, [out]; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x;
    mov.b32 %r3, dyn; add.u32 %r4, %r3, {4 * nbytes};
    setp.eq.u32 %p1, %r2, 0; setp.eq.and.u32 %p2, %r1, 0, %p1;
    @%p2 mbarrier.init.shared::cta.b64 [%r4], 1;
    @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {senders * nbytes};
    fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;
    mov.u64 %rd3, %clock64;
    setp.ge.u32 %p3, %r1, 1; setp.le.and.u32 %p3, %r1, {senders}, %p3; and.pred %p3, %p3, %p1;
    mad.lo.u32 %r5, %r1, {nbytes}, %r3;
    mapa.shared::cluster.u32 %r6, %r5, 0; mapa.shared::cluster.u32 %r7, %r4, 0;
    @%p3 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r3],
        {nbytes}, [%r7];
    @!%p2 bra END;
    WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p4, [%r4], 0; @!%p4 bra WAIT;
    mov.u64 %rd4, %clock64; sub.u64 %rd4, %rd4, %rd3; st.global.u64 [%rd1], %rd4;
    END: barrier.cluster.arrive; barrier.cluster.wait;"""
    text = kernel(body, [".u64 out"])
    run(text, out, grid=(4, 1, 1), cluster=(4, 1, 1), smem=4 * nbytes + 64, gpu=timed())
    return int(out.item())


def test_partial_tiles_of_several_ctas_arrive_one_after_the_other():
    """H200: 16 KB from one SM to another take 1035 to 1061 clk; the owner of a K split by 4 waits
    for the partial tiles of three.
    """
    one, three = push_clk(1), push_clk(3)
    assert one == pytest.approx(1050, rel=0.1)
    assert three == pytest.approx(one + 2 * 16384 / 19.6, rel=0.1)
