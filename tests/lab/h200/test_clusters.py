"""Barriers, and clusters that follow each other: the model beside what an H200 took."""

import json
from pathlib import Path

import pytest
import torch

from lab.h200 import clusters
from lab.h200.rig import SMEM
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import run

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "h200-clusters.json"
SMS = 132


@pytest.fixture(autouse=True)
def in_the_model(monkeypatch):
    def launched(body: str, ctas: int, cluster: int, threads: int = 32, words: int = 1):
        out, data = torch.zeros(ctas * words, dtype=torch.int64), torch.zeros(1 << 20).byte()
        shape = {"grid": (ctas, 1, 1), "block": (threads, 1, 1), "cluster": (cluster, 1, 1)}
        gpu = timed(device="H200", cold=False)  # measured is the second launch on the same data
        run(clusters.kernel(body), out, data, **shape, smem=SMEM, gpu=gpu)
        return out

    monkeypatch.setattr(clusters, "_run", launched)


def measured(kind: str, *what):
    results = json.loads(RESULTS.read_text())["results"]
    (value,) = (r["value"] for r in results if r["kind"] == kind and r["what"] == list(what))
    return value


@pytest.mark.parametrize("lanes", ["all", "first", "by turns"])
def test_a_warp_that_waits_in_its_cta(lanes):
    expected = measured("hand over", lanes)
    assert clusters.hand_over(lanes) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("how", ["by predicate", "after a branch"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_lane_that_arrives_at_other_ctas(ranks, how):
    expected = measured("signal", ranks, how)
    assert clusters.signal(4, ranks, how) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_a_turn_that_goes_around_a_cluster(cluster):
    expected = measured("arrive alone", cluster)
    assert clusters.arrive(cluster, cluster) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize(
    "cluster", [*(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4)), 8]
)
def test_ctas_and_clusters_that_follow_each_other(cluster):
    middle, _ = clusters.turnover(2 * SMS, cluster, 0)
    expected, _ = measured("turnover", cluster, 0)
    assert middle == pytest.approx(expected, rel=0.05)
