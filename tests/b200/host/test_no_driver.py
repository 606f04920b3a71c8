"""Software means software: nothing that runs here calls the driver of a GPU that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import b200
from b200.errors import EmulatorError
from b200.host import own_gpu
from tests import ROOT
from tests.b200.host import stub_driver
from tests.b200.host.cuda.support import needs_nvcc

PROGRAM = Path(__file__).with_name("every_front_end.py")
# A torch that has CUDA and says so, as far as this project asks it.
WITH_CUDA = "import torch; torch.cuda.is_available = lambda: True\n"
RUN = """
import sys
from b200.__main__ import main
sys.exit(main(["run", "--strict", sys.argv[1]]))
"""
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a process with the stub driver in front, and its GPU visible."""
    paths = [str(stub_driver.build()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "0"}


def run(environment: dict[str, str], program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@needs_cc
def test_the_stub_is_reached_by_who_calls_the_driver(environment):
    done = run(environment, "from cuda.bindings import driver; driver.cuDeviceGetName(32, 0)")
    assert done.returncode < 0 and f"{stub_driver.REACHED}: cuDeviceGetName" in done.stderr


@needs_cc
@needs_nvcc
@pytest.mark.parametrize(
    "torch",
    [pytest.param("", marks=pytest.mark.slow), WITH_CUDA],
    ids=["torch as it is", "torch with CUDA"],
)
def test_every_front_end_runs_beside_a_gpu(environment, torch, tmp_path):
    """In a folder of its own: beside it here are tests in a folder called `torch`. A torch with CUDA is
    the one that may ask for the GPU.
    """
    program = shutil.copy(PROGRAM, tmp_path)
    done = run(environment, torch + RUN, program)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["right in every way"]), (
        done.stderr
    )
    assert stub_driver.REACHED not in done.stderr


def test_a_process_that_has_used_its_gpu_is_told(monkeypatch):
    monkeypatch.setattr(b200, "_runtime", None)
    monkeypatch.setattr(own_gpu, "is_used", lambda: True)
    with pytest.raises(EmulatorError, match="call b200.install.. before anything is on cuda"):
        b200.install()


def test_what_the_machine_says_for_its_gpu_is_forgotten(monkeypatch):
    monkeypatch.setattr(own_gpu, "is_used", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for listed, left in (("9.0a", None), ("9.0a;10.0a", "9.0a;10.0a"), ("8.0 12.0", None)):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
        own_gpu.hide()
        assert os.environ.get("TORCH_CUDA_ARCH_LIST") == left
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@needs_cc
@pytest.mark.slow
def test_the_tests_of_the_host_layer_run_beside_a_gpu(environment):
    """The rooms beneath it know of no driver."""
    chosen = ("-m", "dsl and not slow and not cuda", "tests/b200/host")
    command = [sys.executable, "-m", "pytest", "-q", *chosen]
    shown = {**environment, "B200_TESTS_SEE_A_GPU": "1"}
    done = subprocess.run(command, cwd=ROOT, env=shown, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert stub_driver.REACHED not in done.stdout
