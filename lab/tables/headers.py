"""The table of CUDA's headers (docs/lab/headers.md), from docs/results/headers.json."""

from __future__ import annotations

from collections import Counter

from harness.evaluator.ladder.errors import groups
from lab.tables import markdown

VERDICTS = ("right", "near", "refused", "wrong", "not tried")


def _counts(rows: list[dict]) -> str:
    pages = list(dict.fromkeys(row["page"] for row in rows))
    counted = Counter((row["page"], row["verdict"]) for row in rows)
    lines = [(page, *(counted[page, verdict] for verdict in VERDICTS)) for page in pages]
    total = ("all", *(sum(line[n] for line in lines) for n in range(1, len(VERDICTS) + 1)))
    head = ("header", "right", "within a documented bound", "refused", "wrong", "not tried")
    return markdown.table(head, [*lines, total])


def _function(name: str) -> str:
    """The name without its parameters; of a conversion what it converts to."""
    head, _, rest = name.partition("(")
    to = rest.partition(") to ")[2]
    return f"{head} to {to}" if to else head.replace("|", "\\|")


def _result(rows: list[dict]) -> str:
    worst = max(rows, key=lambda row: (VERDICTS.index(row["verdict"]) % 4, row["steps"]))
    if worst["verdict"] == "near":
        bound = f", bound {worst['bound']:g}" if worst["bound"] else ""
        return f"{worst['steps']:g} ulp{bound}"
    return worst["verdict"]


def headers(record: dict) -> str:
    """How many signatures are right; then a row for each function, its overloads together."""
    rows = record["rows"]
    tried = [row for row in rows if row["verdict"] != "not tried"]
    merged = groups(tried, lambda row: (row["page"], _function(row["name"])))
    lines = [
        (
            page,
            f"`{name}`",
            len(some),
            _result(some),
            ", ".join(sorted({r["source"] for r in some})),
        )
        for (page, name), some in sorted(merged.items())
    ]
    table = markdown.table(("header", "function", "signatures", "words", "source"), lines)
    untried = {
        "header": "{page}",
        "declaration": "`{name}`",
        "why not tried": lambda row: row["said"].replace("|", "\\|"),
    }
    left = markdown.filled(untried, (row for row in rows if row["verdict"] == "not tried"))
    head = f"The headers of CUDA {record['nvcc']}, signatures counted."
    return "\n\n".join((head, _counts(rows), table, left))
