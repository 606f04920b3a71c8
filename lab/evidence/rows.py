"""The rows of docs/results/evidence.json: forms, what they mean here, and who has relied on them.

A row lists forms (forms.py) as patterns: `{a,b}` stands for either, `{8..256 by 8}` for a range of
numbers. A form of the kind `order` is not seen in a launch: it is an order of events that the
kernel relies on, and `of` lists forms that take part in it. A witness is a source and a place in
it; a source that says which device it `ran` on is more than a text.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "evidence.json"
KINDS = ("order", "instruction", "matrix", "mma", "tensormap", "launch")
CHIP = "B200"
MOST_OPEN = 5  # rows without a witness from the chip

_CHOICE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+) by (\d+)")


@dataclass(frozen=True)
class Source:
    """what: a repository with commit and file, a document, or a measurement. ran: the device that
    it is known to have run on, or empty. known: how that is known.
    """

    key: str
    what: str
    ran: str = ""
    known: str = ""


@dataclass(frozen=True)
class Row:
    """patterns: of its forms, all of one kind. means: what the form is for here. witnesses: key of
    a source, and the place in it. if_wrong, instead: what would happen if a chip did otherwise, and
    the way around with its cost; of open rows, whose witnesses are not of the form itself on the
    chip.
    """

    patterns: tuple[str, ...]
    means: str
    witnesses: tuple[tuple[str, str], ...]
    of: tuple[str, ...] = ()
    if_wrong: str = ""
    instead: str = ""

    @property
    def open(self) -> bool:
        return bool(self.if_wrong)

    @property
    def kind(self) -> str:
        return self.patterns[0].partition(":")[0]

    @property
    def forms(self) -> set[str]:
        return set(itertools.chain(*map(expand, self.patterns)))

    @property
    def seen_as(self) -> set[str]:
        """The forms of a launch that show that the row is needed."""
        return set(itertools.chain(*map(expand, self.of))) if self.of else self.forms


@dataclass(frozen=True)
class Evidence:
    sources: Mapping[str, Source]
    rows: tuple[Row, ...]

    def on_chip(self, row: Row) -> bool:
        """Whether a witness ran on the chip."""
        return any(self.sources[key].ran == CHIP for key, _ in row.witnesses)

    @property
    def open(self) -> list[Row]:
        return [row for row in self.rows if row.open]


def expand(pattern: str) -> list[str]:
    """The forms that a pattern stands for. ValueError for a range that has no number."""
    found = _CHOICE.search(pattern)
    if found is None:
        return [pattern]
    if numbers := _RANGE.fullmatch(found[1]):
        first, last, step = map(int, numbers.groups())
        if step < 1 or last < first:
            raise ValueError(f"{pattern}: no number in {found[0]}")
        choices = map(str, range(first, last + 1, step))
    else:
        choices = found[1].split(",")
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [form for choice in choices for form in expand(f"{before}{choice}{after}")]


def read(data: Mapping[str, Any]) -> Evidence:
    """The contents of the file. KeyError or TypeError for a field that is missing or unknown."""
    sources = {key: Source(key, **fields) for key, fields in data["sources"].items()}
    rows = []
    for item in data["rows"]:
        fields = dict(item)
        patterns, of = tuple(fields.pop("forms")), tuple(fields.pop("of", ()))
        witnesses = tuple((key, place) for key, place in fields.pop("witnesses"))
        rows.append(Row(patterns, witnesses=witnesses, of=of, **fields))
    return Evidence(sources, tuple(rows))


def load(path: Path = FILE) -> Evidence:
    return read(json.loads(path.read_text(encoding="utf-8")))


def wrong(evidence: Evidence) -> list[str]:
    """What is wrong with the rows themselves, a line each."""
    found, owner = [], {}
    used = {key for row in evidence.rows for key, _ in row.witnesses}
    found += [f"no source is called {key!r}" for key in sorted(used - set(evidence.sources))]
    found += [f"no row has the source {key!r}" for key in evidence.sources if key not in used]
    for row in evidence.rows:
        name = row.patterns[0]
        kinds = {pattern.partition(":")[0] for pattern in row.patterns}
        if len(kinds) > 1 or row.kind not in KINDS:
            found.append(f"{name}: expected forms of one kind of {KINDS}, found {sorted(kinds)}")
        if (row.kind == "order") != bool(row.of):
            found.append(f"{name}: an order, and nothing else, says which forms it is of")
        for form in sorted(row.forms):
            if form in owner:
                found.append(f"{form}: in the rows {owner[form]!r} and {name!r}")
            owner[form] = name
        if bool(row.if_wrong) != bool(row.instead):
            found.append(f"{name}: what happens if it is wrong goes with the way around")
        if not row.open and used <= set(evidence.sources) and not evidence.on_chip(row):
            found.append(f"{name}: no witness from a {CHIP}, and not said what if it is wrong")
    if len(evidence.open) > MOST_OPEN:
        names = [row.patterns[0] for row in evidence.open]
        found.append(f"at most {MOST_OPEN} rows may lack a witness from a {CHIP}, found {names}")
    return found


def missing(evidence: Evidence, forms: Iterable[str]) -> list[str]:
    """The forms that no row has."""
    known = set().union(*(row.forms for row in evidence.rows))
    return sorted(set(forms) - known)


def idle(evidence: Evidence, forms: Iterable[str]) -> list[str]:
    """The rows that none of the forms needs."""
    seen = set(forms)
    return [row.patterns[0] for row in evidence.rows if not row.seen_as & seen]
