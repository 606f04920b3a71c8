"""Rows and columns that are right in another place are found there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.diagnosis import moved
from reference import ref_kernel
from tests.harness.diff_support import explained, gemm

ROWS, COLUMNS = 128, 256


def right() -> np.ndarray:
    return np.random.default_rng(3).integers(-500, 500, (ROWS, COLUMNS, 1)).astype(np.float32)


def said(got: np.ndarray, want: np.ndarray) -> str:
    return moved.explain(got, want, got != want)


@pytest.mark.parametrize(
    "sources, rule",
    [
        (np.arange(COLUMNS) ^ 1, "i ^ 1"),
        (np.arange(COLUMNS) ^ 64, "i ^ 64"),
        (np.arange(COLUMNS).reshape(-1, 32)[:, ::-1].ravel(), "31 - i in each 32"),
        (np.roll(np.arange(COLUMNS).reshape(-1, 32), -1, 1).ravel(), "i + 1 in each 32, around"),
    ],
)
def test_columns_by_a_rule(sources, rule):
    want = right()
    line = f"columns of c are in other places: column i has what belongs in column {rule}"
    assert said(want[:, sources], want) == line


def test_rows_of_a_tile_that_are_one_off():
    """The first row holds what was there before, which is no row at all."""
    want = right()
    got = want.copy()
    got[33:64, :32] = want[32:63, :32]
    line = "rows of c are in other places: row i has what belongs in row i - 1"
    assert said(got, want) == line


def test_rows_that_follow_no_rule_are_listed():
    want = right()
    got = want.copy()
    got[[3, 5, 90]] = want[[90, 3, 5]]
    assert said(got, want) == (
        "rows of c are in other places: what belongs in a row is in another, that of 90 in 3,"
        " that of 3 in 5, that of 5 in 90"
    )


def test_a_gemv_has_rules_alone():
    want = right()[:, :1]
    assert said(want[np.arange(ROWS) ^ 2], want).endswith("what belongs in row i ^ 2")
    few = want.copy()
    few[[3, 5]] = want[[5, 3]]
    assert said(few, want) == ""


def test_other_mistakes_are_not_moves():
    want = right()
    assert said(np.zeros_like(want), want) == ""
    assert said(want + 7, want) == ""
    assert said(np.full_like(want, np.nan), want) == ""
    twice = want.copy()
    twice[7] *= 2
    assert said(twice, want) == ""


def test_the_report_of_a_diff_has_it():
    data = gemm()
    output = ref_kernel(data)[:, torch.arange(256) ^ 1]
    line = "columns of c are in other places: column i has what belongs in column i ^ 1"
    assert line in explained(data, output)
