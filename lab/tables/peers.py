"""The generated tables about other people's kernels: beside ours (`eval.py compare`), and against
their published times (`eval.py ladder`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from harness.evaluator import cases
from harness.evaluator.ladder import errors as ladder
from lab.tables import markdown
from task import PROBLEMS, find_problem

# --- eval.py compare --json ---------------------------------------------------------------------


SHAPES = {  # of the benchmarks, by case: "gemm 1" for the first of gemm
    cases.format_args(benchmark.args): f"{problem.short} {number}"
    for problem in PROBLEMS.values()
    for number, benchmark in enumerate(problem.benchmarks, 1)
}


def by_shape(records: list[dict]) -> dict[str, list[dict]]:
    """Records of a comparison by shape, ours first in each."""
    return ladder.groups(records, lambda r: SHAPES[r["case"]])


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
    rows = []
    for problem, ratios in best.items():
        mean, ahead = statistics.geometric_mean(ratios), sum(r < 1 for r in ratios)
        ahead = f"{ahead} of {len(ratios)}"
        rows.append((problem, f"{mean:.2f}", f"{max(ratios):.2f}", ahead))
    header = ("problem", "ours over the best peer, geometric mean", "worst shape", "ahead on")
    return markdown.table(header, rows)


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
    us = "{published_us:.1f} / {time_us:.1f}"
    return f"{us.format_map(record)} ({ladder.error(record):+.0%})" if record else ""


def ladder_errors(points: list[dict]) -> str:
    """Errors by half, problem and kind of kernel."""
    columns = {
        "points": "{name}",
        "count": "{count}",
        "median error": "{median:.1%}",
        "worst": "{worst:.1%}",
        "mean, signed": "{mean:+.1%}",
    }
    return markdown.filled(columns, ladder.summaries(timed(points)))


def ladder_ranks(points: list[dict]) -> str:
    """Rank correlations within each shape."""

    def shown(name: str) -> Callable[[dict], str]:
        return lambda s: "" if s[name] is None else f"{s[name]:.2f}"

    columns = {
        "shape": "{shape}",
        "versions": "{versions}",
        "Spearman": shown("spearman"),
        "at most, if all differ": shown("most"),
        "of the odd half": "{odd}",
        "their Spearman": shown("odd_spearman"),
    }
    return markdown.filled(columns, ladder.shapes(timed(points)))


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
