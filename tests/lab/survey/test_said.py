"""What a survey said, read back: alone, in a report of a board, cut off, and of `eval.py tune`."""

from __future__ import annotations

import json

import pytest

from lab.kernel_cases import gemm, group
from lab.survey import said
from submission import Config

BEGIN = (
    "survey: begin: NVIDIA B200; 10.0; 2026-11-28; submission 0123456789abcdef; DSL 4.5.2; 5 trials"
)
CASE = "gemm m: 128; n: 7168; k: 2048; l: 1"
OUT = f"""{BEGIN}
survey: try 1 {CASE} | the default
b200: a line of another
survey: ok 1: 6.200 us, plainest 6.200
survey: try 2 {CASE} | cta_group=2 cluster_n=2
survey: ok 2: 6.000 us, plainest 6.300
survey: try 3 {CASE} | swap_ab=False cluster_n=4
survey: differs 3: 50 of 50 results
survey: try 4 {CASE} | tile_n=128
survey: failed 4: ValueError: no registers left
survey: try 5 {CASE} | split_k=2
"""
REPORT = f"""## Program stderr:
```
{OUT}```"""


@pytest.mark.parametrize(
    "text",
    [OUT, REPORT, json.dumps(REPORT), OUT + "survey: hung 5: no end after 30 s\n"],
    ids=["alone", "report", "saved as JSON", "said to hang"],
)
def test_verdicts(text):
    found = said.read(text, "out.txt")
    assert {one.problem for one in found} == {gemm(7168, 128, 2048)} and found[0].case == CASE
    assert [(one.config, one.verdict) for one in found] == [
        (Config(), "ok"),
        (Config(cta_group=2, cluster_n=2), "ok"),
        (Config(swap_ab=False, cluster_n=4), "differs"),
        (Config(tile_n=128), "failed"),
        (Config(split_k=2), "hung"),
    ]
    assert (found[1].us, found[1].plain_us) == (6.0, 6.3)
    assert found[1].score == 6.0 / 6.3
    where = {(one.device, one.day, one.digest) for one in found}
    assert where == {("NVIDIA B200", "2026-11-28", "0123456789abcdef")}


def test_a_fault_ends_a_run_and_the_next_goes_on():
    text = (
        OUT + f"survey: faulted 5: an illegal address\n{BEGIN}\nsurvey: try 1 {CASE} | split_k=4\n"
    )
    *_, one, other = said.read(text + "survey: ok 1: 5.0 us, plainest 6.2\n", "out.txt")
    assert (one.verdict, one.detail) == ("faulted", "an illegal address")
    assert (other.verdict, other.config) == ("ok", Config(split_k=4))


def test_what_a_board_has_cut_off_hangs_not():
    text = OUT + "[...] 12 lines omitted"
    assert [one.verdict for one in said.read(text, "out.txt")] == ["ok", "ok", "differs", "failed"]


def test_groups():
    case = "group m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2"
    (one,) = said.read(f"{BEGIN}\nsurvey: try 1 {case} | persistent=True\n", "out.txt")
    assert one.problem == group((96, 128, 256), (128, 256, 512))


def tuned(**more):
    tried = [
        {"config": vars(Config()), "estimate": 1.0, "time_us": 6.2, "status": "pass"},
        {
            "config": vars(Config(cta_group=2)),
            "estimate": 1.0,
            "time_us": None,
            "status": "timeout",
        },
        {"config": vars(Config(split_k=2)), "estimate": 1.0, "time_us": None, "status": "fail"},
        {"config": vars(Config(split_k=4)), "estimate": 1.0, "time_us": None, "status": "error"},
        {"config": vars(Config(split_k=8)), "estimate": 1.0, "time_us": None, "status": None},
    ]
    record = {"problem": "nvfp4_gemm", "case": CASE.removeprefix("gemm "), "mode": "tune"}
    record |= {"device": "NVIDIA B200", "day": "2026-11-28", "kind": "measured", "tried": tried}
    return json.dumps(record | more)


def test_lines_of_tune():
    found = said.read(tuned(), "tune.jsonl")
    assert [one.verdict for one in found] == ["ok", "hung", "differs", "failed"]
    assert found[0].us == found[0].score == 6.2 and found[0].plain_us is None
    assert (found[0].device, found[0].day) == ("NVIDIA B200", "2026-11-28")


@pytest.mark.parametrize(
    "text, words",
    [
        ("nothing\n", "no plan was judged"),
        (f"survey: try 1 {CASE} | the default\n", "stands before any 'survey: begin:'"),
        (f"{BEGIN}\nsurvey: try 1 {CASE}\n", "is no 'PROBLEM CASE . CONFIGURATION'"),
        (f"{BEGIN}\nsurvey: try 1 {CASE} | tile_n=many\n", "'tile_n=many' is no field"),
        (f"{BEGIN}\nsurvey: try 1 {CASE} | width=3\n", "'width=3' is no field"),
        (f"{BEGIN}\nsurvey: try 1 gemm m: 128 | tile_n=64\n", "missing"),
        (tuned(kind="modelled"), "the times are modelled"),
    ],
)
def test_what_no_survey_has_said(text, words):
    with pytest.raises(said.SaidError, match=f"out.txt: .*{words}|{words}"):
        said.read(text, "out.txt")
