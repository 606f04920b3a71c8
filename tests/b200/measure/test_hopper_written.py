"""The kernel of `python -m b200.measure.hopper_written` in the emulator."""

import torch

from b200.clock.devices import H200
from b200.measure.hopper_mixed import STAGE, STAGES, WARPS, kernel
from b200.measure.hopper_written import FIRST, LAST
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import run

CTAS, STEPS = 40, 12
H200_DRAM = H200.constants("nominal", {}).dram_bandwidth


def test_stamps_enclose_the_loads():
    data = torch.zeros(CTAS * STEPS * STAGE, dtype=torch.uint8)
    out = torch.zeros(CTAS, 2, dtype=torch.int64)
    text = kernel("along", STEPS, 0, 1, CTAS, first=FIRST, last=LAST)
    shape = {"grid": (CTAS, 1, 1), "block": (32 * WARPS, 1, 1), "smem": STAGES * (STAGE + 8)}
    launch = run(text, data, out, gpu=timed(device="H200"), **shape)
    started, ended = out.unbind(1)
    assert (ended > started).all()
    chip = launch.time.chip
    assert chip.dram_bytes == data.numel()
    between, alone = int(ended.max() - started.min()) / 1e3, data.numel() / H200_DRAM * 1e6
    assert alone < between < launch.time.time_us
