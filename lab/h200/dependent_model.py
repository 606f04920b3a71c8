"""Dependent launches by the clock of an H200, beside what was measured there.

    python -m lab h200_dependent [--measured FILE] [--out FILE]

The launches are those of dependent.py. It takes no GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from b200 import records
from b200.clock import overlap
from b200.command_line import Parser, writable
from b200.hardware import SMEM_RESERVED
from harness import digest
from hopper.h200 import H200
from lab.h200.dependent import HOW, THREADS, Asked, DependentTime, asked
from lab.tables import markdown

FILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "h200-dependent.json"
CALLS, CLUSTERS = 300, 4_000  # launches of a queue, and their clusters, at most
BAR = 0.15
QUEUE_MORE_US = 0.67  # the gap between two kernels of a queue, less that in a graph (H200)
# Of the kernel itself what was measured without the attribute is taken: how well the clock knows a
# chain of products is another question. A step takes (6.07 - 1.60) us / 1980, and two CTAs on an SM
# (33 clusters of 4, of which 30 find SMs of their own) (6.33 - 1.60) / (6.07 - 1.60) times as long.
# In front of the first step and behind the last one the clock has 0.04 and 0.06 us.
STEP_US, FRONT_US, BEHIND_US, DEMAND = 2.258e-3, 0.04, 0.06, 1.058 / 2


def grid_of(of: Asked, how: str) -> overlap.Grid:
    wait = FRONT_US + of.before * STEP_US
    done = wait + of.work * STEP_US
    trigger = {"first": FRONT_US, "before the wait": wait, "last": done}.get(how)
    part = overlap.ClusterTimes(done + BEHIND_US, wait, trigger)
    need = (of.smem_kb << 10) + SMEM_RESERVED, overlap.whole_warps(THREADS), 1, 0
    parts = (part,) * (of.grid // of.cluster)
    return overlap.Grid(parts, of.cluster, need, how != "off", DEMAND, 0.0)


def model(of: Asked, how: str, clusters: int = CLUSTERS) -> float:
    """Modelled microseconds of a launch, the mean of at most CALLS, of so many clusters."""
    # The constants of an H200 have the gap in a graph; these calls come from a queue.
    gap = H200.constants("nominal", {}).launch_gap_us + QUEUE_MORE_US
    c = H200.constants("nominal", {"launch_gap_us": gap})
    calls = max(8, min(CALLS, clusters * of.cluster // of.grid))
    grids = [grid_of(of, how)] * calls
    ended = overlap.Queue(grids, H200.placement(), c, H200.clock_ghz).run()
    return (ended[-1] - ended[0]) / (calls - 1)


def model_all() -> list[DependentTime]:
    return [
        DependentTime(**asdict(of), how=how, us=model(of, how)) for of in asked() for how in HOW
    ]


def read(path: Path = FILE) -> list[DependentTime]:
    return [DependentTime(**row) for row in json.loads(path.read_text())["results"]]


def main(argv: Sequence[str]) -> int:
    parser = Parser("python -m lab h200_dependent", (__doc__ or "").splitlines()[0])
    parser.add_argument("--measured", type=Path, default=FILE, metavar="FILE", help="of an H200")
    parser.add_argument("--out", type=writable, metavar="FILE", help="write the times as JSON")
    options = parser.parse_args(argv)
    measured, modelled = read(options.measured), model_all()
    errors = [m.us / real.us - 1 for m, real in zip(modelled, measured, strict=True)]
    cells = [
        f"{real.us:.2f}, {m.us:.2f} ({error:+.0%})"
        for real, m, error in zip(measured, modelled, errors)
    ]
    print("us a launch: measured on an H200, modelled (error)")
    lines = [
        (*list(asdict(modelled[i]).values())[:5], *cells[i : i + len(HOW)])
        for i in range(0, len(modelled), len(HOW))
    ]
    print(markdown.table(("cluster", "grid", "KB", "before", "work", *HOW), lines))
    off = list(map(abs, errors))
    beyond = sum(error > BAR for error in off)
    print(f"\n{len(off)} times: mean error {sum(off) / len(off):.1%}, {beyond} beyond {BAR:.0%}")
    if options.out:
        made = {"made_by": digest.made_by(), "results": [asdict(m) for m in modelled]}
        records.write(options.out, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
