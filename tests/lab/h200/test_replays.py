"""The rig of replays, in the emulator beside an H200."""

import json
import struct
from pathlib import Path

import pytest
import torch

from hopper.h200 import H200
from lab.h200 import replays
from tests.b200.clock.test_timing import timed

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-replays.json"
ROWS = json.loads(MEASURED.read_text())["results"]


@pytest.mark.parametrize("load", ["ld.global", "ld.global.cs"])
def test_each_byte_is_read_once(load):
    turns, ctas = 7, 3
    data = torch.randint(0, 1 << 30, (turns * replays.TURN // 4,), dtype=torch.int32)
    out = torch.zeros(1, dtype=torch.int64)
    params = struct.pack("<QQ", out.data_ptr(), data.data_ptr())
    text = replays.kernel(ctas, turns, load)
    launch = timed(device=H200.name).launch(text, "k", (ctas, 1, 1), (256, 1, 1), args=params)
    assert launch.time.chip.dram_bytes == data.nbytes


@pytest.mark.parametrize("load", ["ld.global", "ld.global.cs"])
def test_an_l2_holds_what_fits_and_nothing_of_what_does_not(load):
    """Where the same memory is read again: no slower a byte up to 0.8 of the L2 than at a half of
    it, as slow as other memory from 1.0 of it.
    """
    rows = {r["share"]: r for r in ROWS if r["load"] == load and r["ctas"] == 4}
    assert all(rows[s]["again_us"] / s <= rows[0.5]["again_us"] / 0.5 * 1.05 for s in (0.71, 0.8))
    for share in (1.0, 1.17, 1.4, 2.0):
        assert rows[share]["again_us"] == pytest.approx(rows[share]["cold_us"], rel=0.06)
