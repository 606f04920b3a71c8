"""Launches that a program repeats to time them: carried out unless they would change nothing."""

from __future__ import annotations

import ctypes

import pytest
import torch

import b200
from b200.chip import repeated
from b200.chip.global_memory import GlobalMemory
from b200.chip.gpu import Gpu
from tests.b200.ptx_support import kernel

COPY = """mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
mul.wide.u32 %rd3, %r0, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
ld.global.u32 %r1, [%rd1]; """
STORE = kernel(COPY + "st.global.u32 [%rd2], %r1;", [".u64 a", ".u64 b"])
ADD = kernel(COPY + "red.global.add.u32 [%rd2], %r1;", [".u64 a", ".u64 b"])


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that counts the launches it carries out."""
    monkeypatch.setattr(repeated, "WORTH_WHILE", 0.0)
    monkeypatch.setattr(repeated, "LOOKED_AT", float("inf"))
    gpu = Gpu()
    carried_out, launch = [], gpu.machine.launch

    def counted(*args):
        carried_out.append(args)
        return launch(*args)

    gpu.machine.launch = counted
    gpu.count = lambda: len(carried_out)  # type: ignore[attr-defined]
    return gpu


def launch(gpu, text, a, b, times: int = 1, threads: int = 32):
    for _ in range(times):
        report = gpu.launch(text, None, (1, 1, 1), (threads, 1, 1), args=[a, b])
    return report


def numbers():
    return torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)


def test_what_changes_nothing_is_answered(gpu, capfd):
    a, b = numbers()
    first = launch(gpu, STORE, a, b)
    last = launch(gpu, STORE, a, b, times=9)
    assert gpu.count() == 2 and len(gpu.launches) == 10 and b.equal(a)
    assert last.counters == first.counters and last is not first
    assert capfd.readouterr().err.count("are answered from the one before") == 1


def test_memory_of_the_driver_is_looked_up_again(gpu):
    """It is forgotten between launches, as it may be gone."""
    a, b = (ctypes.create_string_buffer(128) for _ in range(2))

    def find(memory: GlobalMemory, address: int) -> None:
        for at in map(ctypes.addressof, (a, b)):
            if at <= address < at + 128:
                memory.register(at, 128, "128 bytes of cudaMalloc")

    gpu.memory.also_search(find)
    launch(gpu, STORE, ctypes.addressof(a), ctypes.addressof(b), times=6)
    assert gpu.count() == 2
    a[0] = b"\1"
    launch(gpu, STORE, ctypes.addressof(a), ctypes.addressof(b))
    assert gpu.count() == 3 and b[0] == b"\1"


def test_sums_are_carried_out(gpu):
    a, b = numbers()
    launch(gpu, ADD, a, b, times=5)
    assert gpu.count() == 5 and b.equal(5 * a)


@pytest.mark.parametrize("change", ["input", "output", "another tensor"])
def test_changed_memory_is_seen(gpu, change):
    a, b = numbers()
    launch(gpu, STORE, a, b, times=4)
    other = {"input": a, "output": b, "another tensor": torch.full((32,), 3, dtype=torch.int32)}
    if change == "another tensor":
        a = other[change]
    else:
        other[change].mul_(2).add_(1)
    launch(gpu, STORE, a, b)
    assert gpu.count() == 3 and b.equal(a)


def test_other_arguments_and_other_machines_are_others(gpu):
    a, b = numbers()
    launch(gpu, STORE, a, b, times=3)
    launch(gpu, STORE, b, a)
    assert gpu.count() == 3
    gpu.machine = b200.machine(gpu.memory, check=False, timing=True)
    assert launch(gpu, STORE, a, b, times=3).time.time_us > 0


def test_quick_launches_are_carried_out(gpu, monkeypatch):
    monkeypatch.setattr(repeated, "WORTH_WHILE", 60.0)
    a, b = numbers()
    launch(gpu, STORE, a, b, times=4)
    assert gpu.count() == 4


def test_the_more_memory_there_is_the_longer_a_launch_has_to_take(gpu, monkeypatch):
    monkeypatch.setattr(repeated, "LOOKED_AT", 1.0)
    a, b = numbers()
    launch(gpu, STORE, a, b, times=4)
    assert gpu.count() == 4
