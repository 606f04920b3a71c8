"""The kernel of `python -m lab h200 launch` in the emulator, and what was measured."""

import json
import struct
from pathlib import Path

import pytest

from b200.clock.constants import BY_NAME
from lab.h200.launch import CLUSTERS, PARAMETERS, SMEM, SPUN, kernel
from tests.b200.clock.test_timing import timed

MEASURED = Path(__file__).parents[3] / "docs" / "results" / "h200-launch.json"


@pytest.mark.parametrize("nbytes", PARAMETERS)
def test_it_spins_as_long_as_its_parameter_says(nbytes):
    gpu, took = timed(device="H200"), []
    for us in SPUN:
        params = struct.pack("<Q", 1000 * us) + bytes(nbytes - 8)
        launch = gpu.launch(kernel(nbytes), "k", (4, 1, 1), (128, 1, 1), (2, 1, 1), SMEM, params)
        took.append(launch.time.time_us)
    assert [us - took[0] for us in took] == pytest.approx(SPUN, abs=0.1)


def test_a_call_from_a_queue_takes_as_much_longer_whatever_it_does():
    """launch_gap_us of the clock is what a graph takes and this."""
    us: dict[str, dict[tuple, float]] = {"graph": {}, "queue": {}, "alone": {}}
    for r in json.loads(MEASURED.read_text())["results"]:
        us[r["how"]][r["cluster"], r["parameters"], r["spun"]] = r["us"]
    cases = [(c, n, s) for c in CLUSTERS for n in PARAMETERS for s in SPUN]
    longer = [us["queue"][case] - us["graph"][case] for case in cases]
    assert longer == pytest.approx([0.67] * len(cases), abs=0.25)
    assert BY_NAME["launch_gap_us"].value == pytest.approx(1.2 + 0.67)
