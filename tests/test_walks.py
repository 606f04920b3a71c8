"""docs/walks.md, adding.md and glossary.md: each `file: name` that they have exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests import ROOT

PAGES = ("walks.md", "adding.md", "glossary.md")
PLACE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")


def names_in(source: str) -> set[str]:
    """Functions, classes, methods as Class.method, and what is assigned at the top of a module."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found |= {f"{node.name}.{each.name}" for each in inside}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


def missing(text: str) -> list[str]:
    """Places of a page that are not there."""
    places = dict.fromkeys(PLACE.findall(text))
    return [
        f"{file}: {name}"
        for file, name in places
        if not (ROOT / file).is_file() or name not in names_in((ROOT / file).read_text())
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_place_exists(page):
    text = (ROOT / "docs" / page).read_text()
    assert missing(text) == [] and len(PLACE.findall(text)) > 5


def test_a_place_that_is_gone_is_named():
    said = "`b200/chip/gpu.py: Gpu.launch`, `b200/chip/gpu.py: Gpu.land`, `b200/chip/no.py: f`"
    assert missing(said) == ["b200/chip/gpu.py: Gpu.land", "b200/chip/no.py: f"]
