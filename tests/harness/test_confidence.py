"""How often a modelled difference of two published versions was one on a B200."""

from __future__ import annotations

import pytest

from harness.evaluator.cases import make_case, parse
from harness.evaluator.compare import confidence
from harness.evaluator.compare.command import Result, table
from task import PROBLEMS


def point(version, modelled, published, shape=1, parity="odd", status="pass"):
    return {
        "problem": "gemm",
        "version": version,
        "shape": shape,
        "parity": parity,
        "status": status,
        "time_us": modelled,
        "published_us": published,
    }


def test_pairs_are_counted_by_their_modelled_distance():
    points = [
        point("a", 10.0, 10.0),
        point("b", 10.1, 9.0),  # 1 % above a, the other way around
        point("c", 10.5, 10.5),  # 5 % above a, 4 % above b: right, and right
        point("d", 12.0, 12.0),  # 20, 19 and 14 % above: right
        point("e", 50.0, 1.0, shape=2),  # alone on its shape
        point("f", 5.0, 99.0, parity="even"),  # the clock was fitted to it
        point("g", 5.0, 99.0, status="error"),
    ]
    near, middle, far = confidence.count(points)
    assert (near.pairs, near.right) == (1, 0)
    assert (middle.pairs, middle.right) == (2, 2)
    assert (far.pairs, far.right) == (3, 3)
    assert near.word == "less than the clock can tell"
    assert far.word == "more than the clock's error"


def test_equal_published_times_are_no_right_order():
    (near, *_) = confidence.count([point("a", 10.0, 8.0), point("b", 10.1, 8.0)])
    assert (near.pairs, near.right) == (1, 0)


@pytest.mark.parametrize("ratio", [1.01, 1 / 1.01])
def test_either_of_two_may_be_the_slower(ratio):
    assert confidence.of(ratio) is confidence.bands()[0]


def test_compare_says_what_a_difference_is_worth():
    case = make_case(PROBLEMS["nvfp4_gemm"], parse("m: 128; n: 256; k: 256; l: 1"))
    times = {"low_us": 1.0, "high_us": 9.0, "dram_bytes": None, "kind": "modelled"}

    def result(name, us):
        return Result(name, case, [{"status": "pass", "message": "", "time_us": us, **times}])

    text = table([[result("a.py", 5.0), result("b.py", 5.05), result("c.py", 6.5)]])
    near, _, far = confidence.bands()
    assert f"b.py, +1.0%: {near.word} ({near})" in text
    assert f"c.py, +30.0%: {far.word} ({far})" in text
    assert "a.py, +" not in text


def test_compare_cannot_tell_kernels_of_other_policies():
    """Of two that are 30 % apart, the one that asks for the first one's policy is judged."""
    case = make_case(PROBLEMS["nvfp4_gemm"], parse("m: 128; n: 256; k: 256; l: 1"))
    same = {"low_us": 1.0, "high_us": 9.0, "dram_bytes": None, "kind": "modelled", "message": ""}

    def result(name, us, policies):
        record = {"status": "pass", "time_us": us, "policies": policies, **same}
        return Result(name, case, [record])

    row = [result("a.py", 5.0, []), result("b.py", 6.5, ["evict_last"]), result("c.py", 6.5, [])]
    text = table([row])
    said = "the clock cannot tell: policies of the caches are evict_last against none"
    assert f"b.py, +30.0%: {said}" in text
    assert f"c.py, +30.0%: {confidence.bands()[-1].word}" in text
    fields = [r.fields(row[0]) for r in row]
    assert [f["trust"] for f in fields] == [None, said, str(confidence.bands()[-1])]
    assert [f["policies"] for f in fields] == [[], ["evict_last"], []]
