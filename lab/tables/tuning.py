"""The tables of `python -m lab tuning`, from what it writes to docs/results."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from harness.evaluator.quantities import KERNEL_ALONE
from lab.tables import markdown
from lab.tables.peers import SHAPES

US = {f"{KERNEL_ALONE} us": "{us:.2f}"}
TUNING: dict[str, markdown.Columns] = {
    "floors": {
        "shape": "{shape}",
        "DRAM us": "{dram_us:.2f}",
        "MMA us": "{mma_us:.2f}",
        "start and end us": "{fixed_us:.2f}",
        "floor us": "{floor_us:.2f}",
        "binds": "{binds}",
        **US,
        "pick": "{pick}",
    },
    "losses": {
        "shape": "{shape}",
        "by estimate": "{pick}",
        **US,
        "best of those tried us": "{best_us:.2f}",
        "lost": "{loss:.1%}",
        "best": "{best}",
    },
    "ablation": {"shape": "{shape}", **US},
    "sweep": {"line": "{line}", "value": "{value}", **US, "floor us": "{floor_us:.2f}"},
}


def tuning(what: str) -> Callable[[dict], str]:
    """Of the ablation there is a column more for each mechanism."""

    def gain(mechanism: str) -> Callable[[dict], str]:
        return lambda r: "" if r[mechanism] is None else f"{r[mechanism]:+.1%}"

    def render(source: dict) -> str:
        records = source["rows"]
        more = [key for key in records[0] if what == "ablation" and key not in ("shape", "us")]
        return markdown.filled({**TUNING[what], **{key: gain(key) for key in more}}, records)

    return render


def losses(records: list[dict]) -> str:
    """What the pick loses on the benchmark shapes."""
    found = {record["shape"]: record for record in records}
    return tuning("losses")({"rows": [found[name] for name in SHAPES.values()]})


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
    return markdown.table(header, rows)
