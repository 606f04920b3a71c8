"""Fences of all memory by the clock: which instructions are one, and what an H200 takes for them."""

import json

import pytest
import torch

from lab.h200.fence_cost import ROUNDS, WARM_UP, Case, kernel
from tests import ROOT
from tests.b200.clock.test_timing import clocks, timed
from tests.b200.ptx_support import run

RESULTS = ROOT / "docs" / "results" / "h200-fences.json"
MEASURED = [
    (Case(**r["case"]), r)
    for r in json.loads(RESULTS.read_text())["results"]
    if r["case"]["ctas"] == 4 and not r["case"]["in_flight"]
]


BULK = [case for case, _ in MEASURED if case.access == "bulk"]
SOON = [*{case.access: case for case, _ in reversed(MEASURED)}.values(), BULK[-1]]


def modelled(case: Case) -> list[float]:
    """Cycles of (the first fence, the second, the first in the last CTA of a cluster)."""
    data = torch.zeros(max(case.nbytes, 16) * case.ctas * ROUNDS, dtype=torch.uint8)
    out = torch.zeros(case.ctas, 3, dtype=torch.int64)
    shape = {
        "grid": (case.ctas, 1, 1),
        "block": (case.threads, 1, 1),
        "cluster": (case.cluster, 1, 1),
        "smem": 80 << 10,
    }
    run(kernel(case, "sm_100a"), out, data, gpu=timed(arithmetic=False), **shape)
    cycles = out.view(-1, case.cluster, 3).double() / (ROUNDS - WARM_UP)
    return [*cycles[:, 0, :2].mean(0).tolist(), cycles[:, -1, 0].mean().item()]


@pytest.mark.parametrize(
    "case, measured",
    [  # of each kind of access the first, and most lines; the others with the sweeps
        pytest.param(case, row, id=case.access, marks=() if case in SOON else pytest.mark.slow)
        for case, row in MEASURED
    ],
)
def test_fences_take_what_they_take_on_an_h200(case, measured):
    """A B200's take 264 to 320 cycles in an idle SM (QRC), an H200's 271."""
    first, second, last = modelled(case)
    assert first == pytest.approx(measured["first"], rel=0.12)
    assert second == pytest.approx(measured["second"], rel=0.12)
    if case.access == "multicast":  # only the SM that asks pays
        assert last == pytest.approx(measured["peer"], rel=0.12)


SETUP = "mov.u32 %r50, 0x400; mbarrier.init.shared::cta.b64 [%r50], 100;"
ARRIVE = "mbarrier.arrive.{}.shared::cta.b64 %rd50, [%r50];"


@pytest.mark.parametrize(
    "wide, narrow",
    [
        (ARRIVE.format("release.cluster"), ARRIVE.format("release.cta")),
        (ARRIVE.format("release.cluster"), ARRIVE.format("relaxed.cluster")),
        ("membar.gl;", "membar.cta;"),
        ("fence.acq_rel.cluster;", "fence.acq_rel.cta;"),
        ("fence.sc.gpu;", "fence.sc.cta;"),
        ("barrier.cluster.arrive;", "barrier.cluster.arrive.relaxed;"),
        ("st.release.gpu.global.u32 [%rd1], %r1;", "st.relaxed.gpu.global.u32 [%rd1], %r1;"),
        ("red.release.gpu.global.add.u32 [%rd1], 1;", "red.relaxed.gpu.global.add.u32 [%rd1], 1;"),
        ("fence.proxy.async;", "fence.proxy.async.shared::cta;"),
    ],
    ids=lambda text: text.split()[0].rstrip(";"),
)
def test_what_sass_makes_a_fence_of_all_memory(wide, narrow):
    """nvcc 13.0 for sm_100a: MEMBAR.ALL.GPU, or MEMBAR.SC.GPU, for the first and not the second."""
    end = "barrier.cluster.wait;" if "cluster.arrive" in wide else ""
    cost = [clocks(f"{SETUP} {text}", 1, smem=64)[0] for text in (wide + end, narrow + end)]
    assert 240 <= cost[0] - cost[1] <= 330
