"""Launches of raw CUDA on queues of their own: who waits for them, and on which queue PyTorch's
current one is.
"""

from __future__ import annotations

import pytest
import torch

import b200
from tests.b200.host.cuda.support import needs_nvcc, torch_program

pytestmark = needs_nvcc

SOURCE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void fill(int* x, int value) { x[threadIdx.x] = value; }

cudaStream_t side(int64_t flags) {
  cudaStream_t queue;
  cudaStreamCreateWithFlags(&queue, static_cast<unsigned>(flags));
  return queue;
}
void launch(torch::Tensor x, cudaStream_t queue) { fill<<<1, 32, 0, queue>>>(x.data_ptr<int>(), 7); }

// How the work of a side queue is waited for, by its number.
void on_a_side_queue(torch::Tensor x, int64_t flags, int64_t how) {
  const cudaStream_t queue = side(flags), current = at::cuda::getCurrentCUDAStream();
  launch(x, queue);
  cudaEvent_t event;
  cudaEventCreate(&event);
  if (how == 1) cudaStreamSynchronize(queue);
  if (how == 2) cudaDeviceSynchronize();
  if (how == 3) cudaEventRecord(event, queue), cudaStreamWaitEvent(current, event, 0);
  if (how == 4) cudaEventRecord(event, queue), cudaEventSynchronize(event);
  if (how == 5) cudaEventRecord(event, current), cudaStreamWaitEvent(current, event, 0);
  if (how == 6) cudaEventRecord(event, queue);
  if (how == 7) cudaStreamSynchronize(current);
}
void on_the_current_queue(torch::Tensor x) { launch(x, at::cuda::getCurrentCUDAStream()); }
void guarded(torch::Tensor x, bool waits) {
  const auto queue = at::cuda::getStreamFromPool();
  TORCH_CHECK(queue.id() != at::cuda::getCurrentCUDAStream().id());
  at::cuda::CUDAEvent event;
  {
    at::cuda::CUDAStreamGuard guard(queue);
    on_the_current_queue(x);
    event.record();
  }
  if (waits) event.block(at::cuda::getCurrentCUDAStream());
}
"""
DECLARED = {
    "on_a_side_queue": "void on_a_side_queue(torch::Tensor x, int64_t flags, int64_t how);",
    "on_the_current_queue": "void on_the_current_queue(torch::Tensor x);",
    "guarded": "void guarded(torch::Tensor x, bool waits);",
}
BLOCKING, NON_BLOCKING = 0, 1  # cudaStreamDefault, cudaStreamNonBlocking


@pytest.fixture(scope="module")
def program():
    return torch_program()


@pytest.fixture
def x():
    torch.cuda.synchronize()
    zeros = torch.zeros(32, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    yield zeros
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "flags, how, waited",
    [
        (NON_BLOCKING, 0, False),
        (NON_BLOCKING, 1, True),
        (NON_BLOCKING, 2, True),
        (NON_BLOCKING, 3, True),
        (NON_BLOCKING, 4, True),
        (NON_BLOCKING, 5, False),  # an event of the wrong queue
        (NON_BLOCKING, 6, False),  # an event that nobody waits for
        (NON_BLOCKING, 7, False),  # the wrong queue
        (BLOCKING, 0, True),  # ordered with the default queue, CUDA's "stream synchronization"
    ],
)
def test_who_waits_for_a_side_queue(program, x, flags, how, waited):
    program.on_a_side_queue(x, flags, how)
    left = b200.unfinished()
    assert [text.partition(": ")[2] for text in left] == ([] if waited else ["fill"])
    assert x.eq(7).all()


def test_a_queue_of_torch_is_the_current_one_of_a_program(program, x):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        program.on_the_current_queue(x)
        assert b200.unfinished() == []
    assert len(b200.unfinished()) == 1
    torch.cuda.current_stream().wait_stream(side)
    assert b200.unfinished() == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_queue_guard(program, x, waits):
    program.guarded(x, waits)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert (b200.unfinished() == []) == waits
