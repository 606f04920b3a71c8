"""Test suites of other projects: how each way to end is told, a limit a test, and a run that goes on
where another has stopped. The suite is one of our own, in which each test ends in a known way.
"""

import json
import subprocess
import sys

import pytest

from lab.suites import own, rows
from lab.suites.draw import checked, draw
from lab.suites.rows import Row
from tests import ROOT
from tests.b200.reports.support import WITHOUT_TORCH

# With arrays of numpy: each of its processes is a Python of its own, to which torch would be two CPU
# seconds.
SUITE = f"""{WITHOUT_TORCH}
import pytest


def test_passes():
    launch(CLEAN)
    assert x[:2].tolist() == [0, 1]


def test_is_wrong():
    launch(CLEAN)
    assert x[:2].tolist() == [0, 2]


def test_has_a_finding():
    launch(RACE)


def test_faults():
    try:
        launch(FAULT)
    except b200.EmulatorError as error:
        raise RuntimeError("what a library makes of it") from error


def test_is_refused():
    from cuda.bindings import driver

    driver.cuArrayCreate(None)


def test_takes_long():
    while True:
        sum(range(1000))


def test_dies():
    os.abort()


def test_is_raw():
    {{}}["a key that is not there"]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_skips(n):
    pytest.skip("not here")
"""
ENDS = {
    "passes": (rows.PASSED, 1),
    "is_wrong": (rows.WRONG, 1),
    "has_a_finding": (rows.FINDING, 1),
    "faults": (rows.FAULT, 1),
    "is_refused": (rows.REFUSED, 0),
    "takes_long": (rows.TIME, 0),
    "dies": (rows.RAW, 0),
    "is_raw": (rows.RAW, 0),
    "skips": (rows.SKIPPED, 0),
}


def run(folder, out, *more):
    command = [sys.executable, "-m", "lab", "suites", str(folder), "--out", str(out), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The suite's folder, where its rows lie, and what the command said."""
    folder, out = tmp_path_factory.mktemp("suite"), tmp_path_factory.mktemp("out")
    (folder / "test_ends.py").write_text(SUITE)
    (folder / "test_unread.py").write_text("import a_package_that_is_not_there\n")
    said = run(
        folder, out, "--limit", "1.5", "--record", str(out / "record.json"), "--title", "own"
    )
    return folder, out, said


def test_each_end_is_told(ended):
    folder, out, said = ended
    found = rows.read(out.glob("rows.*.jsonl"))
    names = {rows.function_of(test).partition("::test_")[2]: row for test, row in found.items()}
    assert {name: (row.outcome, row.launches) for name, row in names.items()} == ENDS
    assert said.returncode == 1, said.stderr
    assert "passed of those that launch and end in time: 2 of 4 (50.0%)" in said.stdout
    assert "test_unread.py: ModuleNotFoundError" in said.stdout
    assert "two CTAs write the same address" in names["has_a_finding"].findings[0]
    assert "cuArrayCreate" in names["is_refused"].said


def test_the_record_is_what_was_said(ended):
    (kept,) = json.loads((ended[1] / "record.json").read_text())["suites"]
    assert kept["outcomes"] == dict.fromkeys(rows.OUTCOMES, 1) | {"raw": 2, "own": 0, "xfailed": 0}
    assert (kept["suite"], kept["tests"], kept["passed"], kept["launched_in_time"]) == (
        *("own", 11, 2, 4),
    )
    assert not any(str(ended[0]) in str(kind) for kind in kept["kinds"])


def test_a_second_run_goes_on(ended):
    """What has a row is not run again; what was under way when a run was stopped is."""
    folder, out, _ = ended
    file = next(out.glob("rows.*.jsonl"))
    lines = [x for x in file.read_text().splitlines() if "test_passes" not in x]
    file.write_text("\n".join([*lines, '{"begun": "test_ends.py::test_passes"}', '{"test": "cut']))
    run(folder, out)
    assert json.loads((out / "todo.json").read_text()) == ["test_ends.py::test_passes"]
    assert rows.read([file])["test_ends.py::test_passes"].outcome == rows.PASSED


def test_one_of_each_function():
    tests = [f"a.py::test_{name}[{n}]" for name in "ab" for n in range(9)] + ["a.py::test_c"]
    drawn = draw(tests, "function", 3)
    assert sorted(map(rows.function_of, drawn)) == [f"a.py::test_{x}" for x in "abc"]
    assert drawn == draw(tests, "function", 3) != draw(tests, "function", 4)
    assert len(draw(tests, "7", 1)) == 7
    assert sorted(draw(tests, "whole", 1)) == sorted(tests)


def test_several_sets_of_each_function():
    tests = [f"a.py::test_{name}[{n}]" for name in "xy" for n in range(5)] + ["a.py::test_z"]
    found = draw(tests, checked("function:3"), 1)
    assert sorted(map(rows.function_of, found)) == ["a.py::test_x"] * 3 + ["a.py::test_y"] * 3 + [
        "a.py::test_z"
    ]
    assert set(draw(tests, "function", 1)) < set(found) < set(tests)


@pytest.mark.parametrize(
    "outcome, said, judged",
    [
        (rows.RAW, "RuntimeError: GraphNode has been destroyed", rows.OWN),
        (rows.RAW, "KeyError: 5", rows.RAW),
        (rows.PASSED, "", rows.PASSED),
    ],
)
def test_a_test_of_its_own_fault_has_the_words_that_are_known(outcome, said, judged):
    test = "tests/graph/test_graph_definition_mutation.py::test_destroyed_node"
    assert own.judged(Row(test, outcome, said=said)).outcome == judged
    assert (
        own.judged(Row("tests/other.py::test_destroyed_node", outcome, said=said)).outcome
        == outcome
    )


@pytest.mark.parametrize("sample", ["0", "half", "-3", "function:", "function:0", "function:x"])
def test_a_sample_that_there_is_not(sample):
    with pytest.raises(ValueError, match="--sample: expected whole, function, function:N or a"):
        checked(sample)


def test_a_test_without_a_launch_is_in_no_share():
    found = [
        Row("a", rows.PASSED, launches=1),
        Row("b", rows.PASSED),
        Row("c", rows.WRONG, launches=1),
        Row("d", rows.TIME, launches=1),
    ]
    assert rows.share(found) == (1, 2)
