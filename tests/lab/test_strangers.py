"""Kernels of strangers: the rows, and the benchmark that is run without its compiler."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from lab.strangers import fills, harness, parts, rows, schedules, study
from lab.tables import strangers
from tests.b200.ptx_support import kernel

RUNNER = """
import tvm
from tvm.script import tirx as T


def bench(launches, references):
    raise AssertionError("the harness measures")


def compile_kernel(function):
    raise AssertionError("the harness compiles nothing")


def set_external_references_enabled(enabled):
    assert enabled
"""
REGISTRY = """
import importlib


def load_kernel(name, *, strict=False):
    return importlib.import_module(f"tirx_kernels.{name}")
"""
KERNEL = """
import torch
from tirx_kernels import _packed, beside
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
    executable = compile_kernel(get_kernel(n=n)["first launch"])

    from tirx_kernels._packed.data import expected

    def build():
        assert _assert_equal(executable(n), n) is None
        beside._assert_close(executable(n))
        assert not expected(n).any()
        assert torch.equal(torch.zeros(1), torch.ones(1))
        return lambda: print("launched", n)

    return bench({"tir": executable}, references={"theirs": build})
"""
EXPECTED = """
import torch


def dequantize(n):
    raise AssertionError("nothing is held against it")


def expected(n):
    made = torch.zeros(n, n)
    made[:, :1] = (dequantize(n).float() @ dequantize(n).t() + 1).to(torch.float32)
    made[0] += torch.einsum("mk,nk->mn", dequantize(n), dequantize(n))
    return made
"""
BESIDE = """
def _assert_close(ours):
    raise AssertionError("there is no result of ours")
"""
RUN = """
from lab.strangers import harness
harness.run("scaled", sys.argv[1], sys.argv[2], lambda launch: launch())
"""


COMPILER = {  # of the project's own kernels: what a wheel of today has, and what it is asked for
    "tvm/__init__": "",
    "tvm/ir": "class TensorLoad:\n    source = 'what it loads from'",
    "tvm/tirx": "class SeqStmt:\n    pass",
    "tvm/script": "tirx = None",
    "tvm/support/__init__": "",
    "tvm/support/nvcc": "def compile_cuda(code, **options):\n    return f'{code} {options}'",
    "tvm_ffi": """
made = {}


def register_global_func(name, function, override):
    made[name] = function


def structural_map(body, callback):
    kind, each = callback
    return [each(item) if isinstance(item, kind) else item for item in body]
""",
}
OWN = """
import tvm_ffi, tvm.ir, tvm.tirx
from tirx_kernels.low_level_ir import check_low_level_ir
from tirx_kernels.runner import bench

CONFIGS = [{"label": "small"}]


def run_bench():
    check_low_level_ir("anything")
    load, first, second = tvm.ir.TensorLoad(), tvm.tirx.SeqStmt(), tvm.tirx.SeqStmt()
    assert isinstance(load, tvm.tirx.BufferLoad) and load.buffer == "what it loads from"
    change = {first: "changed", second: None}
    body = tvm.tirx.stmt_functor.ir_transform([first, second], None, change.get)
    assert body == ["changed", second]
    compiled = tvm_ffi.made["tvm_callback_cuda_compile"]
    return bench({"tir": lambda: print(compiled("code"))})
"""


@pytest.fixture
def folder(tmp_path):
    """A package with one kernel."""
    package = tmp_path / "tirx_kernels"
    package.mkdir()
    for name, text in (
        ("__init__", ""),
        ("runner", RUNNER),
        ("registry", REGISTRY),
        ("beside", BESIDE),
    ):
        (package / f"{name}.py").write_text(text)
    (package / "scaled.py").write_text(KERNEL)
    (package / "_packed").mkdir()
    (package / "_packed" / "__init__.py").touch()
    (package / "_packed" / "data.py").write_text(EXPECTED)
    return tmp_path


@pytest.fixture
def run(folder, fork_server):
    """run(configuration, implementation) of the package."""
    code = f"import sys\nsys.path.append({str(folder)!r})\n{RUN}"

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


def test_the_projects_own_kernel_is_made_by_the_compiler_of_today(folder, run):
    for name, text in {**COMPILER, "tirx_kernels/scaled": OWN}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = run("small", rows.OWN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("code ") and "'target_format': 'ptx'" in done.stdout


def test_each_row_has_a_kind_and_a_name_of_its_own():
    found = rows.read()
    assert len({row.name for row in found}) == len(found) == 118
    assert {row.kind for row in found} == set(rows.KINDS)
    assert all(row.published_us > 0 for row in found)
    assert sum(row.implementation == rows.OWN for row in found) == 11


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
    row |= {"device": "B200", "steady": True, "made_by": {"clock": "abcdef"}}
    found = [
        {**row, "published_us": 4.0, "modelled_us": us, "low_us": us / 1.2, "high_us": us * 1.2}
        | {"cpu_s": 3.2}
        for us in (3.0, 4.4)
    ]
    missing = {**row, "published_us": 4.0, "left_out": "ImportError: a|b"}
    rounds = {"fastest_us": 9.1, "slowest_us": 40.65, "published_us": 20.29, "steady": False}
    found.append({**found[0], **rounds, "device": "B200, 8 SMs"})
    assert "| norm | 2 | 17.5% | -25% .. +10% | 1 of 2 |" in strangers.kinds([*found, missing])
    points = strangers.points([*found, missing])
    assert "| 4.00 | 3.00 | -25% | 2.50 .. 3.60 |  | 3 | abcd |" in points and "20.29" not in points
    assert "| 9.10 .. 40.65 | 20.29 | 3.00 |" in strangers.unsteady([*found, missing])


def test_each_published_row_has_a_time_or_a_reason():
    """Of two activations one was made and one failed; of skinny GEMM the one row was not run."""
    first, second = (vars(row) for row in rows.read() if row.kind == "activation")
    made, failed = {**first, "modelled_us": 2.0}, {**second, "left_out": "ImportError: a|b"}
    table = strangers.left_out([made, failed])
    assert "| activation | 2 | 1 | ImportError: a\\|b (1) |" in table
    assert "| skinny GEMM | 1 | 0 | CPU time (1) |" in table
    assert "| all | 118 | 1 |  |" in table
    assert "| BF16 GEMM | 4 | 0 | CPU time (2), binary without PTX (2) |" in table


def test_a_part_of_the_chip_carries_out_clusters_of_all_of_the_grid():
    """Of a loop over all CTAs of a grid the first ones have more to do: of 592 CTAs that share
    1024 tiles, 432 have two, and 160 have one.
    """
    tiles = [2] * 432 + [1] * 160
    for device in parts.PARTS[1:]:
        kept = list(device.clusters(iter(range(592)), 592))
        assert len(set(kept)) == len(kept) and abs(len(kept) - 592 * device.share) <= parts.RUN
        mean = statistics.mean(tiles[cta] for cta in kept)
        assert abs(mean / statistics.mean(tiles) - 1) < 0.05, device.name


def test_neighbours_of_a_grid_stay_together_on_a_part_of_the_chip():
    kept = list(parts.PARTS[1].clusters(iter(range(4096)), 4096))
    beside = sum(b - a == 1 for a, b in itertools.pairwise(kept))
    assert beside / len(kept) > 0.8


def _call(grid: int, launches: int = 1) -> list:
    return [SimpleNamespace(grid=(grid, 1, 1)) for _ in range(launches)]


def test_a_call_is_run_on_the_largest_part_that_can_be_paid():
    names = [parts.device(_call(1000), [cpu_s]).name for cpu_s in (0.01, 1.0, 4.0, 1000.0)]
    assert names == [device.name for device in parts.PARTS]
    assert parts.device(_call(148), [1000.0]) is parts.B200  # each SM has one CTA: none to spare


def test_the_first_call_runs_each_launch_once_and_large_ones_on_the_smallest_part(monkeypatch):
    gpu, machines = Gpu(), list[Any]()
    whole = gpu.machine

    def execute(program: Any, kernel: Any, shape: Shape, params: bytes) -> Launch:
        machines.append(gpu.machine)
        return Launch(kernel.name, *shape.sizes)

    monkeypatch.setattr(gpu, "execute", execute)
    monkeypatch.setattr(parts.b200, "machine", lambda *_args: "part")
    text = kernel("", [".u32 n"])

    def launch(ctas: int, n: int) -> None:
        gpu.launch(text, None, (ctas, 1, 1), (32, 1, 1), args=(n,))

    with parts.Pilot(gpu) as pilot:
        for ctas, n in ((64, 1), (64, 1), (64, 2), (1000, 1), (1000, 2), (2000, 1)):
            launch(ctas, n)
    launch(1000, 1)
    # 64 CTAs once for 1 and once for 2; 1000 once, 2000 once
    assert machines == [whole, whole, "part", "part", whole]
    assert len(pilot.cpu_s) == 6
    assert pilot.cpu_s[0] == pilot.cpu_s[1] and pilot.cpu_s[3] == pilot.cpu_s[4]


def test_a_pilot_that_has_ended_runs_the_whole_chip(monkeypatch):
    gpu = Gpu()
    before = gpu.execute
    with parts.Pilot(gpu) as pilot:
        assert gpu.execute != before
        pilot.end()
        assert gpu.execute == before
    assert gpu.execute == before


def test_keys_are_dealt_out_to_sms_evenly():
    """Splits of 256 keys: two of the first query and one of the second, for two SMs and for four."""
    lengths = torch.tensor([257, 256], dtype=torch.int32)
    assert schedules.schedule(lengths, 64, 2).tolist() == [[0, 0], [1, 0], [2, 0]]
    of_four = [[0, 0], [0, 1], [1, 0], [2, 0], [2, 0]]
    assert schedules.schedule(lengths[:, None], 64, 4).tolist() == of_four


def test_records_of_another_clock_are_made_again(tmp_path):
    file = tmp_path / "out.jsonl"
    row = rows.read()[0]
    record = {"kernel": row.kernel, "config": row.config, "implementation": row.implementation}
    record |= {"published_us": row.published_us, "modelled_us": 1.0}
    today = study.digest.made_by()
    for made_by, count in ((today, 1), ({**today, "clock": "another"}, 0)):
        file.write_text(json.dumps({**record, "made_by": made_by}) + "\n")
        assert len(study.kept(file)) == count


def test_a_row_that_could_not_be_run_is_tried_again_and_told_once(tmp_path, monkeypatch):
    (tmp_path / "tirx_kernels").mkdir()
    first, second = rows.read()[:2]
    monkeypatch.setattr(rows, "read", lambda: [first, second])
    monkeypatch.setattr(study, "run", lambda row, *_: record(row, modelled_us=1.0))

    def record(row, **outcome):
        said = {"kernel": row.kernel, "config": row.config, "kind": row.kind}
        said |= {"implementation": row.implementation, "published_us": row.published_us}
        return {**said, **outcome, "made_by": study.digest.made_by()}

    file = tmp_path / "out.jsonl"
    study.write(file, [record(row, left_out="no compiler") for row in (first, second)])
    assert study.main([str(tmp_path), "--only", first.name, "--out", str(file)]) == 0
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["config"] for r in found] == [first.config, second.config]
    assert ["modelled_us" in r for r in found] == [True, False]


def test_a_kernel_of_another_dsl_is_not_the_one_that_was_timed(monkeypatch):
    monkeypatch.setattr(harness.importlib.metadata, "version", lambda _: "4.8.1")
    with pytest.raises(ImportError, match=r"expected 4\.6\.0\.dev0, as was timed; found 4\.8\.1"):
        harness.run("scaled", "small", "flashinfer_cutedsl", lambda _: None)


def test_fills_of_the_gpus_memory_are_noted(fork_server):
    code = """
import torch, b200
from lab.strangers.fills import Fills
b200.install(check=False)
with Fills() as fills:
    one = torch.ones(1, device="cuda")
    torch.empty_like(one), torch.ones(3), one.view(1, 1), torch.full((2, 3), 4, device="cuda")
    one.new_zeros(7), torch.zeros_like(one).zero_()
torch.ones(5, device="cuda")
print(fills.elements)
"""
    assert fork_server.run("-c", code).stdout == "[1, 6, 7, 1, 1]\n"


def test_a_fill_writes_its_elements_and_no_more():
    gpu = Gpu()
    out = np.zeros(1300, np.int32)
    gpu.launch(fills.PTX, "fill", (3, 1, 1), (fills.THREADS, 1, 1), args=(out, 1200, 7))
    assert (out[:1200] == 7).all() and not out[1200:].any()
