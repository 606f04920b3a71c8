"""The tables of docs/lab/evidence.md, from docs/results/evidence.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab.evidence import rows
from lab.evidence.rows import Row
from lab.tables import markdown


def names(row: Row) -> str:
    """The row's forms without their kind, a line each."""
    return "<br>".join(f"`{pattern.partition(': ')[2]}`" for pattern in row.patterns)


def witnesses(row: Row) -> str:
    return "<br>".join(f"**{key}** {place}".rstrip() for key, place in row.witnesses)


def without(data: Mapping[str, Any]) -> str:
    """Rows without a witness from the chip: what if they are wrong, and the way around."""
    found = rows.read(data).open
    if not found:
        return f"Every row has a witness from a {rows.CHIP}."
    header = ("form", "what it means here", "what is known", "if it is wrong", "the way around")
    cells = [(names(row), row.means, witnesses(row), row.if_wrong, row.instead) for row in found]
    return markdown.table(header, cells)


def of_kind(kind: str) -> Callable[[Mapping[str, Any]], str]:
    """The rows of a kind that have a witness from the chip."""

    def render(data: Mapping[str, Any]) -> str:
        found = [row for row in rows.read(data).rows if row.kind == kind and not row.open]
        header = ("form", "what it means here", "witnesses")
        return markdown.table(header, [(names(r), r.means, witnesses(r)) for r in found])

    return render


def sources(data: Mapping[str, Any]) -> str:
    header = ("source", "what it is", "ran on", "how that is known")
    found = rows.read(data).sources.values()
    return markdown.table(header, [(f"**{s.key}**", s.what, s.ran, s.known) for s in found])
