"""CUDA's headers by the table: a sample of the functions, all of them in the sweep, and that a wrong
word, a missing function and a wrong bound would be seen.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from b200.host.cuda.toolkit import find_toolkit
from lab.headers import build, judge, oracles, study
from lab.headers.declarations import Function, Parameter
from lab.headers.groups import PROGRAMS
from lab.headers.programs import call_of
from tests import ROOT
from tests.b200.host.cuda.support import needs_nvcc

SAMPLE = (
    r"__hadd2|hsin|__hfma2_relu|__float2half_ru|__nv_cvt_float_to_fp4|__nv_cvt_fp8_to_halfraw"
    r"|__nv_fp8_e4m3|__mulhi|__vabsdiffs4|__vsadu2|__vavgs2|__vimax3_s16x2_relu|__dp4a|__fma_rz"
    r"|__frsqrt_rn|__double2ll_rd|sinf|erfinvf|fmodf|__expf|__shfl_xor_sync|__match_any_sync"
    r"|__reduce_min_sync|atomicAdd|atomicInc|__ldcg|operator/="
)
BY_HAND = ("cg_tile_votes", "cg_cluster", "barrier_tx", "pipeline_roles", "cluster_words")


def _rows(tmp_path, only: str) -> list[study.Row]:
    nvcc = find_toolkit().nvcc
    return study.declared(nvcc, tmp_path, study.functions(build.include_folder(nvcc), only))


def _wrong(rows: list[study.Row]) -> list[str]:
    return [f"{r.name}: {r.verdict}: {r.said}" for r in rows if r.verdict in ("wrong", "refused")]


@needs_nvcc
def test_a_sample_of_the_functions(tmp_path):
    rows = _rows(tmp_path, rf"^(?:{SAMPLE})\(")
    assert _wrong(rows) == []
    tried = {row.name.split("(")[0] for row in rows if row.verdict != "not tried"}
    assert len(rows) > 60 and tried >= {"hsin", "sinf", "__vsadu2", "atomicAdd", "operator/="}


@needs_nvcc
def test_a_sample_of_the_programs_by_hand(tmp_path):
    chosen = [program for program in PROGRAMS if program.name in BY_HAND]
    rows = study.by_hand(find_toolkit().nvcc, tmp_path, chosen)
    assert len(chosen) == len(BY_HAND) and {row.verdict for row in rows} == {"right"}


@pytest.mark.slow
@needs_nvcc
def test_every_function(tmp_path):
    tried = _rows(tmp_path, "")
    rows = study.merged(tried, study.by_hand(find_toolkit().nvcc, tmp_path))
    assert _wrong(rows) == []
    assert [row.name for row in rows if row.said == "no oracle"] == []
    assert sum(row.verdict in ("right", "near") for row in rows) > 2000


def _call(name: str, returns: str, *kinds: str):
    parameters = tuple(Parameter(kind, f"a{n}") for n, kind in enumerate(kinds))
    return call_of(Function("crt/math_functions.h", name, returns, parameters, False))


def test_a_wrong_word_is_told_with_its_inputs():
    call = _call("__mulhi", "int", "int", "int")
    given = judge.arrays(call)
    expected = oracles.expected(call, given)
    assert expected is not None
    found = {"r": expected.words["r"].copy()}
    assert judge.judge(call, given, found, expected).wrong == ""
    found["r"][7] += 1
    told = judge.judge(call, given, found, expected).wrong
    assert re.match(r"of 0x[0-9a-f]+, 0x0: 0x1, expected 0x0 \(1 words\)", told)


def test_a_float_may_be_off_by_the_bound_and_not_by_more():
    call = _call("sinf", "float", "float")
    given = judge.arrays(call)
    expected = oracles.expected(call, given)
    assert expected is not None
    right = judge.rounded(expected.near["r"].exact, judge.kind_of(call, "r"))
    off = judge.judge(call, given, {"r": right + np.uint32(2)}, expected)
    assert (off.wrong, off.steps, off.bound) == ("", 2, 2)
    assert judge.judge(call, given, {"r": right + np.uint32(3)}, expected).wrong


def test_zeros_have_a_sign_and_nans_have_none():
    call = _call("fmaxf", "float", "float", "float")
    given = judge.arrays(call)
    expected = oracles.expected(call, given)
    assert expected is not None
    words = expected.words["r"].copy()
    words[words == 0x7FFFFFFF] = 0xFFC00000
    assert judge.judge(call, given, {"r": words}, expected).wrong == ""
    words[words == 0] = 0x80000000
    assert judge.judge(call, given, {"r": words}, expected).wrong


def test_the_page_has_each_function_once_and_no_wrong_word():
    record = json.loads((ROOT / "docs" / "results" / "headers.json").read_text())
    rows = [study.Row(**row) for row in record["rows"]]
    assert len({(row.page, row.name) for row in rows}) == len(rows)
    assert _wrong(rows) == [] and not any(row.said == "no oracle" for row in rows)
