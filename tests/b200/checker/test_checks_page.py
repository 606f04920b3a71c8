"""docs/reference/checks.md has an entry for everything that is found, and none for anything else.

That each planted bug's findings are explained is in test_planted_bugs.py, which runs them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import b200
from b200.checker.finding import KINDS, PAGE, Finding, explained
from tests.b200.checker.checks_page import sections

SECTIONS = sections()


def texts() -> list[str]:
    """Every string of the package's code; what is filled in is left out of an f-string."""
    found = []
    for path in sorted(Path(b200.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(part, "value", None) for part in node.values)
                found.append("".join(p if isinstance(p, str) else "\0" for p in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_each_kind_has_a_section_and_each_section_a_kind():
    assert list(SECTIONS) == [*KINDS, "fault"]
    assert all(SECTIONS.values())


def test_no_entry_is_an_orphan():
    """Each piece of what a row quotes stands in a text of the code."""
    every = texts()
    pieces = {piece for rows in SECTIONS.values() for row in rows for piece in row.pieces}
    assert len(pieces) > 80
    assert [p for p in sorted(pieces) if not any(p in text for text in every)] == []


def test_each_entry_is_whole():
    for rows in SECTIONS.values():
        assert all(row.chip.strip() and row.mend.strip() and row.pieces for row in rows)


def test_a_finding_of_no_kind_is_refused():
    with pytest.raises(ValueError, match="kind must be one of race, .*, got 'rase'"):
        Finding("rase", "", (), "")


def test_what_is_printed_leads_to_the_entry():
    assert explained(["race", "proxy", "race"]) == f"explained in {PAGE}: #race #proxy"
    assert explained(["unsupported"]) == explained([]) == ""
