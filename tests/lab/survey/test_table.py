"""The table of picks as text: a row in ruff's form, and nothing else of the file changed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import submission
from lab.kernel_cases import dual, gemm, gemv, group
from lab.survey import table
from submission import MODELLED, PICKS, Config, Pick

SOURCE = Path(submission.__file__).read_text()
MEASURED = "NVIDIA B200, 2026-11-28"
LONG = Config(tile_n=128, swap_ab=False, cta_group=2, split_k=2, cluster_n=4, persistent=True)
MANY = [(m, 4096, 7168) for m in range(8, 520, 8)]
NEW = [
    gemm(512, 40, 256),
    gemv(4096, 256, 3),
    dual(1024, 128, 256),
    group((96, 128, 256), (40, 256, 256)),
    group(*((m, 512, 256) for m in (8, 16, 24))),
    group(*((m, 128 * m, 7168) for m in range(1, 9))),
    group(*MANY),
]


def picks_of(text):
    """PICKS of a text, as Python reads it."""
    names = {**vars(submission)}
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "PICKS":
            exec(compile(ast.Module([node], []), "table", "exec"), names)
    return names["PICKS"]


def test_the_rows_that_are_there_stay_as_they_are():
    assert table.with_rows(SOURCE, PICKS) == SOURCE


@pytest.mark.parametrize("config", [Config(), LONG], ids=["short", "long"])
@pytest.mark.parametrize("basis", [MODELLED, MEASURED])
@pytest.mark.parametrize("problem", NEW, ids=range(len(NEW)))
def test_a_new_row_is_what_it_says(problem, basis, config):
    text = table.with_rows(SOURCE, {problem: Pick(config, basis)})
    assert picks_of(text) == {**PICKS, problem: Pick(config, basis)}
    assert max(map(len, text.split("\n"))) <= table.WIDTH


def test_rows_are_in_the_form_of_ruff():
    picks = {p: Pick((Config(), LONG)[n % 2], MEASURED) for n, p in enumerate([*PICKS, *NEW])}
    pytest.importorskip("ruff")
    text = table.with_rows(SOURCE, picks)
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "submission.py", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout == text


def test_another_row_changes_its_lines_alone():
    problem = list(PICKS)[4]
    text = table.with_rows(SOURCE, {problem: Pick(LONG, MEASURED)})
    assert picks_of(text) == {**PICKS, problem: Pick(LONG, MEASURED)}
    old, new = table.row(problem, PICKS[problem]), table.row(problem, Pick(LONG, MEASURED))
    assert SOURCE.count(old) == 1 and text == SOURCE.replace(old, new)


def test_the_digest_is_of_all_but_the_rows():
    with_row = table.with_rows(SOURCE, {NEW[0]: Pick(LONG, MEASURED)})
    assert table.digest(with_row) == table.digest(SOURCE)
    assert table.digest(SOURCE.replace("TILE_K = 256", "TILE_K = 512")) != table.digest(SOURCE)


@pytest.mark.parametrize(
    "text, words",
    [
        ("x = 1\n", "no table PICKS: expected a line"),
        ("PICKS: dict = {**OTHER}\n", "PICKS has a row that is not"),
    ],
)
def test_a_text_without_the_table(text, words):
    with pytest.raises(table.TableError, match=words):
        table.with_rows(text, {NEW[0]: Pick(LONG, MEASURED)})
