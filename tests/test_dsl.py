"""The rule by which tests are run with each version of the DSL: files that come to it or not, and
those that go through a surface of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatchcase

import pytest

from tests import ROOT, dsl


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import torch\nfrom b200.chip.gpu import Gpu", False),
        ("from tests.b200.ptx_support import kernel", False),
        ("def test():\n    import cutlass.cute", True),
        ("from submission import Config", True),
        ("from harness.evaluator import cases", False),
        ("from harness.evaluator.pool import Pool", True),
        ("from harness.evaluator import running", True),
        ("from b200.host.runtime import Runtime", True),
        ("import b200\nb200.install()", True),
        ("import subprocess", True),
        ("def test(run_eval): pass", True),
        ("from tests.submission import submission_support", True),
        ("from tests.fork_server import ForkServer", True),
    ],
)
def test_what_comes_to_the_dsl(tmp_path, source, expected):
    file = tmp_path / "test_it.py"
    file.write_text(source)
    assert dsl.depends(file) is expected


def test_most_of_the_instruction_set_does_not():
    files = list((ROOT / "tests/b200/chip").glob("test_*.py"))
    assert sum(map(dsl.depends, files)) < len(files) / 4


def test_what_runs_with_each_version():
    """Each pattern stands for files, or tests, that would run otherwise, or not."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if dsl.depends(path)]
    names = {path.relative_to(ROOT / "tests").as_posix() for path in files}
    tests = {
        f"{name}::{test}"
        for name in names
        for test in re.findall(
            r"^def (test_\w+)", (ROOT / "tests" / name).read_text(), re.MULTILINE
        )
    }
    for pattern in (*dsl.APART, *dsl.APART_TESTS, *dsl.THROUGH, *dsl.ONLY):
        of = tests if "::" in pattern else names
        assert any(fnmatchcase(name, pattern) for name in of), pattern
    assert not dsl.by_version(ROOT / "tests/b200/checker/test_checker.py")
    for name in ("b200/host/torch/test_torch_cuda.py", *dsl.THROUGH[1:]):
        assert dsl.by_version(ROOT / "tests" / name), name


@pytest.mark.parametrize(
    "test, packages",
    [
        ("test_front_ends.py::test_it", {"dsl", "torch", "triton", "python"}),
        ("b200/host/torch/test_compiled.py::test_it", {"torch", "triton"}),
        ("b200/host/cuda/test_side_queues.py::test_it", {"torch"}),
        ("b200/host/cuda/test_graphs.py::test_it", set()),
        ("b200/reports/test_ends.py::test_it", {"python"}),
        ("submission/test_submission_levers.py::test_lever", {"dsl", "torch"}),
        ("submission/test_submission_levers.py::test_sampled_pair", set()),
    ],
)
def test_through_which_packages_a_test_goes(test, packages):
    name, _, function = test.partition("::")
    assert dsl.by_version(ROOT / "tests" / name, function) == packages


def test_ci_compares_the_versions_of_these_packages():
    """By `comm`, which needs lines in order."""
    command = [sys.executable, ".ci/versions.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted(dsl.PACKAGES)


def test_no_sweep_is_in_a_file_that_ci_does_not_find():
    """It looks for the files of tests that have the mark in them."""
    assert "grep -rl --include='test_*.py' 'mark\\.slow' tests" in (ROOT / ".ci/run").read_text()
    others = {*(ROOT / "tests").rglob("*.py")} - {*(ROOT / "tests").rglob("test_*.py")}
    assert others and not [path for path in others if ".mark.slow" in path.read_text()]


def test_ci_is_told_the_files_and_names_those_of_torchs_headers():
    """With other versions it gives pytest files, and no marker finds a test in any other."""
    command = [sys.executable, "-m", "tests.dsl"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = listed.stdout.splitlines()
    assert {"tests/test_front_ends.py", "tests/harness/test_eval.py"} < set(files)
    assert "tests/b200/checker/test_checker.py" not in files
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^@pytest\.mark\.torch_headers", path.read_text(), re.MULTILINE)
    }
    given = re.search(r"^ *with_headers=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert given is not None and marked
    assert marked <= {*files, *given[1].split()}
