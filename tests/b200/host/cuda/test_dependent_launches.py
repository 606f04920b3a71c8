"""Dependent launches of raw CUDA: what ends the overlap with the launch before, and what does not.

A launch with the programmatic attribute overlaps with the kernel before it in its queue. Where
something else lies between, or the host has waited, it starts when all is done (CUDA programming
guide, "Programmatic Dependent Launch and Synchronization").
"""

from __future__ import annotations

import json

import pytest

from tests.b200.host.cuda.support import needs_nvcc, one_folder

pytestmark = needs_nvcc

# Each case: x is written by a kernel that has let its dependents start, and read ahead of any wait.
SOURCE = r"""
#include <cstdio>
#include <cuda_runtime.h>
#define KERNELS(n) \
  __global__ void write_##n(int* x) { \
    cudaTriggerProgrammaticLaunchCompletion(); x[threadIdx.x] = threadIdx.x; } \
  __global__ void read_##n(int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void other(int* z) { z[threadIdx.x] = 1; }
template <class... P, class... A>
void launch(bool dependent, cudaStream_t queue, void (*kernel)(P...), A... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = 1, config.blockDim = 32, config.stream = queue;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = dependent;
  if (cudaLaunchKernelEx(&config, kernel, P(args)...)) printf("refused\n");
}
#define CASE(n, between, queue) KERNELS(n) \
  void case_##n(cudaStream_t s, cudaStream_t b) { \
    int *x, *y, *z; \
    cudaMalloc(&x, 128), cudaMalloc(&y, 128), cudaMalloc(&z, 128); \
    cudaDeviceSynchronize(); \
    launch(false, s, write_##n, x); \
    between; \
    launch(true, queue, read_##n, x, y); \
    cudaDeviceSynchronize(); }
cudaEvent_t recorded(cudaStream_t queue) {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, queue);
  return event;
}
void replay(cudaStream_t queue, int* z) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStream_t own;
  cudaStreamCreate(&own);
  cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed);
  other<<<1, 32, 0, own>>>(z);
  cudaStreamEndCapture(own, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, queue);
}
CASE(nothing, , s)
CASE(other_kernel, (other<<<1, 32, 0, s>>>(z)), s)
CASE(fill, cudaMemsetAsync(z, 1, 128, s), s)
CASE(copy, cudaMemcpyAsync(z, y, 128, cudaMemcpyDeviceToDevice, s), s)
CASE(graph, replay(s, z), s)
CASE(host_waits, cudaStreamSynchronize(s), s)
CASE(host_waits_for_event, cudaEventSynchronize(recorded(s)), s)
CASE(kernel_elsewhere, (other<<<1, 32, 0, b>>>(z)), s)
CASE(fill_elsewhere, cudaMemsetAsync(z, 1, 128, b), s)
CASE(host_waits_elsewhere, cudaStreamSynchronize(b), s)
CASE(event_before, cudaStreamWaitEvent(b, recorded(s), 0), b)
int main(int arguments, char**) {
  cudaStream_t s = 0, b = 0;
  if (arguments > 1) {
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    case_kernel_elsewhere(s, b), case_fill_elsewhere(s, b), case_host_waits_elsewhere(s, b);
    case_event_before(s, b);
  }
  case_nothing(s, b), case_other_kernel(s, b), case_fill(s, b), case_copy(s, b);
  case_graph(s, b), case_host_waits(s, b), case_host_waits_for_event(s, b);
}
"""


@pytest.mark.parametrize("order", ["default", "pdl"])
@pytest.mark.parametrize("queues", [False, True])
def test_what_ends_the_overlap(queues, order, tmp_path, fork_server):
    program = one_folder({"dependent.cu": SOURCE}) / "dependent.cu"
    options = ["--no-again", "--all-findings", "--report", str(tmp_path / "report.json")]
    options += [] if order == "default" else ["--schedule", order]
    done = fork_server.run("-m", "b200", "run", *options, str(program), *["queues"] * queues)
    found = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert {f["kernel"] for f in found if f["severity"] == "error"} == {"read_nothing"} | (
        {"read_kernel_elsewhere", "read_fill_elsewhere", "read_host_waits_elsewhere"}
        if queues
        else set()
    )
    assert all("a launch before, writes" in f["diagnosis"] for f in found), found
    assert done.stdout == ""
