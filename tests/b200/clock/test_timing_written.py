"""What DRAM pays for what a memset left, held against an H200 (docs/results/h200-written.json has
what `python -m lab h200 written` measured).
"""

import itertools
import json
import math
from pathlib import Path

import pytest

from b200.clock import Constants
from b200.clock.write_back import behind_memset
from hopper.h200 import H200
from lab.h200.mixed import STAGE
from tests.lab.h200.test_written import launched

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-written.json"
SMS = 132
SOON = ((64, 8),)  # CTAs and steps that every `pytest` has


def measured(before: str, kind: str, ctas: int) -> dict[int, float]:
    """Microseconds by bytes read."""
    results = json.loads(MEASURED.read_text())["results"]
    same = {"before": before, "kind": kind, "ctas": ctas}
    return {r["read"]: r["us"] for r in results if same.items() <= r.items()}


@pytest.mark.parametrize("kind", ["along", "boxes"])
def test_what_a_busy_dram_loses(kind):
    c = H200.constants("nominal", {})
    clean, written = (measured(before, kind, SMS) for before in ("read", "written"))
    large = [read for read in clean if read > 8e6]
    assert len(large) == 5
    for read in large:
        longer = written[read] - clean[read]
        lost = behind_memset(read, c) / c.dram_bandwidth * 1e6
        assert lost == pytest.approx(longer, abs=0.3 + 0.1 * longer), read


def test_a_memset_of_half_as_much_costs_as_much_and_a_pause_gains_nothing():
    for kind in ("along", "boxes"):
        for ctas in (32, 64, SMS):
            written = measured("written", kind, ctas)
            for before in ("half", "waited"):
                assert measured(before, kind, ctas) == pytest.approx(written, rel=0.08)


@pytest.mark.parametrize(
    "ctas, steps",
    [
        pytest.param(ctas, steps, marks=() if (ctas, steps) in SOON else pytest.mark.slow)
        for ctas in (32, 64, SMS)
        for steps in (8, 15)
    ],
)
def test_loads_behind_a_memset(ctas, steps):
    """From the first CTA's start to the last one's end, some of the SMs and all of them."""
    read = ctas * steps * STAGE
    for before in ("read", "written"):
        _, (started, ended) = launched(ctas, steps, dirty_l2=before == "written")
        us = int(ended.max() - started.min()) / 1e3
        assert us == pytest.approx(measured(before, "along", ctas)[read], rel=0.16), before


def test_ever_less_is_left_to_be_written_back():
    c, step = Constants.make(), 1e6
    lost = [behind_memset(n * step, c) for n in range(1000)]
    each = [b - a for a, b in itertools.pairwise(lost)]
    shares = [b / a for a, b in itertools.pairwise(each)]
    assert shares == pytest.approx([math.exp(-step / c.l2_capacity)] * len(shares), rel=1e-6)
    assert each[0] == pytest.approx(c.dirty_share * (1 + c.dram_turn) * step, rel=0.01)
    assert lost[-1] == pytest.approx(c.dirty_share * c.l2_capacity * (1 + c.dram_turn), rel=1e-3)
