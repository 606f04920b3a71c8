"""The generated tables of docs/lab/strangers.md, from docs/results/strangers.jsonl."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from b200.clock.devices import B200
from harness.evaluator.ladder import errors as ladder
from lab.strangers import rows as published
from lab.tables import markdown
from lab.tables.others import off, spread
from lab.tables.others import timed as as_points

MADE = "modelled"
DIGITS = 4  # of a clock's digest: rows of another clock than their neighbours' are seen


def timed(records: Sequence[dict[str, Any]], steady: bool = True) -> list[dict[str, Any]]:
    """The rows that have a modelled time, as points of a ladder: those whose published rounds
    agree, or those whose rounds do not.
    """
    return as_points([r for r in records if "modelled_us" in r and r["steady"] == steady])


def kinds(records: Sequence[dict[str, Any]]) -> str:
    """A row a kind of kernel: errors, and how many published times lie in the printed range."""
    parts = ladder.groups(timed(records), operator.itemgetter("kind"))
    rows = [_of(name, parts[name]) for name in sorted(parts)]
    rows.append(_of("all", timed(records)))
    header = ("kind", "rows", "median error", "modelled over published", "in the printed range")
    return markdown.table(header, rows)


def _of(name: str, part: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    held = sum(r["low_us"] <= r["published_us"] <= r["high_us"] for r in part)
    return *spread(name, list(map(ladder.error, part))), f"{held} of {len(part)}"


def _config(record: dict[str, Any]) -> str:
    return record["config"].replace("_", " ")


def points(records: Sequence[dict[str, Any]]) -> str:
    """A row a time."""
    columns: markdown.Columns = {
        "kind": "{kind}",
        "kernel": "{kernel}, {implementation}",
        "configuration": _config,
        "published us": "{published_us:.2f}",
        "modelled us": "{time_us:.2f}",
        "error": off,
        "range": "{low_us:.2f} .. {high_us:.2f}",
        "part": lambda r: r["device"].removeprefix(B200.name).lstrip(", "),
        "CPU s": "{cpu_s:.0f}",
        "clock": lambda r: r["made_by"]["clock"][:DIGITS],
    }
    return markdown.filled(columns, timed(records))


def unsteady(records: Sequence[dict[str, Any]]) -> str:
    """Rows whose published rounds do not agree."""
    columns = {
        "kernel": "{kernel}, {implementation}",
        "configuration": _config,
        "rounds, us": "{fastest_us:.2f} .. {slowest_us:.2f}",
        "their mean": "{published_us:.2f}",
        "modelled us": "{time_us:.2f}",
    }
    return markdown.filled(columns, timed(records, steady=False))


def left_out(records: Sequence[dict[str, Any]]) -> str:
    """A row a kind of all published times: how many have a modelled one, and why others do not."""
    made = {(r["kernel"], r["config"], r["implementation"]): r.get("left_out") for r in records}
    rows = []
    every = published.read()
    for kind in dict.fromkeys(row.kind for row in every):
        part = [row for row in every if row.kind == kind]
        whys = [made.get((r.kernel, r.config, r.implementation), r.left_out) or MADE for r in part]
        others = Counter(why for why in whys if why != MADE)
        said = ", ".join(f"{why} ({count})" for why, count in others.most_common())
        rows.append((kind, len(part), whys.count(MADE), said.replace("|", "\\|")))
    rows.append(("all", *(sum(row[n] for row in rows) for n in (1, 2)), ""))
    return markdown.table(("kind", "published", "modelled", "why not the others"), rows)
