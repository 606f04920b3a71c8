"""What DRAM pays for stores, held against an H200 (docs/results/h200-mixed.json has what
`python -m b200.measure.hopper_mixed` measured).
"""

import pytest
import torch

from b200.clock import Constants
from b200.clock.call_time import reported
from b200.clock.devices import H200
from b200.clock.write_back import Moved, extra_bytes, write_back_us
from b200.measure import hopper_mixed
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import run

CTAS, STEPS = 132, 4
SMEM = hopper_mixed.STAGES * (hopper_mixed.STAGE + 8)


def launched(stored: int, every: int):
    sizes = hopper_mixed.sizes("along", CTAS, STEPS, stored, every)
    data, out = (torch.zeros(n + 16, dtype=torch.uint8) for n in sizes)
    text = hopper_mixed.kernel("along", STEPS, stored, every, CTAS)
    shape = {"grid": (CTAS, 1, 1), "block": (128, 1, 1), "smem": SMEM}
    return run(text, data, out, gpu=timed(device="H200"), **shape)


@pytest.mark.parametrize(
    ("stored", "measured"), [(0, 3.64), (512, 4.17), (4096, 4.59), (8192, 5.11), (16384, 6.17)]
)
def test_loads_and_stores_together(stored, measured):
    """8.7 MB from DRAM, and up to as much stored: microseconds a call, back to back."""
    launch = launched(stored, 1)
    assert launch.time.chip.stored_bytes == CTAS * hopper_mixed.of_cta(STEPS, stored, 1)
    assert reported([launch], 50).time_us == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize(
    ("read", "stored", "longer_us"),
    [
        (131.9, 0.54, 1.35),
        (131.9, 2.1, 2.7),
        (131.9, 8.25, 3.4),
        (67.0, 33.5, 9.8),
        (67.0, 67, 19.4),
    ],
)
def test_what_a_busy_dram_loses(read, stored, longer_us):
    """MB; how much longer a call takes than one that stores nothing. Loads in one piece."""
    c = H200.constants("nominal", {})
    lost = extra_bytes(read * 1e6, stored * 1e6, c) / c.dram_bandwidth * 1e6
    assert lost == pytest.approx(longer_us, rel=0.12)


def test_idle_channels_write_back_for_nothing():
    c = Constants.make()
    busy = write_back_us(Moved(50e6, 10e6, 60e6), 20.0, c)
    assert busy == pytest.approx((10e6 * (1 + c.dram_turn)) / c.dram_bandwidth * 1e6)
    assert write_back_us(Moved(50e6, 10e6, 30e6), 20.0, c) == busy / 2
    assert write_back_us(Moved(50e6, 10e6, 0), 20.0, c) == 0
    assert write_back_us(Moved(50e6, 0, 50e6), 20.0, c) == 0
    assert write_back_us(Moved(0, 0, 0), 20.0, c) == 0


def test_no_call_is_shorter_than_what_it_moves():
    c = Constants.make()
    assert write_back_us(Moved(0, 72.6e6, 0), 4.0, c) == pytest.approx(72.6e6 / 7.26e6 - 4.0)
