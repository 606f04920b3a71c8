"""Public kernels that others timed: halves, kinds of timing, and what CUPTI adds to a kernel."""

from __future__ import annotations

import json
import statistics

import pytest

from b200.clock import call_time
from b200.clock.constants import BY_NAME, Constants
from lab.tables import others
from tests import ROOT

RESULTS = ROOT / "docs" / "results"
KERNELS = json.loads((RESULTS / "others.json").read_text())["kernels"]


def test_what_cupti_adds_is_what_an_h100_shows():
    rows = json.loads((RESULTS / "h100-cupti.json").read_text())["results"]
    plain = [r["more"] for r in rows if not r["stores"] and r["ctas"] <= 132]
    constant = BY_NAME["cupti_us"]
    assert constant.value * 1e3 == pytest.approx(statistics.median(plain), abs=5)
    assert constant.low is not None and constant.high is not None
    read = [r["more"] for r in rows if not r["stores"] and not r["loads"] and r["ctas"] <= 132]
    assert constant.low * 1e3 <= min(read) + 5 and max(read) - 5 <= constant.high * 1e3


def test_each_time_is_the_kernel_as_its_kind_of_timing_shows_it():
    """CUPTI: 0.8 us in place of the 0.3 before the first CTA; a replay: the gap of a queue."""
    c = Constants.make()
    assert call_time.as_cupti_shows_us(3.0, c) == pytest.approx(3.5)
    more = {"CUPTI": 0.5, "graph replay": c.launch_gap_us}
    for k in KERNELS:
        assert k["modelled_us"] - k["kernel_us"] == pytest.approx(more[k["timing"]], abs=0.011)


def test_both_halves_have_kernels_of_each_kind_of_timing():
    assert len(KERNELS) >= 40
    for kernel in {k["kernel"] for k in KERNELS}:
        assert {others.half(k) for k in KERNELS if k["kernel"] == kernel} == {"odd", "even"}


def test_the_judging_half_is_shown_worst_first():
    """Of two kernels of the judging half the one that is further off comes first."""
    names = [f"kernel {i}" for i in range(40)]
    made = [{"kernel": n, "shape": "", "tactic": "", "timing": "CUPTI"} for n in names]
    odd = [k for k in made if others.half(k) == "odd"][:2]
    near, far = ({**k, "published_us": 10.0, "modelled_us": m} for k, m in zip(odd, (10.1, 7.0)))
    public = {"kernels": [{**k, "published_us": 1.0, "modelled_us": 1.5} for k in made]}
    table = others.judged({"kernels": [near, far]}, public).splitlines()
    assert [line.split("|")[1].strip().removesuffix(", CUPTI") for line in table[2:]] == [
        others.MATMULS,
        far["kernel"],
        near["kernel"],
    ]
    assert "30.0%" in table[3] and "1.0%" in table[4]
