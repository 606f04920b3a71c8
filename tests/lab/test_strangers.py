"""Kernels of strangers: the rows, and the benchmark that is run without its compiler."""

from __future__ import annotations

import json
import subprocess

import pytest

from lab.strangers import rows, study
from lab.tables import strangers

RUNNER = """
import tvm
from tvm.script import tirx as T


def bench(launches, references):
    raise AssertionError("the harness measures")


def compile_kernel(function):
    raise AssertionError("the harness compiles nothing")
"""
REGISTRY = """
import importlib


def load_kernel(name, *, strict=False):
    return importlib.import_module(f"tirx_kernels.{name}")
"""
KERNEL = """
import torch
from tirx_kernels.runner import bench, compile_kernel
from tvm.script import tirx as T
from tvm.tirx.visitors import Visitor

CONFIGS = [{"label": "small", "n": 4}, {"label": "large", "n": 8}]


class Counting(Visitor):
    pass


@T.prim_func
def kernel(a: T.handle):
    for i in T.serial(T.grid[4]):
        T.evaluate(i)


def get_kernel(n):
    raise AssertionError("needs the compiler")


def _assert_equal(ours, theirs):
    raise AssertionError("there is no result of ours")


def run_bench(n):
    executable = compile_kernel(get_kernel(n=n))

    def build():
        _assert_equal(executable(n), n)
        assert torch.equal(torch.zeros(1), torch.ones(1))
        return lambda: print("launched", n)

    return bench({"tir": executable}, references={"theirs": build})
"""
RUN = """
from lab.strangers import harness
harness.run("scaled", sys.argv[1], sys.argv[2], lambda launch: launch())
"""


@pytest.fixture
def run(tmp_path, fork_server):
    """run(configuration, implementation) of a package with one kernel."""
    package = tmp_path / "tirx_kernels"
    package.mkdir()
    for name, text in (("__init__", ""), ("runner", RUNNER), ("registry", REGISTRY)):
        (package / f"{name}.py").write_text(text)
    (package / "scaled.py").write_text(KERNEL)
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\n{RUN}"

    def call(config: str, implementation: str) -> subprocess.CompletedProcess[str]:
        return fork_server.run("-c", code, config, implementation)

    return call


def test_a_kernel_is_launched_as_the_benchmark_does_it_without_its_compiler(run):
    done = run("large", "theirs")
    assert (done.stdout, done.returncode) == ("launched 8\n", 0), done.stderr


@pytest.mark.parametrize(
    "config, implementation, said",
    [
        ("huge", "theirs", "no configuration 'huge'"),
        ("small", "ours", "scaled has theirs; found 'ours'"),
    ],
)
def test_a_name_that_it_does_not_know_is_told(run, config, implementation, said):
    done = run(config, implementation)
    assert done.returncode == 1 and said in done.stderr.splitlines()[-1]


def test_each_row_has_a_kind_and_a_name_of_its_own():
    found = rows.read()
    assert len({row.name for row in found}) == len(found) > 90
    assert {row.kind for row in found} == set(rows.KINDS)
    assert all(row.published_us > 0 and row.implementation != rows.OWN for row in found)


def test_rows_whose_rounds_differ_are_not_steady():
    wide = next(r for r in rows.read() if r.config == "b16_h16_hv32_tv64")
    assert (wide.fastest_us, wide.slowest_us, wide.steady) == (9.099, 40.646, False)
    assert sum(row.steady for row in rows.read()) > 80


def test_the_last_error_is_the_reason():
    said = "Traceback:\n  in f\nImportError: no deep_gemm\nb200: a line about launches\n"
    done = subprocess.CompletedProcess([], 1, "", said)
    assert study._reason(done) == "ImportError: no deep_gemm"
    assert study._reason(subprocess.CompletedProcess([], -24, "", "")) == study.TOO_LONG


def test_tables_count_what_lies_in_the_range():
    row = {"kind": "norm", "kernel": "k", "config": "m1_h2", "implementation": "flashinfer"}
    row |= {"device": "B200", "steady": True}
    found = [
        {**row, "published_us": 4.0, "modelled_us": us, "low_us": us / 1.2, "high_us": us * 1.2}
        | {"cpu_s": 3.2}
        for us in (3.0, 4.4)
    ]
    missing = {**row, "published_us": 4.0, "left_out": "ImportError: a|b"}
    rounds = {"fastest_us": 9.1, "slowest_us": 40.65, "published_us": 20.29, "steady": False}
    found.append({**found[0], **rounds, "device": "B200 quarter"})
    assert "| norm | 2 | 17.5% | -25% .. +10% | 1 of 2 |" in strangers.kinds([*found, missing])
    points = strangers.points([*found, missing])
    assert "| 4.00 | 3.00 | -25% | 2.50 .. 3.60 |  | 3 |" in points and "20.29" not in points
    assert "| 9.10 .. 40.65 | 20.29 | 3.00 |" in strangers.unsteady([*found, missing])
    assert "| k | 1 | ImportError: a\\|b |" in strangers.left_out([*found, missing])


def test_records_of_another_clock_are_made_again(tmp_path):
    file = tmp_path / "out.jsonl"
    row = rows.read()[0]
    record = {"kernel": row.kernel, "config": row.config, "implementation": row.implementation}
    record |= {"published_us": row.published_us, "modelled_us": 1.0}
    today = study.digest.made_by()
    for made_by, count in ((today, 1), ({**today, "clock": "another"}, 0)):
        file.write_text(json.dumps({**record, "made_by": made_by}) + "\n")
        assert len(study.kept(file)) == count
