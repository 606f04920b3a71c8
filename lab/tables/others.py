"""The generated tables of public kernels that others timed on a B200: docs/results/others.json, and
docs/results/public-kernels.json, whose times are between events.
"""

from __future__ import annotations

import statistics
from typing import Any

from b200.clock.spread import FEWEST
from harness.evaluator.ladder import errors as ladder
from harness.evaluator.ladder import points as published
from lab.tables import markdown

MATMULS = "BF16 matmuls, templates"


def half(kernel: dict[str, Any]) -> str:
    """The half that a kernel belongs to, as versions of the ladder do: "odd", which judges."""
    return published.half("/".join((kernel["kernel"], kernel["shape"], kernel.get("tactic", ""))))


def judging(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kernels of the judging half, as points of a ladder."""
    return [{**k, "time_us": k["modelled_us"]} for k in kernels if half(k) == "odd"]


def error(kernel: dict[str, Any]) -> float:
    """Modelled over published, less one."""
    return kernel["modelled_us"] / kernel["published_us"] - 1


def points(record: dict[str, Any]) -> str:
    """A row a time."""
    rows = [
        (
            k["kernel"],
            k["shape"],
            k["tactic"],
            half(k),
            f"{k['timing']}, L2 {k['l2']}",
            f"{k['published_us']:.2f}",
            f"{k['kernel_us']:.2f}",
            f"{k['modelled_us']:.2f}",
            f"{error(k):+.0%}",
        )
        for k in record["kernels"]
    ]
    header = ("kernel", "shape", "tactic", "half", "published as", "published us", "kernel alone")
    return markdown.table(header + ("as published", "error"), rows)


def kinds(record: dict[str, Any], public: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The judging half by kernel and kind of timing."""
    name = "{kernel}, {timing}".format_map
    found = ladder.groups(judging(record["kernels"]), name)
    found[MATMULS] = judging(public["kernels"])
    return found


def judged(record: dict[str, Any], public: dict[str, Any]) -> str:
    """The clock's error on the judging half, the largest median first."""
    rows = []
    for name, part in kinds(record, public).items():
        errors = [ladder.error(k) for k in part]
        ends = f"{min(errors):+.0%} .. {max(errors):+.0%}" if len(errors) >= FEWEST else ""
        rows.append((statistics.median(map(abs, errors)), name, len(errors), ends))
    rows.sort(reverse=True)
    header = ("kernel, timed as", "published times", "median error", "modelled over published")
    return markdown.table(header, [(n, count, f"{m:.1%}", ends) for m, n, count, ends in rows])
