"""Warps on sub-cores, copies of a warp, and a part of a chip instead of all of it."""

import math

import pytest
import torch

from b200.clock import Constants
from b200.clock.devices import B200, QUARTER
from b200.clock.write_back import Dirty, behind_memset
from b200.hardware import SM_COUNT
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run

SUMS = 400


def sums(threads: int) -> str:
    """Products of each thread that do not wait for each other: the sub-core's issue is the bound."""
    chain = "".join(f"mul.f32 %r{40 + i % 16}, %r{40 + i % 16}, %r20;" for i in range(SUMS))
    return kernel(
        f"""ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x;
        {"".join(f"mov.b32 %r{40 + i}, 0f3F800000;" for i in range(16))} ld.global.b32 %r20, [%rd1];
        {chain} st.global.b32 [%rd1], %r43;""",
        [".u64 out"],
        reqntid=threads,
    )


@pytest.mark.parametrize("warps", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_ctas_of_few_warps_take_all_sub_cores(warps):
    """Four CTAs of w warps on each SM take as long as w CTAs of four warps; a quarter of a chip
    shows it, as all SMs do the same.
    """
    out = torch.ones(64)

    def us(threads: int, ctas: int) -> float:
        gpu = timed(device=QUARTER.name)
        run(sums(threads), out, grid=(ctas * SM_COUNT, 1, 1), block=(threads, 1, 1), gpu=gpu)
        return gpu.launches[-1].time.time_us

    assert us(32 * warps, 4) == pytest.approx(us(128, warps), rel=0.05)


def copies(by_cp_async: bool) -> str:
    """A warp brings 512 bytes."""
    copy = "cp.async.cg.shared.global [%r3], [%rd3], 16; cp.async.wait_all;"
    words = "{%r4, %r5, %r6, %r7}"
    load = f"ld.global.v4.u32 {words}, [%rd3]; st.shared.v4.u32 [%r3], {words};"
    return kernel(
        f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data]; mov.u32 %r1, %tid.x;
        mul.wide.u32 %rd4, %r1, 16; add.u64 %rd3, %rd2, %rd4; mov.u32 %r2, buffer;
        shl.b32 %r8, %r1, 4; add.u32 %r3, %r2, %r8; mov.u64 %rd20, %clock64;
        {copy if by_cp_async else load}
        mov.u64 %rd21, %clock64; sub.u64 %rd22, %rd21, %rd20; st.global.u64 [%rd1], %rd22;""",
        [".u64 out", ".u64 data"],
        smem=".shared .align 16 .b8 buffer[512];",
        reqntid=32,
    )


def test_cp_async_of_a_warp_is_one_request():
    """SASS has one LDGSTS for it, as it has one LDG for a load."""
    found = []
    for by_cp_async in (False, True):
        out, data = torch.zeros(1, dtype=torch.int64), torch.zeros(512, dtype=torch.uint8)
        gpu = timed()
        run(copies(by_cp_async), out, data, grid=(1, 1, 1), block=(32, 1, 1), gpu=gpu)
        found.append((gpu.launches[-1].time.chip.l2_bytes, int(out)))
    (loaded, load_clk), (copied, copy_clk) = found
    assert copied == loaded == 512
    assert copy_clk == pytest.approx(load_clk, rel=0.1)


def test_what_is_stored_behind_a_memset_has_others_written_back():
    c = Constants.make()
    most = c.dirty_share * c.l2_capacity
    dirty = Dirty(c)
    assert dirty.store(1000) == pytest.approx(1000 * (1 + c.dram_turn))
    longer = sum((dirty.read(step) - 1) * step for step in [100_000] * 100)
    assert longer == pytest.approx(behind_memset(1e7, c), rel=1e-6)
    room = most - dirty.left
    assert 0 < room < 1e7 and dirty.store(int(room)) == 0.0
    assert dirty.store(1000) == pytest.approx(1000 * (1 + c.dram_turn), rel=1e-2)


def stream(threads: int) -> str:
    """Each thread reads 16 bytes and writes them back."""
    return kernel(
        f"""ld.param.u64 %rd2, [data]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
        mad.lo.u32 %r3, %r2, {threads}, %r1; mul.wide.u32 %rd4, %r3, 16; add.u64 %rd3, %rd2, %rd4;
        ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd3];
        st.global.v4.u32 [%rd3], {{%r5, %r4, %r6, %r7}};""",
        [".u64 data"],
        reqntid=threads,
    )


@pytest.mark.slow
def test_a_quarter_of_a_chip_takes_as_long_for_a_quarter_of_the_work():
    threads, ctas = 256, 6 * SM_COUNT
    data = torch.zeros(ctas * threads * 16, dtype=torch.uint8)
    us, started = [], []
    for device in (B200, QUARTER):
        gpu = timed(device=device.name, dirty_l2=True)
        run(stream(threads), data, grid=(ctas, 1, 1), block=(threads, 1, 1), gpu=gpu)
        record = gpu.launches[-1].time
        us.append(record.time_us)
        started.append(len(record.ctas))
    assert started == [ctas, round(ctas * sum(QUARTER.gpcs) / SM_COUNT)]
    assert us[1] == pytest.approx(us[0], rel=0.12)  # the fullest of fewer channels is less full


def test_a_part_of_a_chip_has_its_share():
    whole, part = B200.constants("nominal", {}), QUARTER.constants("nominal", {})
    assert math.isclose(part.dram_bandwidth / whole.dram_bandwidth, 36 / 148)
    assert part.dram_channels == 16 and part.ldg_l2 == whole.ldg_l2
