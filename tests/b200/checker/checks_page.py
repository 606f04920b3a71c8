"""docs/reference/checks.md as data: of each kind the rows of its table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from b200.checker.finding import PAGE, SEVERITIES
from tests import ROOT

SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `([^`]+)` \| ([\w, ]+) \| (.+) \| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """A line of a table: pieces of the diagnosis in their order, ranks, what the chip does, how to
    mend it.
    """

    pieces: tuple[str, ...]
    ranks: tuple[str, ...]
    chip: str
    mend: str

    def explains(self, diagnosis: str, rank: str) -> bool:
        pattern = ".*".join(map(re.escape, self.pieces))
        return rank in self.ranks and re.search(pattern, diagnosis) is not None


@cache
def sections() -> dict[str, list[Row]]:
    """Kind -> its rows, of the sections that are about a kind."""
    found = {}
    for kind, text in SECTION.findall((ROOT / PAGE).read_text()):
        rows = [
            Row(
                tuple(piece.strip() for piece in says.split("...") if piece.strip()),
                tuple(ranks.split(", ")),
                chip,
                mend,
            )
            for says, ranks, chip, mend in ROW.findall(text)
        ]
        assert all(set(row.ranks) <= set(SEVERITIES) for row in rows), kind
        found[kind] = rows
    return found


def unexplained(findings) -> list[str]:
    """The findings that no row of their kind's section is about."""
    rows = sections()
    return [
        str(f)
        for f in findings
        if not any(row.explains(f.diagnosis, f.severity) for row in rows[f.kind])
    ]
