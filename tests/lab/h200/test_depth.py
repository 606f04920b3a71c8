"""How SMs share DRAM: the model beside an H200."""

import json
from pathlib import Path

import pytest
import torch

from b200.sparse import pages
from hopper.h200 import H200
from lab.h200 import depth as depth
from tests.b200.clock.test_timing import timed

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-depth.json"


def launched(ctas: int, stages: int):
    """The launch in the model, and what it wrote."""
    gpu, shape = timed(device=H200.name), depth.shape_of(ctas, stages)
    data = torch.frombuffer(pages(ctas * depth.ROWS * depth.PITCH), dtype=torch.uint8)
    out = torch.zeros(ctas, depth.WORDS, dtype=torch.int64)
    params = depth.parameters(ctas, data.data_ptr(), out.data_ptr())
    return gpu.launch(depth.kernel(stages), "k", *shape.sizes, params), out


def measured(ctas: int, stages: int) -> dict:
    results = json.loads(MEASURED.read_text())["results"]
    (found,) = (r for r in results if (r["ctas"], r["stages"]) == (ctas, stages))
    return found


def test_every_cta_loads_its_rows_and_is_on_an_sm_of_its_own():
    launch, out = launched(5, 4)
    assert launch.time.chip.dram_bytes == 5 * depth.ROWS * depth.PITCH
    us, ends = depth.times(out)
    assert len(ends) == 5 and 0 < min(ends.values()) and max(ends.values()) == us


@pytest.mark.slow
@pytest.mark.parametrize(
    "ctas, stages, most",
    [
        (24, 4, 0.1),
        (24, 10, 0.1),
        (40, 4, 0.15),  # where little is under way the model is too fast
        (40, 10, 0.1),
        (56, 4, 0.15),
        (56, 10, 0.1),
        (56, 13, 0.1),
        (72, 13, 0.1),
    ],
)
def test_how_long_few_ctas_take(ctas, stages, most):
    us, _ = depth.times(launched(ctas, stages)[1])
    assert us == pytest.approx(measured(ctas, stages)["us"], rel=most)


@pytest.mark.slow
def test_ctas_that_share_a_cpc_end_last_where_much_is_under_way():
    """56 CTAs: five of them in each of two CPCs, one to three in the others."""
    apart = {}
    for stages in (8, 13):
        _, ends = depth.times(launched(56, stages)[1])
        for who, each in (("model", ends), ("H200", measured(56, stages)["ends"])):
            found = sorted(each.values())
            apart[who, stages] = sum(found[-10:]) / 10 - sum(found[:46]) / 46
    for who in ("model", "H200"):
        assert apart[who, 13] > 2 * apart[who, 8]
    assert apart["model", 13] == pytest.approx(apart["H200", 13], abs=0.4)
