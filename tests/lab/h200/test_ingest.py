"""What SMs take in while part of it lies outside of the tensor: the model beside an H200."""

import json
from pathlib import Path

import pytest
import torch

from b200.sparse import pages
from hopper.h200 import H200
from lab.h200 import ingest as ingest
from tests.b200.clock.test_timing import timed

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "h200-ingest.json"


def modelled(stage: ingest.Stage, clusters: int, cluster: int) -> float:
    """Bytes a clk that land in each SM, by the clock of an H200."""
    gpu, ctas = timed(device=H200.name), clusters * cluster
    rows, nbytes = ingest.matrix(stage, ctas, 1)
    boxes = torch.frombuffer(pages(rows * stage.stride), dtype=torch.uint8)
    bulk, out = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(ctas, dtype=torch.int64)
    program = gpu.load(ingest.kernel(stage, 1, cluster=cluster))
    offsets = [p.offset for p in program.kernels["k"].params]
    addresses = out.data_ptr(), boxes.data_ptr(), bulk.data_ptr()
    shape = (ctas, 1, 1), (64, 1, 1), (cluster, 1, 1), ingest.smem(stage)
    gpu.launch(program, "k", *shape, ingest.parameters(stage, rows, offsets, *addresses))
    return stage.nbytes * (ingest.LOADS - 1 - ingest.WARM) / out.double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [1, 30])
@pytest.mark.parametrize("outside", [0, 2, 4])
def test_rows_outside_hold_up_others_where_many_load(outside, clusters):
    stage = ingest.beside(8, outside)
    results = json.loads(RESULTS.read_text())["results"]
    (measured,) = (
        r["bytes_a_clk"]
        for r in results
        if r["name"] == stage.name and (r["ctas"], r["cluster"]) == (4 * clusters, 4)
    )
    assert modelled(stage, clusters, 4) == pytest.approx(measured, rel=0.1)
