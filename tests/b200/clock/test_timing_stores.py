"""Stores to global memory by the clock of an H200, held against one (docs/results/h200-stores.json
has what `python -m b200.measure.hopper_stores` measured).
"""

import numpy as np
import pytest
import torch

from b200.clock import Constants
from b200.clock.stores import StorePort, in_part, sectors_of
from b200.hopper.rewrite import TARGET
from b200.measure import hopper_stores
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run

CTAS, STEPS = 132, 8
EMPTY_US = 0.83  # a launch of as many CTAs that store nothing, in the same graph on the H200


def kernel_us(pattern: str) -> float:
    """Of 4.3 MB stored by all SMs, from the first CTA's start on."""
    data = torch.zeros(CTAS * STEPS * hopper_stores.STEP, dtype=torch.uint8)
    out = torch.zeros(CTAS, dtype=torch.int64)
    gpu = timed(device="H200")
    text = hopper_stores.kernel(pattern, CTAS, STEPS, TARGET)
    done = run(text, out, data, grid=(CTAS, 1, 1), block=(128, 1, 1), gpu=gpu)
    time = done.time
    assert time.chip.owed == time.chip.written_bytes  # nothing was read, nothing written back
    return time.time_us - Constants.make().cta_start_us


@pytest.mark.parametrize(
    ("pattern", "measured"), [("halves", 3.91), ("rows", 2.20), ("lines", 2.15)]
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


def test_warps_wait_when_much_is_under_way():
    port = StorePort()
    assert port.room(5.0, capacity=10) == 5.0
    port.sent(100.0, 8)
    port.sent(200.0, 8)
    assert port.room(5.0, capacity=10) == 100.0
    assert port.room(300.0, capacity=10) == 300.0 and port.sectors == 0


def test_what_is_stored_is_written_back_while_something_is_read():
    """A store of a line, then loads of others: DRAM moves both, and owes nothing in the end."""
    text = """ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
    {store}
    bar.sync 0; mov.b32 %r3, 0;
    LOOP: ld.global.u32 %r2, [%rd5]; add.u64 %rd5, %rd5, 128; add.u32 %r4, %r4, %r2;
    add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 64; @%p1 bra LOOP;
    st.shared.u32 [dyn], %r4;"""
    busy = {}
    for name, store in (("stored", "st.global.u32 [%rd4], %r1;"), ("not", "")):
        data, out = torch.zeros(64 * 32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
        body = text.format(store=store)
        done = run(kernel(body, [".u64 out", ".u64 data"]), out, data, smem=64, gpu=timed())
        assert done.time.chip.owed == 0
        busy[name] = done.time.chip.channel_busy
    assert busy["stored"] > busy["not"]
