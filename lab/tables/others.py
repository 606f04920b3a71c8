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


def timed(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kernels, as points of a ladder."""
    return [{**k, "time_us": k["modelled_us"]} for k in kernels]


def judging(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the judging half."""
    return [k for k in timed(kernels) if half(k) == "odd"]


def off(point: dict[str, Any]) -> str:
    return f"{ladder.error(point):+.0%}"


def points(record: dict[str, Any]) -> str:
    """A row a time."""
    columns = {
        "kernel": "{kernel}",
        "shape": "{shape}",
        "tactic": "{tactic}",
        "half": half,
        "published as": "{timing}, L2 {l2}",
        "published us": "{published_us:.2f}",
        "kernel alone": "{kernel_us:.2f}",
        "as published": "{modelled_us:.2f}",
        "error": off,
    }
    return markdown.filled(columns, timed(record["kernels"]))


def medians(parts: dict[str, list[dict[str, Any]]]) -> list[tuple[float, str, list[float]]]:
    """(median size of the errors, name, errors) of each part, the largest median first."""
    errors = {name: list(map(ladder.error, part)) for name, part in parts.items()}
    found = [(statistics.median(map(abs, each)), name, each) for name, each in errors.items()]
    return sorted(found, key=lambda each: -each[0])


def spread(name: str, errors: list[float], few: int = 0) -> tuple[str, int, str, str]:
    """name, count, median size and ends of some errors; no ends of fewer than `few`."""
    ends = f"{min(errors):+.0%} .. {max(errors):+.0%}" if len(errors) >= few else ""
    return name, len(errors), f"{statistics.median(map(abs, errors)):.1%}", ends


def kinds(record: dict[str, Any], public: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The judging half by kernel and kind of timing."""
    name = "{kernel}, {timing}".format_map
    found = ladder.groups(judging(record["kernels"]), name)
    found[MATMULS] = judging(public["kernels"])
    return found


def judged(record: dict[str, Any], public: dict[str, Any]) -> str:
    """The clock's error on the judging half, the largest median first."""
    header = ("kernel, timed as", "published times", "median error", "modelled over published")
    found = medians(kinds(record, public))
    return markdown.table(header, [spread(name, each, FEWEST) for _, name, each in found])
