"""The generated tables about other people's kernels: beside ours (`eval.py compare`), and against
their published times (`eval.py ladder`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from harness.evaluator import cases
from harness.evaluator.ladder import errors as ladder
from lab.tables import markdown
from task import PROBLEMS, find_problem

# --- eval.py compare --json ---------------------------------------------------------------------


def by_shape(records: list[dict]) -> dict[str, list[dict]]:
    """Records of a comparison by shape ("gemm 1" for the first benchmark), ours first in each."""
    names = {
        cases.format_args(benchmark.args): f"{problem.short} {number}"
        for problem in PROBLEMS.values()
        for number, benchmark in enumerate(problem.benchmarks, 1)
    }
    return ladder.groups(records, lambda r: names[r["case"]])


def over(ours: dict, peer: dict) -> float | None:
    """Our time over a peer's; None if the peer was not timed."""
    return None if peer["time_us"] is None else ours["time_us"] / peer["time_us"]


def published(points: list[dict]) -> dict[tuple[str, str], dict]:
    """Points of a ladder by shape and file name."""
    return {(f"{p['problem']} {p['shape']}", f"submission_{p['version']}.py"): p for p in points}


def calibrated(ours: dict, peer: dict, known: dict | None) -> float | None:
    """What a peer's published time makes of ours: our modelled time by published over modelled."""
    if known is None or peer["time_us"] is None:
        return None
    return ours["time_us"] * known["published_us"] / peer["time_us"]


def peers(records: list[dict], points: list[dict]) -> str:
    """A row a submission and shape."""
    known, rows = published(points), []
    for shape, (ours, *others) in by_shape(records).items():
        rows.append((shape, "ours", *_cells(ours), "", "", ""))
        for peer in others:
            point = known.get((shape, peer["submission"]))
            cells = (over(ours, peer), point and point["published_us"])
            cells += (calibrated(ours, peer, point),)
            shown = ("" if cell is None else f"{cell:.2f}" for cell in cells)
            rows.append((shape, f"`{peer['submission']}`", *_cells(peer), *shown))
    header = ("shape", "kernel", "modelled apart us", "DRAM MB", "L2 MB", "bound by")
    header += ("ours over it", "it published us", "ours by its error us")
    return markdown.table(header, rows)


def _cells(record: dict) -> tuple[str, ...]:
    if record["time_us"] is None:
        message = " ".join(record["message"].split())[:100].replace("|", "/")
        return (f"{record['status']}: {message}", "", "", "")
    moved = (f"{record[name] / 1e6:.1f}" for name in ("dram_bytes", "l2_bytes"))
    return (f"{record['time_us']:.2f}", *moved, record["bound_by"] or "")


def peer_means(records: list[dict]) -> str:
    """Ours over the best peer of each shape, a row a problem."""
    best: dict[str, list[float]] = {}
    for shape, (ours, *others) in by_shape(records).items():
        ratios = [ratio for peer in others if (ratio := over(ours, peer)) is not None]
        if ratios:
            best.setdefault(shape.split()[0], []).append(max(ratios))
    rows = [
        (
            problem,
            math.exp(statistics.mean(map(math.log, ratios))),
            max(ratios),
            f"{sum(r < 1 for r in ratios)} of {len(ratios)}",
        )
        for problem, ratios in best.items()
    ]
    header = ("problem", "ours over the best peer, geometric mean", "worst shape", "ahead on")
    return markdown.table(header, [(p, f"{m:.2f}", f"{w:.2f}", n) for p, m, w, n in rows])


# --- eval.py ladder -----------------------------------------------------------------------------


def timed(points: list[dict]) -> list[dict]:
    return [point for point in points if point.get("time_us") is not None]


def ladder_points(points: list[dict]) -> str:
    """A row a version: published and modelled us, and the error, of each shape."""
    most = max(len(p.benchmarks) for p in PROBLEMS.values())
    rows = []
    for (problem, version), part in sorted(
        ladder.groups(timed(points), lambda r: (r["problem"], r["version"])).items(), key=_order
    ):
        found = {r["shape"]: r for r in part}
        kinds = dict.fromkeys(r["kind"] for r in part)
        rows.append(
            (
                f"{problem} {version}",
                part[0]["parity"],
                ", ".join(kinds),
                *(_point(found.get(shape)) for shape in range(1, most + 1)),
            )
        )
    shapes = (f"shape {n}" for n in range(1, most + 1))
    return markdown.table(("version", "half", "kind", *shapes), rows)


def _order(item: Any) -> tuple[int, str]:
    (problem, version), _ = item
    return list(PROBLEMS).index(find_problem(problem).name), version


def _point(record: dict | None) -> str:
    if record is None:
        return ""
    us = f"{record['published_us']:.1f} / {record['time_us']:.1f}"
    return f"{us} ({ladder.error(record):+.0%})"


def ladder_errors(points: list[dict]) -> str:
    """Errors by half, problem and kind of kernel."""
    rows = [
        (s["name"], s["count"], f"{s['median']:.1%}", f"{s['worst']:.1%}", f"{s['mean']:+.1%}")
        for s in ladder.summaries(timed(points))
    ]
    return markdown.table(("points", "count", "median error", "worst", "mean, signed"), rows)


def ladder_ranks(points: list[dict]) -> str:
    """Rank correlations within each shape."""

    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    rows = [
        (
            s["shape"],
            s["versions"],
            shown(s["spearman"]),
            shown(s["most"]),
            s["odd"],
            shown(s["odd_spearman"]),
        )
        for s in ladder.shapes(timed(points))
    ]
    header = (
        "shape",
        "versions",
        "Spearman",
        "at most, if all differ",
        "of the odd half",
        "their Spearman",
    )
    return markdown.table(header, rows)


def ladder_steps(points: list[dict]) -> str:
    """Errors of both halves if published times are rounded up to steps."""
    rows = []
    for parity, half in ladder.halves(timed(points)):
        errors = [outside(record) for record in half]
        steps = sum(on_step(record["published_us"]) for record in half)
        worst = max(errors, key=abs)
        rows.append((parity, len(half), steps, errors.count(0), f"{worst:+.1%}"))
    return markdown.table(("half", "points", "on a step", "inside", "worst outside"), rows)


# --- the steps that published times lie on ------------------------------------------------------
# Most published times of the ladder (docs/lab/timing.md) are a multiple of 2.048 us or less than a
# fifth of a step above one; of times that lie anywhere one in five would be. If each call is seen
# to end at the next step only, a published time says that the call took more than the step below.
# Nothing shows that it is so: an H200 rounds nothing.

STEP_US = 2.048  # 2^11 ns
NEAR = 0.2  # of a step: what a mean of calls may lie above one, since a few are seen a step later


def on_step(us: float) -> bool:
    """Whether a time lies on a step, or a little above."""
    return us / STEP_US % 1 <= NEAR


def bounds(us: float) -> tuple[float, float]:
    """us: more than the first, no more than the second, a call took that is published as `us`. One
    between two steps is the mean of calls on either side of the lower one.
    """
    return STEP_US * (math.ceil(us / STEP_US - NEAR) - 1), us


def outside(record: Mapping[str, Any]) -> float:
    """How far a point's modelled time (time_us) is outside of the bounds of the published one, as a
    part of the nearer; 0 inside.
    """
    low, high = bounds(record["published_us"])
    modelled = record["time_us"]
    return modelled / min(max(modelled, low), high) - 1
