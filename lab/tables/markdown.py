"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Columns = Mapping[str, str | Callable[[Any], object]]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header, its rule, and a line a row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def filled(columns: Columns, records: Iterable[dict[str, Any]]) -> str:
    """A line a record. columns: of each heading the cell, a template that names fields of the
    record, or a function of it; None makes an empty one.
    """

    def cell(of: str | Callable[[Any], object], record: dict[str, Any]) -> object:
        made = of.format_map(record) if isinstance(of, str) else of(record)
        return "" if made is None else made

    rows = ([cell(of, record) for of in columns.values()] for record in records)
    return table(list(columns), rows)
