"""b200 exec: compiled CUDA programs, rebuilt and as they are, and how they end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from b200.compiled import kit
from b200.compiled.command import python_library
from tests import ROOT
from tests.b200.compiled import programs
from tests.b200.host.cuda.support import made_by_nvcc, made_once_of, needs, needs_nvcc

Run = Callable[..., subprocess.CompletedProcess]
FILES = {"parts.cu": programs.PARTS, "parts.h": programs.PARTS_H, "other.cu": programs.OTHER}
SEPARATE = ("-rdc=true", "parts.cu", "other.cu", "-o")
PLAIN = "-gencode=arch=compute_90,code=[compute_90,sm_90]"


pytestmark = [needs_nvcc, needs(python_library)]


def run_exec(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """`b200 exec` with these words."""
    command = [sys.executable, "-m", "b200", "exec", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The sources, and `rebuilt`, which the kit's nvcc has made of them."""

    def make(folder: Path) -> None:
        done = run_exec("nvcc", *SEPARATE, "rebuilt", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once_of(FILES, make, *SEPARATE, str(kit.made()))


@pytest.fixture(scope="module")
def plain() -> Path:
    """The program made by the real nvcc with its defaults, and so with the CUDA runtime in it."""
    return made_by_nvcc(FILES, PLAIN, "-lineinfo", *SEPARATE, "plain") / "plain"


@pytest.fixture(params=["rebuilt", "plain"])
def run(request: pytest.FixtureRequest, folder: Path) -> Run:
    """run(part, *options): a part of the program, whichever way it was compiled."""
    if request.param == "plain":
        folder = request.getfixturevalue("plain").parent
    return lambda part: run_exec(f"./{request.param}", part, cwd=folder)


@pytest.fixture
def run_rebuilt(folder: Path) -> Run:
    return lambda part: run_exec("--", "./rebuilt", part, cwd=folder)


def test_everything_a_program_does(run):
    done = run("all")
    said = done.stdout.splitlines()
    assert said[:-1] == [
        *("added", "counted 384", "grid 10", "cluster 11", "other files 42", "managed 7"),
        "of the kernel",
    ]
    assert re.fullmatch(r"registers \d+", said[-1])
    assert done.returncode == 0 and "race" not in done.stderr


def test_before_main_and_after_it(run):
    done = run("early")
    assert done.stdout.splitlines() == ["atexit: 0", "counted 1", "destroyed: 0"]
    assert done.returncode == 7 and "count, grid (1, 1, 1)" in done.stderr


def test_a_program_without_a_call_starts_nothing(run_rebuilt):
    done = run_rebuilt("help")
    assert (done.returncode, done.stdout) == (0, "no CUDA call\n")


LINE = next(i for i, x in enumerate(programs.PARTS.splitlines(), 1) if "// RACE" in x)


@pytest.mark.parametrize(
    "end, status",
    [("race", 1), ("seven", 7), ("_exit", 1), ("abort", -6), ("segv", -11)],
)
def test_a_race_is_told_however_the_program_ends(run_rebuilt, end, status):
    done = run_rebuilt(end)
    assert done.returncode == status
    assert done.stderr.count("race: ld.shared reads shared memory before st.shared writes it") == 1
    assert f"parts.cu:{LINE}: ld.shared reads shared memory, by warp" in done.stderr


def test_a_fault_is_the_number_that_cuda_has(run_rebuilt):
    done = run_rebuilt("fault")
    assert done.stdout == "700, then 700\n"  # cudaErrorIllegalAddress; it stays
    assert done.returncode == 1
    assert done.stderr.count("global access of 4 bytes") == 1


def test_a_launch_that_is_refused_and_not_asked_for(run_rebuilt):
    done = run_rebuilt("refused")
    assert done.returncode == 1 and "block (4096, 1, 1)" in done.stderr


def test_what_is_not_modelled_is_told(run_rebuilt):
    done = run_rebuilt("absent")
    assert done.stdout == "801\n"  # cudaErrorNotSupported
    assert done.returncode == 1
    assert done.stderr.count("cudaMallocArray is not in the software B200's CUDA") == 1


def test_the_report_and_a_baseline(folder, tmp_path):
    report, known = tmp_path / "report.json", tmp_path / "known.json"
    done = run_exec(
        *("--report", report, "--write-baseline", known, "./rebuilt", "race"), cwd=folder
    )
    found = json.loads(report.read_text())
    assert done.returncode == 1 and found["status"] == 1
    assert found["program"] == ["exec", "./rebuilt", "race"]
    kinds = {finding["kind"] for finding in found["findings"]}
    places = {Path(finding["place"]["file"]).name for finding in found["findings"]}
    assert "race" in kinds and places == {"parts.cu"}
    done = run_exec("--baseline", known, "./rebuilt", "race", cwd=folder)
    assert done.returncode == 0 and "accepted: race" in done.stderr


def test_a_build_and_its_tests(tmp_path):
    if not all(map(shutil.which, ("cmake", "ninja", "ctest"))):
        pytest.skip("needs cmake, ninja and ctest")
    files = FILES | {"CMakeLists.txt": programs.CMAKE, "tested.cu": programs.TESTED}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for command in (["cmake", "-G", "Ninja", "-B", "b"], ["ninja", "-C", "b"]):
        done = run_exec(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run_exec("--", "ctest", "--test-dir", "b", cwd=tmp_path)
    assert "race" in done.stdout.partition("The following tests FAILED")[2]
    assert "50% tests passed, 1 tests failed out of 2" in done.stdout
    assert "2 processes" in done.stderr and "tested.cu:" in done.stderr
    assert done.returncode == 8  # ctest's own


def test_stripped_with_the_runtime_in_it(plain, tmp_path):
    subprocess.run(["strip", plain, "-o", "stripped"], cwd=tmp_path, check=True)
    done = run_exec("./stripped", "all", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = (x for x in done.stderr.splitlines() if "stripped" in x)
    assert "link it with -cudart shared, or leave out strip" in line


@pytest.mark.parametrize(
    "code, number, said",
    [
        ("arch=compute_100a,code=sm_100a", 801, "only machine code for sm_100"),
        ("arch=compute_90,code=sm_90", 209, "no kernel image for this device"),
    ],
)
def test_no_ptx_for_a_b200(code, number, said):
    words = (f"-gencode={code}", "one.cu", "-o", "one")
    done = run_exec("./one", cwd=made_by_nvcc({"one.cu": programs.ONE_KERNEL}, *words))
    assert done.stdout.split()[0] == str(number)
    if number == 801:
        assert done.returncode == 1
        assert said in done.stderr and "-gencode arch=compute_100a" in done.stderr


def test_a_command_that_is_none(tmp_path):
    done = run_exec("./nothing", cwd=tmp_path)
    assert done.returncode == 127 and "./nothing: no such command" in done.stderr
    done = run_exec("--strict", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr == "b200 exec: a command is missing\n"


def test_who_starts_a_command_imports_no_numpy():
    """Each step of a build is one: to import numpy and the checker took three times as long."""
    code = "import sys; from b200 import __main__; from b200.compiled import command\n"
    code += "assert not {'numpy', 'b200.chip.gpu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
