"""Which SM a CTA runs on, held against %smid of an H200 and what drivers say of clusters."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from b200.chip.placement import max_clusters
from b200.clock.devices import B200, Device
from b200.clock.sm import SM
from hopper.h200 import H200

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
    place, found = device.placement(), []
    while len(found) < ctas and (sms := place.place(Launch)) is not None:
        assert len({sm.gpc for sm in sms}) == 1 and len({sm.index for sm in sms}) == cluster
        found.append(sms)
    return found


def measured(kind: str) -> dict[int, list]:
    results = json.loads(MEASURED.read_text())["results"]
    return {r["what"][0]: r["value"] for r in results if r["kind"] == kind}


def gpcs_of(sms: list[int]) -> list[int]:
    """GPCs of SMs of that H200, by the order in which a launch fills it."""
    order = measured("order")[1]
    ends = [sum(H200.gpcs[:i]) for i in range(len(H200.gpcs) + 1)]
    gpc_of = {sm: gpc for gpc, (a, b) in enumerate(pairwise(ends)) for sm in order[a:b]}
    return [gpc_of[sm] for sm in sms]


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
        assert {n: max_clusters(n, device.gpcs, device.strays) for n in counts} == counts


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_gpcs_come_in_the_order_of_an_h200(cluster):
    """%smid of every CTA of launches that fill the chip (lab/h200/clusters.py)."""
    first = [c if cluster == 1 else c[0] for c in measured("order")[cluster]]
    assert gpcs_of(first) == [sms[0].gpc for sms in placed(H200, cluster)]


@pytest.mark.parametrize("ctas", [4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112])
def test_fewer_ctas_than_sms_are_spread_as_on_an_h200(ctas):
    """%smid of every CTA; and that no two are on a TPC before each has one, but for the strays."""
    sms = measured("few")[ctas]
    found = [sm for (sm,) in placed(H200, 1, ctas=ctas)]
    assert gpcs_of(sms) == [sm.gpc for sm in found]
    assert len({sm // 2 for sm in sms}) == len({sm.index // 2 for sm in found})


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


def test_cpcs_of_four_sms_are_those_that_end_first_on_an_h200():
    """With 128 CTAs of 208 KB under way: the SMs that got more of DRAM than the others (what is
    left of the 132 are SMs of GPCs of 18).
    """
    results = json.loads((MEASURED.parent / "h200-depth.json").read_text())["results"]
    (ends,) = (r["ends"] for r in results if (r["ctas"], r["stages"]) == (128, 13))
    last = max(ends.values())
    early = {int(sm) // 2 for sm, us in ends.items() if us < 0.88 * last}
    sms = H200.placement().sms
    count = Counter(sm.cpc for sm in sms)
    assert sorted(count.values()) == [4] * 6 + [6] * 18
    small = [sm for sm in sms if count[sm.cpc] == 4]
    assert len(small) == 2 * len(early)
    assert len({sm.gpc for sm in small}) == 6
