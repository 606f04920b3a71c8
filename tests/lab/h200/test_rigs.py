"""Each rig's table, of the results that were measured with it."""

from __future__ import annotations

import importlib
import json

import pytest

from lab.h200.__main__ import RIGS, told
from tests import ROOT

NAMED = {  # rig -> its file in docs/results, where that is called otherwise
    "code_cost": "code",
    "fence_cost": "fences",
    "issue_cost": "issue",
    "load_cost": "loads",
}


@pytest.mark.parametrize("name", RIGS)
def test_a_line_is_told_of_each_row(name, capsys):
    assert importlib.import_module(f"lab.h200.{name}").results
    kept = ROOT / "docs" / "results" / f"h200-{NAMED.get(name, name)}.json"
    rows = json.loads(kept.read_text())["results"]
    assert told(rows) == rows
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == " | ".join(rows[0])
    assert len(lines) == len(rows) and all(line.count(" | ") == len(rows[0]) - 1 for line in lines)
