"""What DRAM pays for stores, held against an H200 (docs/results/h200-mixed.json has what
`python -m lab h200 mixed` measured).
"""

import json
from pathlib import Path

import pytest
import torch

from b200.clock import Constants
from b200.clock.call_time import reported
from b200.clock.write_back import Moved, extra_bytes, write_back_us
from hopper.h200 import H200
from lab.h200 import mixed
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import run

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-mixed.json"
CTAS, STEPS = 132, 4
SMEM = mixed.STAGES * (mixed.STAGE + 8)


def launched(stored: int, every: int):
    sizes = mixed.sizes("along", CTAS, STEPS, stored, every)
    data, out = (torch.zeros(n + 16, dtype=torch.uint8) for n in sizes)
    text = mixed.kernel("along", STEPS, stored, every, CTAS)
    shape = {"grid": (CTAS, 1, 1), "block": (128, 1, 1), "smem": SMEM}
    return run(text, data, out, gpu=timed(device=H200.name), **shape)


@pytest.mark.parametrize(
    ("stored", "measured"),
    [
        (0, 3.63),
        pytest.param(512, 4.20, marks=pytest.mark.slow),
        (4096, 4.59),
        pytest.param(8192, 5.12, marks=pytest.mark.slow),
        pytest.param(16384, 6.16, marks=pytest.mark.slow),
    ],
)
def test_loads_and_stores_together(stored, measured):
    """8.7 MB from DRAM, and up to as much stored: microseconds a call, back to back."""
    launch = launched(stored, 1)
    assert launch.time.chip.stored_bytes == CTAS * mixed.of_cta(STEPS, stored, 1)
    assert reported([launch], 50).time_us == pytest.approx(measured, rel=0.07)


def busy_points() -> list[tuple[str, float, float, float]]:
    """(kind, bytes read, bytes stored, how much longer it took, us) where DRAM is busy throughout."""
    found, alone = [], {}
    for r in json.loads(MEASURED.read_text())["results"]:
        kind = "boxes" if r["kind"] == "boxes" else "in one piece"
        if r["kind"] in ("along", "rows", "boxes") and r["read"] > 60e6:
            alone.setdefault((kind, r["read"]), r["us"])  # the first stores nothing
            longer = r["us"] - alone[kind, r["read"]]
            found.append((r["kind"], r["read"], r["stored"], longer))
    return found


def test_what_a_busy_dram_loses():
    c, points = H200.constants("nominal", {}), busy_points()
    assert len(points) > 40
    for kind, read, stored, longer in points:
        lost = extra_bytes(read, stored, c) / c.dram_bandwidth * 1e6
        assert lost == pytest.approx(longer, abs=0.3 + 0.1 * longer), (kind, read, stored)


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
