"""Rings of loads that CTAs share: the model beside what an H200 took."""

import json
import struct
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from b200.sparse import pages
from lab.h200 import sharing as rings
from tests.b200.clock.test_timing import timed

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-sharing.json"
RINGS = {
    "all from DRAM": (rings.Launch(128, 1, 1, False, 6), 0.14),
    "neighbours, 4 the same": (rings.Launch(128, 1, 4, False, 6), 0.14),
    # measured 31.8 us with three stages, 36.2 with six: what six cost there the model does not have
    "apart, 2 the same": (rings.Launch(128, 1, 2, True, 6), 0.15),
    "apart, 4 the same": (rings.Launch(128, 1, 4, True, 6), 0.14),
    "apart, 8 the same": (rings.Launch(128, 1, 8, True, 6), 0.14),
    "beside loads from the L2": (rings.Launch(128, 1, 2, True, 6, again=True), 0.14),
    "clusters apart, 2 the same": (rings.Launch(128, 2, 2, True, 6), 0.14),
    "clusters apart, 4 the same": (rings.Launch(128, 2, 4, True, 6), 0.14),
    "clusters apart, 8 the same": (rings.Launch(128, 2, 8, True, 6), 0.15),
    "clusters apart, 8 the same, 3 stages": (rings.Launch(128, 2, 8, True, 3), 0.14),
    "clusters, 2 the same": (rings.Launch(128, 2, 2, False, 6), 0.14),
    "clusters, 4 the same": (rings.Launch(128, 2, 4, False, 6), 0.15),
}


def modelled(ring: rings.Launch) -> float:
    """us from the first start to the last stage seen, by the clock of an H200."""
    gpu = timed(device="H200")
    data = torch.frombuffer(pages(ring.rows * rings.ROW), dtype=torch.uint8)
    out = torch.zeros(ring.ctas, rings.LOADS + 1, dtype=torch.int64)
    program = gpu.load(rings.kernel(ring))
    params = struct.pack("<Q", out.data_ptr()).ljust(program.kernels["k"].params[1].offset, b"\0")
    shape = (ring.ctas, 1, 1), (64, 1, 1), (ring.cluster, 1, 1), rings.smem(ring)
    gpu.launch(program, "k", *shape, params + rings.tensormap(ring, data.data_ptr()))
    return (out[:, -1].max() - out[:, 0].min()).item() / 1e3


@pytest.mark.slow
@pytest.mark.parametrize("name", RINGS)
def test_a_ring_takes_as_long_as_on_an_h200(name):
    ring, most = RINGS[name]
    results = json.loads(MEASURED.read_text())["results"]
    (us,) = (r["us"] for r in results if r["launch"] == asdict(ring))
    assert abs(modelled(ring) / us - 1) <= most
