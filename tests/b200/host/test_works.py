"""Copies, fills and functions of torch race with launches of other queues, and with the host where
it does not wait for them (b200/host/works.py). Each program has a twin that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

import b200
from tests.b200.checker.checks_page import unexplained
from tests.b200.ptx_support import kernel

driver = pytest.importorskip("cuda.bindings.driver")

N = 1024
# y[i] = 2 x[i], of CTAs of 128 threads
DOUBLE = kernel(
    "ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;"
    " shl.b32 %r2, %r2, 7; add.u32 %r1, %r1, %r2; mul.wide.u32 %rd3, %r1, 4;"
    " add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; ld.global.b32 %r3, [%rd1];"
    " shl.b32 %r3, %r3, 1; st.global.b32 [%rd2], %r3;",
    [".u64 x", ".u64 y"],
    name="double",
    reqntid=128,
)


@pytest.fixture(autouse=True)
def gpu():
    gpu = b200.install()
    gpu.launches.clear()
    yield gpu
    torch.cuda.synchronize()


def on_gpu() -> torch.Tensor:
    return torch.ones(N, dtype=torch.int32, device="cuda")


def double(x: torch.Tensor, y: torch.Tensor, count: int = N) -> None:
    """Launch in torch's current queue."""
    _, module = driver.cuModuleLoadData(DOUBLE.encode())
    _, function = driver.cuModuleGetFunction(module, b"double")
    words = np.array([x.data_ptr(), y.data_ptr()], np.uint64)
    places = np.array([words.ctypes.data + 8 * i for i in range(2)], np.uint64)
    queue = torch.cuda.current_stream().cuda_stream
    sizes = count // 128, 1, 1, 128, 1, 1
    (status,) = driver.cuLaunchKernel(function, *sizes, 0, queue, places.ctypes.data, 0)
    assert int(status) == 0


def side_queue() -> torch.cuda.Stream:
    """A queue beside the default one, which has done nothing yet."""
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    return side


# --- programs: waits? -> what they give


def to_the_host(waits: bool) -> int:
    x, y = on_gpu(), on_gpu()
    double(x, y)
    host = y.to("cpu", non_blocking=True)
    if waits:
        torch.cuda.current_stream().synchronize()
    return int(host.sum())


def into_a_pinned_tensor(waits: bool) -> int:
    x, y, host = on_gpu(), on_gpu(), torch.zeros(N, dtype=torch.int32, pin_memory=True)
    double(x, y)
    host[: N // 2].copy_(y[: N // 2], non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    if waits:
        event.synchronize()
    return int(host.numpy()[5])


def the_source_changes(waits: bool) -> int:
    x, y, host = on_gpu(), on_gpu(), torch.ones(N, dtype=torch.int32).pin_memory()
    x.copy_(host, non_blocking=True)
    double(x, y)
    if waits:
        torch.cuda.synchronize()
    host.fill_(7)
    return y[3].item()


def a_function_of_torch_reads(waits: bool) -> int:
    side, x, y = side_queue(), on_gpu(), on_gpu()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        double(x, y)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    return (y + 1)[0].item()


def a_function_of_torch_writes(waits: bool) -> int:
    side, x, y = side_queue(), on_gpu(), on_gpu()
    torch.cuda.synchronize()
    x.mul_(3)
    if waits:
        side.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(side):
        double(x, y)
    side.synchronize()
    return y[0].item()


def a_copy_of_the_default_queue(waits: bool) -> int:
    side, x, y = side_queue(), on_gpu(), on_gpu()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        double(x, y)
    if waits:
        side.synchronize()
    host = np.zeros(N, np.int32)
    driver.cuMemcpyDtoH(host, y.data_ptr(), host.nbytes)
    return int(host[9])


def a_fill(waits: bool) -> int:
    side, x, y = side_queue(), on_gpu(), on_gpu()
    torch.cuda.synchronize()
    driver.cuMemsetD32Async(x.data_ptr(), 5, N, torch.cuda.current_stream().cuda_stream)
    if waits:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        double(x, y)
    side.synchronize()
    return y[0].item()


def handed_out_again(waits: bool) -> int:
    side, y = side_queue(), on_gpu()

    def work() -> None:
        x = on_gpu()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            double(x, y)
        if waits:
            x.record_stream(side)

    work()
    z = on_gpu()
    side.synchronize()
    return int((y + z)[0])


PROGRAMS: dict[Callable[[bool], int], tuple[int, str]] = {
    to_the_host: (2 * N, "the host reads memory that Tensor.copy_ writes, for which it has not"),
    into_a_pinned_tensor: (2, "the host reads memory that Tensor.copy_ writes"),
    the_source_changes: (2, "the host writes memory that Tensor.copy_ reads"),
    a_function_of_torch_reads: (3, "torch.add reads memory that double, work of another queue,"),
    a_function_of_torch_writes: (6, "read that torch.mul_, work of another queue, writes"),
    a_copy_of_the_default_queue: (2, "cudaMemcpy reads memory that double, work of another queue"),
    a_fill: (10, "read that cudaMemset, work of another queue, writes"),
    handed_out_again: (
        3,
        "memory that double, work of another queue, uses may be handed out again",
    ),
}


@pytest.mark.parametrize("program, waits", list(product(PROGRAMS, (False, True))))
def test_work_that_nothing_orders_is_named(gpu, program, waits):
    result, words = PROGRAMS[program]
    assert program(waits) == result  # all run in the order of the calls
    found = [finding for launch in gpu.launches for finding in launch.findings]
    if waits:
        assert found == []
    else:
        assert [words in finding.diagnosis for finding in found] == [True], found
        assert unexplained(found) == []
        assert {f.severity for f in found} == {"error"} and "test_works.py" in found[0].message


def test_halves_of_a_tensor_do_not_conflict(gpu):
    side, x, y = side_queue(), on_gpu(), on_gpu()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        double(x, y, N // 2)
    y[N // 2 :].add_(1)
    y.view(2, -1)[1, ::2].add_(1)  # every other element, as single ones
    torch.cuda.synchronize()
    assert [f for launch in gpu.launches for f in launch.findings] == []
    assert y.tolist() == [2] * (N // 2) + [3, 2] * (N // 4)


def test_what_has_no_contents_is_no_access(gpu):
    side, x, y = side_queue(), on_gpu(), on_gpu()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        double(x, y)
    others = torch.empty_like(y), torch.zeros_like(y), y.new_empty(3), y.view(2, -1).t(), y.shape
    torch.cuda.synchronize()
    assert [f for launch in gpu.launches for f in launch.findings] == [] and others


def test_a_queue_that_only_torch_uses_is_waited_for():
    side, x = side_queue(), on_gpu()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.add_(1)
    assert [text.partition(": ")[2] for text in b200.unfinished()] == ["torch.add_"]
    torch.cuda.current_stream().wait_stream(side)
    assert b200.unfinished() == []


def test_a_pinned_tensor_is_a_tensor_of_the_host():
    pinned = torch.arange(4).pin_memory()
    assert pinned.is_pinned() and not torch.arange(4).is_pinned()
    assert pinned.pin_memory() is pinned and pinned[1:].is_pinned()
    assert repr(pinned) == repr(torch.arange(4)) and f"{pinned[2]}" == "2"
    assert not (pinned + 1).is_pinned() and pinned.device.type == "cpu"
    assert pinned.cuda(non_blocking=True).tolist() == [0, 1, 2, 3]
    assert (pinned.cuda() + pinned).is_cuda and torch.ones(2).cuda().cpu().is_pinned() is False
    assert torch.zeros(3, pin_memory=True).is_pinned()
