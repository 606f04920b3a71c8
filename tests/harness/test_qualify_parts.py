"""The commands of eval.py qualify: covering set, sanitizer, coefficients, what a rehearsal expects."""

from __future__ import annotations

import dataclasses
import itertools
import json
from types import SimpleNamespace

import pytest

from harness.evaluator import cases
from harness.qualify import clock_error, costs, covering, planted, sanitize
from harness.qualify.clock_error import timed
from harness.qualify.state import Given
from tests import ROOT


def test_every_pair_that_a_candidate_has_is_covered_by_few():
    fields = {"tile": (8, 64, 128), "pair": (1, 2), "split": (1, 2, 3), "more": (False, True)}
    every = [dict(zip(fields, values)) for values in itertools.product(*fields.values())]
    legal = [c for c in every if not (c["tile"] == 8 and c["pair"] == 2)]
    chosen = [legal[i] for i in covering.covering(legal)]
    for a, b in itertools.combinations(fields, 2):
        wanted = {(c[a], c[b]) for c in legal}
        assert {(c[a], c[b]) for c in chosen} == wanted
    assert len(chosen) <= 2 * 9  # tile and split alone need 9


IDLE = "from reference import ref_kernel\n\ndef custom_kernel(data):\n    return ref_kernel(data)\n"


def test_equal_bits_of_no_kernel_are_no_pass(tmp_path, fork_server):
    (tmp_path / "idle.py").write_text(IDLE)
    of = ("--device", "emulator", "--submission", str(tmp_path / "idle.py"))
    done = fork_server.run(
        "-m", "harness.qualify.repeats", *of, "--times", "2", "--problems", "gemv"
    )
    row = json.loads(done.stdout)
    assert (done.returncode, row["status"]) == (112, "fail"), done.stderr
    assert row["message"] == "launched no kernel, so no bits of one are compared"


def test_a_clock_without_times_to_compare(tmp_path, capsys):
    state, constants = tmp_path / "state.json", tmp_path / "constants.json"
    state.write_text('{"scope": {}, "given": {}}')
    constants.write_text("{}")
    given = ("--state", str(state), "--constants", str(constants), "--submission", "any.py")
    assert clock_error.main([*given]) == 2
    assert f"{state} has no time to compare" in capsys.readouterr().err


def test_no_candidates_no_covering_set():
    assert list(covering.covering([])) == []


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
BAD = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at k()+0x70
========= ERROR SUMMARY: 3 errors
"""
RACES = "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"


@pytest.mark.parametrize(
    "status, said, expected, word",
    [
        (0, CLEAN, "pass", "0 errors"),
        (99, BAD, "fail", "3 errors, the first: Invalid __global__ write of size 4 bytes"),
        (99, RACES, "fail", "2 errors"),
        (1, CLEAN, "fail", "ended with status 1"),
        (255, "Device not supported", "error", "Device not supported"),
        (None, "", "timeout", "did not end"),
    ],
)
def test_what_a_sanitizer_says(status, said, expected, word):
    found = sanitize.verdict("memcheck", status, said)
    assert found["status"] == expected and word in found["message"]


TUNED = {
    "mode": "tune",
    "problem": "nvfp4_gemm",
    "case": "m: 8; n: 128; k: 64; l: 1",
    "tried": [
        {"config": {"split": 1}, "time_us": 5.0},
        {"config": {"split": 2}, "time_us": None},
    ],
}


def test_what_was_timed_is_modelled_again():
    rows = [{**TUNED, "mode": "benchmark", "time_us": 4.0, "tried": []}, TUNED, {"fact": "SMs"}]
    found = [(item.config, item.us, item.mode) for item in timed(rows)]
    assert found == [((), 4.0, "benchmark"), ((("split", 1),), 5.0, "tune")]


@dataclasses.dataclass(frozen=True)
class Coefficients:
    dram: float
    start: float
    unused: float


def chooser(true: dict[str, float]) -> tuple[costs.Model, list[costs.Shape]]:
    """A submission of two coefficients that matter and one that does not, and shapes timed on a
    chip where they are `true`.
    """
    module = SimpleNamespace(COSTS=Coefficients(dram=100.0, start=1000.0, unused=7.0))

    def estimate(config, problem):
        return problem / config / module.COSTS.dram + module.COSTS.start * config

    module.estimate, module.legal_configs = estimate, lambda problem: [1, 2, 3, 4]
    model = costs.Model(module, ghz=2.0)
    shapes = []
    for problem in (1e5, 4e5, 1e6, 3e6):
        shape = costs.Shape(str(problem), problem, [1, 2, 3], [1.0] * 3)
        shape.us = model.estimates(shape, true)
        shapes.append(shape)
    return model, shapes


def test_coefficients_are_found_and_what_no_time_tells_stays():
    true = {"dram": 50.0, "start": 1500.0}
    model, shapes = chooser(true)
    found = model.fit(shapes)
    assert {name: found[name] for name in true} == pytest.approx(true, rel=0.05)
    assert found["unused"] == pytest.approx(7.0)
    assert dataclasses.asdict(model.module.COSTS) == model.start  # as it was


def test_what_coefficients_are_worth_is_said_also_on_shapes_they_have_not_seen():
    model, shapes = chooser({"dram": 25.0, "start": 1000.0})
    told = costs.evaluate(model, shapes)
    assert told["loss_before"] > 0.05
    assert told["loss_after"] < 0.01 and told["loss_held_out"] < 0.01
    space: dict = {"Coefficients": Coefficients}
    exec(told["paste"], space)
    assert dataclasses.asdict(space["COSTS"]) == pytest.approx(told["costs"], rel=0.01)
    # The best is the root of problem / 25 / 1000: 2 for the first, 4 or more, not timed, for others.
    assert told["untried"] == ["400000.0", "1000000.0", "3000000.0"]


def test_the_kernel_says_what_it_reckons_with():
    import submission

    module = SimpleNamespace(COSTS=submission.COSTS)
    names = [field.name for field in dataclasses.fields(submission.CostModel)]
    assert costs.Model(module, 2.0).names == names


def report(**changed):
    """What a rehearsal gives that found all that was planted: the rows and the summary's lines."""
    wrong, hung, slow = (planted.case_of("gemm"), planted.case_of("dual"), planted.slow_case())
    rows = {
        "wrong": {"problem": wrong.problem.name, "case": wrong.text, "status": "fail"},
        "hung": {"problem": hung.problem.name, "case": hung.text, "status": "timeout"},
        "slow": {"problem": slow.problem.name, "case": slow.text, "said": "the pick loses 20%"},
        "constant": {"constant": "dsmem", "fitted": 239.0, "table": 190.0},
        "right": {"problem": "nvfp4_gemm", "case": "m: 1", "status": "pass"},
    }
    for name, change in changed.items():
        rows[name] = {**rows[name], **change}
    told = [r for r in rows.values() if "problem" in r]
    lines = [f"{r['problem']} {r['case']}: {r.get('said')}" for r in told]
    return {"all": Given(112, list(rows.values()))}, lines


def test_a_rehearsal_that_found_everything():
    given, lines = report()
    assert list(planted.missed("emulator", given, ("dsmem=240",), lines)) == []


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"wrong": {"status": "pass"}}, "planted and not reported: nvfp4_gemm"),
        ({"hung": {"status": "pass"}}, "planted and not reported: nvfp4_dual_gemm"),
        ({"slow": {"said": "pass"}}, "the slow pick of nvfp4_gemm"),
        ({"constant": {"fitted": 200.0}}, "dsmem was altered to 240; found was 200"),
        ({"constant": {"fitted": None}}, "dsmem was altered to 240 and not found"),
        ({"right": {"status": "error"}}, "reported and not planted: nvfp4_gemm m: 1 error"),
    ],
)
def test_what_a_rehearsal_missed_is_named(changed, said):
    given, lines = report(**changed)
    (found,) = planted.missed("emulator", given, ("dsmem=240",), lines)
    assert said in found


def test_a_command_that_broke_is_no_success():
    given, lines = report()
    given["true.measure"] = Given(2, [])
    (found,) = planted.missed("hopper", given, (), lines)
    assert found == "true.measure ended with status 2"


def test_planted_mistakes_are_for_cases_that_are_run(tmp_path):
    """And not for those that other commands of a rehearsal use."""
    for short in (planted.WRONG, planted.HUNG):
        case = planted.case_of(short)
        assert case in cases.official(case.problem, "test", smallest=2)
        assert case not in cases.official(case.problem, "test", smallest=1)
    path = tmp_path / "planted.py"
    planted.write(ROOT / "submission.py", path, "emulator")
    compile(path.read_text(), "planted.py", "exec")
