"""The rig of a chain of loads, in the emulator beside an H200."""

import json
import struct
from itertools import pairwise
from pathlib import Path

import torch

from hopper.h200 import H200
from lab.h200 import chain
from tests.b200.clock.test_timing import timed

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-chain.json"


def test_no_line_is_loaded_twice():
    found = chain.chains(0, chain.KINDS["of its own"])
    every = [at for addresses in found for at in addresses]
    assert len({at // 128 for at in every}) == len(every)
    assert max(every) < chain.PAGE * chain.PAGES
    pages = [[at // chain.PAGE for at in addresses] for addresses in found]
    assert all(len(set(of)) == len(of) for of in pages)
    one = chain.chains(0, chain.KINDS["all in one"])
    assert all(len({at // chain.PAGE for at in addresses}) == 1 for addresses in one)


def test_each_load_is_of_dram_and_waits_for_the_one_before():
    apart = 1 << 12
    memory = torch.zeros(apart * (chain.LOADS + 1) // 8, dtype=torch.int64)
    (addresses, *_) = chain.chains(memory.data_ptr(), apart)
    start = addresses[0] - memory.data_ptr()
    for here, after in pairwise(addresses):
        memory[(here - addresses[0]) // 8] = after - start
    out = torch.zeros(chain.LOADS, dtype=torch.int32)
    params = struct.pack("<QQ", out.data_ptr(), memory.data_ptr())
    launch = timed(device=H200.name).launch(chain.kernel(), "k", (1, 1, 1), (1, 1, 1), args=params)
    assert launch.time.chip.dram_bytes >= 32 * chain.LOADS
    found = json.loads(MEASURED.read_text())["results"]
    fastest = min(clk for r in found for clk in r["cycles"])
    assert min(out.tolist()) > 0.9 * fastest
