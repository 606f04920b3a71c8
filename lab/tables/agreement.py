"""Whether tables that have the same quantity agree on it.

A quantity is what a row and a column say together: the name of the row, which is its first cell, or
all cells in front of the first number where several rows begin alike, and the heading of the
column. So a heading has to say what it is a time of, or two tables contradict each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?%?")
OF_A_RUN = re.compile(r"\d ?(?:us|%)")
PLACEMENT = 0.04  # relative: two runs of a kernel at other addresses (docs/lab/tuning.md)
OURS = "ours"  # the kernel that a row is about if it names none

Quantity = tuple[tuple[str, ...], str]


def tables(markdown: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """(headings, rows) of each table of a page."""
    lines: list[list[str]] = []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if len(lines) > 2:
            yield lines[0], lines[2:]
        lines = []


def quantities(heading: list[str], rows: list[list[str]]) -> Iterator[tuple[Quantity, str]]:
    """The cells of a table, each with what it is of. Rows of one name, and columns of one heading,
    do not say what they are of and are left out.
    """
    firsts, columns = Counter(row[0] for row in rows), Counter(heading)
    alone = max(firsts.values()) == 1 and "" not in firsts
    named = [(_name(row, alone), row) for row in rows]
    count = Counter(name for name, _ in named)
    for name, row in named:
        for column, cell in list(zip(heading, row))[1:]:
            if cell and cell not in name and any(name) and count[name] == columns[column] == 1:
                yield (name, column), cell


def _name(row: list[str], alone: bool) -> tuple[str, ...]:
    """What a row is called. alone: the first cell tells each row of its table from the others."""
    numbers = (i for i, cell in enumerate(row) if NUMBER.fullmatch(cell))
    end = 1 if alone else next(numbers, len(row))
    return tuple(cell for cell in row[:end] if cell != OURS)


def agree(one: str, other: str) -> bool:
    """Whether two cells say the same: one text, or numbers rounded from one or from two runs of a
    kernel at other addresses. Texts with figures of a run in them may differ.
    """
    if not (NUMBER.fullmatch(one) and NUMBER.fullmatch(other)):
        return one == other or bool(OF_A_RUN.search(one + other))
    a, b = (float(cell.replace(",", "").removesuffix("%")) for cell in (one, other))
    return abs(a - b) <= PLACEMENT * max(abs(a), abs(b))


def contradictions(pages: Mapping[str, str]) -> list[str]:
    """A line for each quantity with two values. pages: the text of each, by its name."""
    found: dict[Quantity, tuple[str, str]] = {}
    lines = []
    for page, text in pages.items():
        for heading, rows in tables(text):
            for quantity, value in quantities(heading, rows):
                first, there = found.setdefault(quantity, (value, page))
                if not agree(value, first):
                    row, column = ", ".join(quantity[0]), quantity[1]
                    lines.append(f"{page}: {row}, {column}: {value}, but {first} in {there}")
    return lines
