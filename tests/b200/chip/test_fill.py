"""st.bulk against byte arrays, and what PTX forbids of it (PTX ISA 9.7.9.13)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import b200
from b200.chip.gpu import Gpu
from b200.clock.devices import B200
from b200.errors import EmulatorError
from b200.hardware import SMEM_BASE
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, own_element, run

BYTES = 4096
ONES = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; cvta.shared.u64 %rd10, dyn;
shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1; mov.u32 %r3, -1; mov.u32 %r4, 0;
FILL: st.shared.u32 [%r2], %r3; add.u32 %r2, %r2, 128; add.u32 %r4, %r4, 128;
setp.lt.u32 %p1, %r4, {BYTES}; @%p1 bra FILL; bar.sync 0;
"""
OUT = f"""bar.sync 0; ld.param.u64 %rd20, [out]; shl.b32 %r2, %r0, 2; cvt.u64.u32 %rd21, %r2;
add.u64 %rd20, %rd20, %rd21; add.u32 %r2, %r2, %r1; mov.u32 %r4, 0;
COPY: ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd20], %r3; add.u32 %r2, %r2, 128;
add.u64 %rd20, %rd20, 128; add.u32 %r4, %r4, 128;
setp.lt.u32 %p1, %r4, {BYTES}; @%p1 bra COPY;
"""


def filled(body: str, *arrays: torch.Tensor, gpu: Gpu | None = None) -> np.ndarray:
    """The bytes of shared memory, all ones before, after a body."""
    out = torch.zeros(BYTES, dtype=torch.uint8)
    names = [f".u64 p{i}" for i in range(len(arrays))]
    text = kernel(ONES + body + OUT, [".u64 out", *names])
    run(text, out, *arrays, smem=BYTES, gpu=gpu)
    return out.numpy()


@settings(max_examples=25, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100)), min_size=32, max_size=32),
    mask=st.integers(1, 0xFFFFFFFF),
    generic=st.booleans(),
)
def test_each_lane_fills_its_own_range(places, mask, generic):
    offsets = torch.tensor([8 * at for at, _ in places])
    sizes = torch.tensor([8 * n for _, n in places])
    address = "add.u64 %rd6, %rd4, %rd10; st.bulk [%rd6], %rd5, 0;"
    if not generic:
        address = "cvt.u32.u64 %r6, %rd4; add.u32 %r6, %r6, %r1; "
        address += "st.bulk.weak.shared::cta [%r6], %rd5, 0;"
    got = filled(
        f"""ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mul.wide.u32 %rd3, %r0, 8;
    add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
    ld.global.u64 %rd4, [%rd1]; ld.global.u64 %rd5, [%rd2];
    mov.u32 %r5, {mask}; shr.u32 %r5, %r5, %r0; and.b32 %r5, %r5, 1; setp.eq.u32 %p2, %r5, 0;
    @%p2 bra DONE; {address}
    DONE:""",
        offsets,
        sizes,
    )
    want = np.full(BYTES, 255, np.uint8)
    for lane, (at, n) in enumerate(places):
        if mask >> lane & 1:
            want[8 * at : 8 * (at + n)] = 0
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", ["264", "%rd5"])
def test_an_immediate_or_a_register_is_the_size(size):
    got = filled(f"mov.u64 %rd5, 264; st.bulk.shared::cta [%r1+16], {size}, 0;")
    assert np.flatnonzero(got == 0).tolist() == list(range(16, 16 + 264))


@pytest.mark.parametrize(
    "body, said",
    [
        ("st.bulk.shared::cta [%r1], 12, 0;", "12 bytes: the size must be a multiple of 8"),
        ("st.bulk.shared::cta [%r1], 16777224, 0;", "fills at most 16777216"),
        ("mov.u64 %rd5, -8; st.bulk.shared::cta [%r1], %rd5, 0;", "fills at most 16777216"),
        ("st.bulk.shared::cta [%r1+4], 8, 0;", "not aligned to 8"),
        ("st.bulk.shared::cta [%r1+4088], 16, 0;", "outside the CTA's shared memory"),
        ("ld.param.u64 %rd5, [out]; st.bulk [%rd5], 8, 0;", "is not in shared memory"),
        (f"mov.u64 %rd5, {SMEM_BASE}; st.bulk [%rd5], 8, 0;", "is not in shared memory"),
        ("st.bulk.shared::cta [%r1], 8, 1;", "must be the immediate 0"),
        ("st.bulk.shared::cta [%r1], 8, %r4;", "must be the immediate 0"),
    ],
)
def test_what_ptx_forbids(body, said):
    with pytest.raises(EmulatorError, match=said):
        filled(body)


def test_another_cta_of_the_cluster_is_out_of_reach():
    body = "mapa.u64 %rd5, %rd10, 1; st.bulk [%rd5], 8, 0;"
    text = kernel("cvta.shared.u64 %rd10, dyn;" + body, [".u64 out"])
    with pytest.raises(EmulatorError, match="of another CTA: it fills shared::cta alone"):
        run(text, torch.zeros(1), grid=(2, 1, 1), cluster=(2, 1, 1), smem=64)


@pytest.mark.parametrize("size", [64, "%rd5"])
def test_no_load_goes_ahead_of_it_by_the_clock(size):
    """The clock reorders loads as ptxas does, but a fill reaches far behind its address."""
    body = f"""mov.u64 %rd5, 64; st.bulk.shared::cta [%r1], {size}, 0; ld.shared.u32 %r7, [%r1+32];
    st.shared.u32 [%r1+128], %r7;"""
    assert (filled(body, gpu=timed())[128:132] == 0).all()


def test_shared_memory_takes_128_bytes_a_clk():
    """A reading of ours, which nobody has measured (rates.py: unknown)."""
    times = []
    for size in (8192, 32768):
        body = f"""mov.u32 %r1, dyn; st.bulk.shared::cta [%r1], {size}, 0; ld.shared.u32 %r3, [%r1];
        ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], %r3;"""
        text = kernel(body, [".u64 out"], reqntid=1)
        launch = run(text, torch.ones(1), block=(1, 1, 1), smem=32768, gpu=timed())
        times.append(launch.time.time_us)
    assert 1e3 * B200.clock_ghz * (times[1] - times[0]) == pytest.approx(
        (32768 - 8192) / 128, abs=2
    )


@pytest.mark.parametrize("ctas", [1, 6])
@pytest.mark.parametrize("apart, size", [(0, 256), (8, 256), (8, 8), (-8, 512)])
def test_ranges_of_lanes_may_overlap(apart, size, ctas):
    """All write zeros: nothing is found, in CTAs that follow the first one either. Lane 0 fills
    nothing.
    """
    body = f"""mov.u32 %r5, dyn; mad.lo.s32 %r6, %r1, {apart}, %r5; add.u32 %r6, %r6, 256;
    setp.eq.u32 %p1, %r1, 0; selp.b64 %rd5, 0, {size}, %p1; st.bulk.shared::cta [%r6], %rd5, 0;
    bar.sync 0; mov.u32 %r7, 0; @!%p1 ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd3], %r7;"""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=True)
    out = torch.ones(32 * ctas, dtype=torch.int32)
    text = kernel(own_element(4) + body, [".u64 out"])
    launch = run(text, out, grid=(ctas, 1, 1), smem=2048, gpu=gpu)
    assert not out.any() and not launch.findings, launch.findings
