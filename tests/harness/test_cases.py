"""Cases: their text, what is legal, random ones, the secret seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evaluator import cases
from harness.evaluator.cases import CaseError
from task import PROBLEMS

GEMV, GEMM, DUAL, GROUP = PROBLEMS.values()

numbers = st.integers(-(10**9), 10**9)
values = numbers | st.lists(numbers, min_size=1, max_size=5).map(tuple)


@given(st.dictionaries(st.text("abcmnkl_", min_size=1, max_size=6), values, min_size=1, max_size=6))
def test_a_case_reads_back(args):
    assert cases.parse(cases.format_args(args)) == args


def test_the_forms_of_a_case_file():
    assert cases.parse(" m: 128;k :  256 ; l: 1; seed: 1111;") == {
        "m": 128,
        "k": 256,
        "l": 1,
        "seed": 1111,
    }
    assert cases.parse("m: [96, 128]; k: (1,2)") == {"m": (96, 128), "k": (1, 2)}


@pytest.mark.parametrize(
    "text, words",
    [
        ("m=128", "'m=128' is not 'key: number'"),
        ("m: 1; m: 2", "m is given twice"),
        ("m: [1, x]", "is not a list of numbers"),
        ("m: 1.5", "'m: 1.5' is not"),
        ("", "expected something like"),
    ],
)
def test_malformed_cases(text, words):
    with pytest.raises(CaseError, match="malformed case") as raised:
        cases.parse(text)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "problem, text, words",
    [
        (GEMV, "m: 0; k: 64; l: 1", "m must be at least 1, got 0"),
        (GEMV, "m: 1; k: 96; l: 1", "k must be a multiple of 64, got 96"),
        (GEMV, "m: 1; k: 64; l: 1; seed: -1", "seed must be in [0, 2^63), got -1"),
        (GEMV, "m: [1, 2]; k: 64; l: 1", "m must be a number, got [1, 2]"),
        (
            GEMV,
            "m: 1; n: 2; k: 64; l: 1",
            "n unknown in 'seed: 1111; m: 1; n: 2; k: 64; l: 1': a case of nvfp4_gemv has",
        ),
        (GEMM, "m: 1; n: 2; k: 64", "l missing in 'seed: 1111; m: 1; n: 2; k: 64': a case"),
        (GROUP, "m: [1, 2]; n: [1]; k: [64, 64]; g: 2", "n must be a list of g = 2 numbers"),
        (
            GROUP,
            "m: [1, 2]; n: [1, 1]; k: [64, 65]; g: 2",
            "group 1: k must be a multiple of 64, got 65",
        ),
        (GROUP, "m: []; n: []; k: []; g: 0", "at least 1, got 0"),
    ],
)
def test_illegal_cases(problem, text, words):
    with pytest.raises(CaseError) as raised:
        cases.make_case(problem, cases.parse(text))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
def test_the_problem_of_official_cases_can_be_told(problem):
    for mode in ("test", "benchmark"):
        rows = [cases.parse(case.text) for case in cases.official(problem, mode)]
        assert cases.infer_problem(rows) is problem


def test_gemm_and_dual_are_not_guessed():
    with pytest.raises(CaseError, match="cannot tell the problem"):
        cases.infer_problem([cases.parse("m: 1; n: 2; k: 64; l: 1; seed: 5")])


def test_the_secret_seed_is_mixed_in_by_cantors_pairing():
    case = cases.make_case(GEMV, cases.parse("m: 1; k: 64; l: 1; seed: 3"))
    for secret, mixed in ((0, 9), (1, 13), (2, 18), (5, 39)):  # 3 + (0 + 1 + ... + (3 + secret))
        (changed,) = cases.with_secret([case], secret)
        assert mixed == 3 + sum(range(3 + secret + 1))
        assert changed.args["seed"] == mixed and changed.text == case.text
    assert cases.with_secret([case], None) == [case]


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
@given(seed=st.integers(0, 2**32))
def test_random_cases_are_legal_and_repeatable(problem, seed):
    first = cases.random_cases(problem, 3, seed)
    assert first == cases.random_cases(problem, 3, seed)
    for case in first:
        assert cases.make_case(problem, cases.parse(case.text)) == case
