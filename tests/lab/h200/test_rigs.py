"""Each rig's table, of the results that were measured with it."""

from __future__ import annotations

import importlib
import json
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from lab.h200.__main__ import RIGS
from tests import ROOT

NAMED = {  # rig -> its file in docs/results, where that is called otherwise
    "code_cost": "code",
    "fence_cost": "fences",
    "issue_cost": "issue",
    "load_cost": "loads",
}


def made(of: type, row: dict[str, Any]) -> Any:
    """A result again of its row of JSON."""
    types = get_type_hints(of)
    return of(**{k: made(types[k], v) if is_dataclass(types[k]) else v for k, v in row.items()})


@pytest.mark.parametrize("name", RIGS)
def test_a_row_has_a_cell_for_each_column(name):
    rig: Any = importlib.import_module(f"lab.h200.{name}")
    (of,) = get_args(get_type_hints(rig.measure_all)["return"])
    kept = ROOT / "docs" / "results" / f"h200-{NAMED.get(name, name)}.json"
    results = [made(of, row) for row in json.loads(kept.read_text())["results"]]
    rows = list(rig.rows(results))
    assert rows and {len(row) for row in rows} == {len(rig.COLUMNS)}
