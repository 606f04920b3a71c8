"""The tables of `python -m lab tuning`, from what it writes to docs/results."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from harness.evaluator.quantities import KERNEL_ALONE
from lab.tables import markdown
from task import PROBLEMS

# Title, key of the record, format.
TUNING = {
    "floors": (
        ("shape", "shape", ""),
        ("DRAM us", "dram_us", ".2f"),
        ("MMA us", "mma_us", ".2f"),
        ("start and end us", "fixed_us", ".2f"),
        ("floor us", "floor_us", ".2f"),
        ("binds", "binds", ""),
        (f"{KERNEL_ALONE} us", "us", ".2f"),
        ("pick", "pick", ""),
    ),
    "losses": (
        ("shape", "shape", ""),
        ("by estimate", "pick", ""),
        (f"{KERNEL_ALONE} us", "us", ".2f"),
        ("best of those tried us", "best_us", ".2f"),
        ("lost", "loss", ".1%"),
        ("best", "best", ""),
    ),
    "ablation": (("shape", "shape", ""), (f"{KERNEL_ALONE} us", "us", ".2f")),
    "sweep": (
        ("line", "line", ""),
        ("value", "value", ""),
        (f"{KERNEL_ALONE} us", "us", ".2f"),
        ("floor us", "floor_us", ".2f"),
    ),
}


def columns(what: str, record: dict) -> list[tuple[str, str, str]]:
    """Columns of a table of `harness tuning`. The ablation has one more for each mechanism."""
    fixed = list(TUNING[what])
    if what == "ablation":
        known = {key for _, key, _ in fixed}
        fixed += [(lever, lever, "+.1%") for lever in record if lever not in known]
    return fixed


def cells(what: str, record: dict) -> list[str]:
    """A record's cells; empty where it has None."""
    found = [(record[key], form) for _, key, form in columns(what, record)]
    return ["" if value is None else format(value, form) for value, form in found]


def tuning(what: str) -> Callable[[dict], str]:
    def render(source: dict) -> str:
        records = source["rows"]
        header = [title for title, *_ in columns(what, records[0])]
        return markdown.table(header, (cells(what, record) for record in records))

    return render


def benchmarks() -> list[str]:
    """Names of the benchmark shapes, "gemm 1" for the first of gemm."""
    return [f"{p.short} {i}" for p in PROBLEMS.values() for i, _ in enumerate(p.benchmarks, 1)]


def losses(records: list[dict]) -> str:
    """What the pick loses on the benchmark shapes."""
    found = {record["shape"]: record for record in records}
    return tuning("losses")({"rows": [found[name] for name in benchmarks()]})


def loss_means(records: list[dict]) -> str:
    """What the pick loses on the benchmark shapes and on the random ones of each seed."""
    of: dict[str, list[float]] = {}
    for record in records:
        seed = record["shape"].partition(", ")[2] or "the benchmarks"
        for name in (seed, "all"):
            of.setdefault(name, []).append(record["loss"])
    rows = (
        [
            name,
            len(lost),
            f"{statistics.fmean(lost):.1%}",
            sum(x > 0.03 for x in lost),
            f"{max(lost):.1%}",
        ]
        for name, lost in sorted(of.items(), key=lambda item: (item[0] == "all", item[0]))
    )
    header = ["shapes", "how many", "lost, mean", "of them more than 3 %", "worst"]
    return markdown.table(header, ([str(cell) for cell in row] for row in rows))
