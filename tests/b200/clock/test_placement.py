"""Which SM a CTA runs on, held against %smid of an H200 and what drivers say of clusters."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from b200.clock.devices import B200, H200, Device
from b200.clock.placement import Placement, max_clusters
from b200.clock.sm import SM

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-clusters.json"


def placed(
    device: Device, cluster: int, smem_bytes: int = 200_000, ctas: int = 1 << 16
) -> list[list[SM]]:
    """SMs of the clusters that are resident together, in the order of their starts. ctas: of the
    launch.
    """

    class Launch:
        block = (192, 1, 1)

    Launch.smem_bytes, Launch.cluster, Launch.grid = smem_bytes, (cluster, 1, 1), (ctas, 1, 1)
    place, found = Placement(device), []
    while len(found) < ctas and (sms := place.place(Launch)) is not None:
        assert len({sm.gpc for sm in sms}) == 1 and len({sm.index for sm in sms}) == cluster
        found.append(sms)
    return found


@pytest.mark.parametrize(
    "device, smem_bytes, counts",
    [
        (H200, 200_000, {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 16: 7}),
        (H200, 100_000, {4: 62}),
        (B200, 200_000, {1: 148, 2: 74, 4: 33, 8: 15}),
    ],
)
def test_clusters_that_fit(device, smem_bytes, counts):
    """What cuOccupancyMaxActiveClusters says on an H200, NCU1 of clusters of 4 on a B200, and
    QuickRunCUDA's I8 of clusters of 8 on a B300.
    """
    assert {n: len(placed(device, n, smem_bytes)) for n in counts} == counts
    if smem_bytes == 200_000:
        assert {n: max_clusters(n, device) for n in counts} == counts


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_gpcs_come_in_the_order_of_an_h200(cluster):
    """%smid of every CTA of launches that fill the chip (b200/measure/hopper_clusters.py)."""
    results = json.loads(MEASURED.read_text())["results"]
    order = {r["what"][0]: r["value"] for r in results if r["kind"] == "order"}
    ends = [sum(H200.gpcs[:i]) for i in range(len(H200.gpcs) + 1)]
    gpc_of = {
        sm: gpc for gpc, (first, end) in enumerate(pairwise(ends)) for sm in order[1][first:end]
    }
    first = [c if cluster == 1 else c[0] for c in order[cluster]]
    assert [gpc_of[sm] for sm in first] == [sms[0].gpc for sms in placed(H200, cluster)]


def test_ctas_without_clusters_fill_gpc_after_gpc():
    """%smid on a B300 (QuickRunCUDA's I6): 16 CTAs in the first GPC, then the next one; clusters
    by turns, after the stray TPCs.
    """
    gpcs = [sms[0].gpc for sms in placed(B200, 1)[:20]]
    assert gpcs == [0] * 16 + [1] * 4
    assert [sms[0].gpc for sms in placed(B200, 2)[3:11]] == list(range(8))


def test_ctas_that_fill_half_of_the_chip_are_on_both_dies():
    dies = [sms[0].die for sms in placed(B200, 1)[:74]]
    assert dies.count(0) == 38 and dies.count(1) == 36  # GPCs of 16, 18, 18 and 18 SMs by turns
