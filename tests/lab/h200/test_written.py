"""The kernel of `python -m lab h200 written` in the emulator."""

import torch

from hopper.h200 import H200
from lab.h200.mixed import STAGE, kernel, shape_of
from lab.h200.written import FIRST, LAST
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import run

CTAS, STEPS = 40, 12
H200_DRAM = H200.constants("nominal", {}).dram_bandwidth


def launched(ctas: int, steps: int, **options):
    """Of loads along: the launch in the model, and start and end of each CTA, ns."""
    data = torch.zeros(ctas * steps * STAGE, dtype=torch.uint8)
    out = torch.zeros(ctas, 2, dtype=torch.int64)
    text, shape = kernel("along", steps, 0, 1, ctas, first=FIRST, last=LAST), shape_of(ctas)
    where = {"grid": shape.grid, "block": shape.block, "smem": shape.smem}
    return run(text, data, out, gpu=timed(device=H200.name, **options), **where), out.unbind(1)


def test_stamps_enclose_the_loads():
    launch, (started, ended) = launched(CTAS, STEPS)
    assert (ended > started).all()
    nbytes = CTAS * STEPS * STAGE
    assert launch.time.chip.dram_bytes == nbytes
    between, alone = int(ended.max() - started.min()) / 1e3, nbytes / H200_DRAM * 1e6
    assert alone < between < launch.time.time_us
