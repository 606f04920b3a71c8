"""What the cases run on (harness/evaluator/devices.py)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from b200.host import own_gpu
from harness.evaluator import devices
from harness.evaluator.devices import Device
from harness.evaluator.pool import Pool
from tests import ROOT
from tests.harness.jobs import job

EMULATOR = Device("emulator", "emulator", "emulator")


def test_the_command_imports_nothing_of_what_runs_a_case():
    """A case has its own process, which imports it; the parent does where several cases share it."""
    program = "import sys, harness.evaluator.command\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ours = [name for name in done.stdout.split() if name.startswith(("b200", "harness"))]
    assert len(ours) <= 60
    rooms = ("b200.chip", "b200.checker", "b200.clock")
    assert [name for name in ours if name.startswith(rooms)] == []


def test_the_emulator_hides_gpus(monkeypatch):
    """A forked case could not ask them, and their answers are not a B200's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    devices.start_emulator()
    assert devices.resolve("emulator").kind == "emulator"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("capability, name", [((10, 0), "NVIDIA B200"), ((9, 0), "NVIDIA H100")])
def test_b200_is_no_other_gpu(monkeypatch, capability, name):
    monkeypatch.setattr(own_gpu, "is_there", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: name)
    if capability[0] == 10:
        found = devices.resolve("b200")
        assert (found.kind, found.name) == ("cuda", name)
    else:
        with pytest.raises(
            devices.SetupError, match="expected compute capability 10, found NVIDIA"
        ):
            devices.resolve("b200")
        assert devices.resolve("cuda").kind == "cuda"


@pytest.mark.parametrize("wanted", ["b200", "cuda"])
def test_without_a_gpu(monkeypatch, wanted):
    monkeypatch.setattr(own_gpu, "is_there", lambda: False)
    with pytest.raises(devices.SetupError, match=f"--device {wanted}: torch finds no CUDA GPU"):
        devices.resolve(wanted)


def test_no_case_forks_once_cuda_is_there(monkeypatch):
    assert EMULATOR.method == "fork"
    monkeypatch.setattr(own_gpu, "is_used", lambda: True)
    assert EMULATOR.method == "spawn"


def test_a_case_that_was_not_forked_finds_the_emulator():
    work = job(Path(__file__).parents[2] / "submission.py", timeout=120)
    (outcome,) = Pool("spawn", workers=1).run([work])
    assert outcome.status == "pass", outcome


def test_an_interrupt_as_a_case_begins(monkeypatch):
    """A terminal interrupts a process, too, that is spawned and has not come to the case."""
    in_threads = []
    monkeypatch.setattr(threading, "excepthook", in_threads.append)

    def interrupt(done, running):
        (process,) = multiprocessing.active_children()
        os.kill(process.pid, signal.SIGKILL)
        raise KeyboardInterrupt

    pool = Pool("spawn", workers=1, on_tick=interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(pool.run([job(Path(__file__), timeout=60)]))
    assert not in_threads and not multiprocessing.active_children()
