"""What host code does with memory of CUDA: a program a mistake, beside its right twin.

Expected values: CUDA programming guide 13, "Unified and System Memory", "Asynchronous Concurrent
Execution" and "Events"; CUDA runtime API, cudaMemcpy, cudaFree and cudaStreamWaitEvent.
"""

from __future__ import annotations

import re

import pytest

from tests.b200.host.cuda.support import needs_nvcc, one_folder

pytestmark = needs_nvcc

PROGRAM = r"""
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
__global__ void fill(float* x) { x[threadIdx.x] = threadIdx.x; }
__global__ void copy(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x]; }
float sum(const float* x) {
  float s = 0;
  for (int i = 0; i < 32; ++i) s += x[i];  // LINE sums
  return s;
}
void in_queue(cudaStream_t, cudaError_t, void* x) { printf("%g\n", sum((float*)x)); }
void say(cudaError_t error) { printf("%s\n", cudaGetErrorString(error)); }
int main(int argc, char** argv) {
  const std::string how = argv[1];
  float *x, *y, *pinned, *managed;
  std::vector<float> host(32);
  cudaMalloc(&x, 128);  // LINE x
  cudaMalloc(&y, 128);  // LINE y
  cudaMallocHost(&pinned, 128);  // LINE pinned
  cudaMallocManaged(&managed, 128);
  for (int i = 0; i < 32; ++i) pinned[i] = managed[i] = 1;
  cudaStream_t a, b;
  cudaEvent_t done;
  cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
  cudaEventCreate(&done);
  fill<<<1, 32>>>(x);
  cudaDeviceSynchronize();
  if (how == "read") printf("%g\n", sum(x));
  if (how == "write") y[3] = 1;  // LINE writes
  if (how == "memcpy") memcpy(host.data(), x, 128);  // LINE memcpy
  if (how == "thread") std::thread([&] { printf("%g\n", sum(x)); }).join();
  if (how == "copied") cudaMemcpy(host.data(), x, 128, cudaMemcpyDeviceToHost), printf("%g\n", sum(host.data()));
  if (how == "early" || how == "waited") {
    cudaMemcpyAsync(pinned, x, 128, cudaMemcpyDeviceToHost, a);  // LINE async
    if (how == "waited") cudaStreamSynchronize(a);
    printf("%g\n", sum(pinned));
  }
  if (how == "overwrites") {
    cudaMemcpyAsync(x, pinned, 128, cudaMemcpyHostToDevice, a);
    pinned[0] = 2;  // LINE overwrites
  }
  if (how == "callback") {
    cudaMemcpyAsync(pinned, x, 128, cudaMemcpyDeviceToHost, a);
    cudaStreamAddCallback(a, in_queue, pinned, 0);
  }
  if (how == "managed" || how == "managed_waited" || how == "managed_other") {
    fill<<<1, 32>>>(how == "managed_other" ? x : managed);
    if (how == "managed_waited") cudaDeviceSynchronize();
    printf("%g\n", sum(managed));
  }
  if (how == "freed") cudaFree(y), fill<<<1, 32>>>(y);  // LINE freed
  if (how == "freed_copy") cudaFree(y), say(cudaMemcpy(host.data(), y, 128, cudaMemcpyDeviceToHost));
  if (how == "freed_twice") cudaFree(y), say(cudaFree(y));
  if (how == "freed_read") cudaFree(y), printf("%g\n", sum(y));
  if (how == "direction") say(cudaMemcpy(host.data(), x, 128, cudaMemcpyHostToDevice));
  if (how == "order") say(cudaMemcpy(x, host.data(), 128, cudaMemcpyDeviceToHost));
  if (how == "long") say(cudaMemcpy(host.data(), x, 132, cudaMemcpyDeviceToHost));
  if (how == "fill") say(cudaMemset(host.data(), 0, 128));
  if (how == "default") say(cudaMemcpy(host.data(), x, 128, cudaMemcpyDefault));
  if (how == "behind") fill<<<1, 33>>>(x);
  if (how == "far_behind") fill<<<1, 32>>>(y + 25000);
  if (how == "wait_first") {
    cudaStreamWaitEvent(b, done);  // LINE waits first
    fill<<<1, 32, 0, a>>>(y);
    cudaEventRecord(done, a);  // LINE records late
    copy<<<1, 32, 0, b>>>(x, y);
  }
  if (how == "again") {
    fill<<<1, 32, 0, a>>>(y);
    cudaEventRecord(done, a);
    cudaEventRecord(done, b);  // LINE again
    cudaStreamWaitEvent(b, done);
    copy<<<1, 32, 0, b>>>(x, y);
  }
  if (how == "event") {
    fill<<<1, 32, 0, a>>>(y);
    cudaEventRecord(done, a);
    cudaStreamWaitEvent(b, done);
    copy<<<1, 32, 0, b>>>(x, y);
  }
  if (how.rfind("graph_", 0) == 0) {  // a fork and a join in a graph
    cudaEvent_t fork;
    cudaEventCreate(&fork);
    cudaGraph_t graph;
    cudaGraphExec_t one;
    cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
    cudaEventRecord(fork, a);
    if (how == "graph_early") cudaStreamWaitEvent(b, fork);
    fill<<<1, 32, 0, a>>>(y);
    if (how != "graph_early") cudaEventRecord(fork, a), cudaStreamWaitEvent(b, fork);
    if (how != "graph_early") cudaMemcpyAsync(x, y, 128, cudaMemcpyDeviceToDevice, b);
    else copy<<<1, 32, 0, b>>>(x, y);
    cudaEventRecord(done, b);
    if (how != "graph_copy") cudaStreamWaitEvent(a, done);
    fill<<<1, 32, 0, a>>>(x);
    if (how == "graph_copy") cudaStreamWaitEvent(a, done);
    cudaStreamEndCapture(a, &graph);
    cudaGraphInstantiate(&one, graph, 0);
    cudaGraphLaunch(one, a);
    if (how == "graph_again") cudaGraphLaunch(one, b);
  }
  if (how.rfind("pool", 0) == 0) {
    float* z;
    cudaMallocAsync(&z, 128, a);  // LINE pool
    if (how != "pool_early") cudaEventRecord(done, a), cudaStreamWaitEvent(b, done);
    fill<<<1, 32, 0, b>>>(z);
    if (how == "pool") cudaEventRecord(done, b), cudaStreamWaitEvent(a, done);
    if (how == "pool_early") cudaDeviceSynchronize();
    cudaFreeAsync(z, a);  // LINE pool freed
  }
  if (how == "free_orders") {  // cudaFreeAsync waits for nothing
    float* z;
    cudaMallocAsync(&z, 128, b);
    fill<<<1, 32, 0, a>>>(y);
    cudaFreeAsync(z, b);
    copy<<<1, 32, 0, b>>>(x, y);
  }
  cudaDeviceSynchronize();
}
"""
LINES = {
    found[1]: number
    for number, line in enumerate(PROGRAM.splitlines(), 1)
    if (found := re.search(r"// LINE (.*)", line))
}


@pytest.fixture(scope="module")
def program():
    return one_folder({"program.cu": PROGRAM}) / "program.cu"


@pytest.fixture
def run(program, fork_server):
    def call(how: str):
        command = ("-m", "b200", "run", "--no-again", str(program), how)
        return fork_server.run(*command, cwd=program.parent)

    return call


SEGFAULT = r"which only kernels may touch: on a GPU a segmentation fault"
MISTAKES = {
    "read": (f"program.cu:{LINES['sums']}: host code reads 128 bytes of cudaMalloc at .*", SEGFAULT),
    "write": (f"program.cu:{LINES['writes']}: host code writes 128 bytes of cudaMalloc at .*"
              f"program.cu:{LINES['y']}, ", SEGFAULT),
    "memcpy": (f"program.cu:{LINES['memcpy']}: host code reads 128 bytes of cudaMalloc", SEGFAULT),
    "thread": (f"program.cu:{LINES['sums']}: host code reads 128 bytes of cudaMalloc", SEGFAULT),
    "early": (
        f"program.cu:{LINES['sums']}: global: the host reads memory that cudaMemcpy writes",
        f"cudaMemcpy writes it at .*program.cu:{LINES['async']}, in queue",
        f"in 128 bytes of cudaHostAlloc at .*program.cu:{LINES['pinned']}",
    ),
    "overwrites": (
        f"program.cu:{LINES['overwrites']}: global: the host writes memory that cudaMemcpy reads",
    ),
    "managed": (
        f"program.cu:{LINES['sums']}: global: the host reads memory that fill writes",
    ),
    "freed": (
        rf"it lies in 128 bytes of cudaMalloc at .*program.cu:{LINES['y']}, which was freed at"
        rf" .*program.cu:{LINES['freed']}",
    ),
    "freed_copy": ("invalid argument .*reads 128 bytes of 128 bytes of cudaMalloc.*was freed at",),
    "freed_twice": ("invalid argument .*cudaFree of .*: it lies in 128 bytes .*was freed at",),
    "freed_read": ("host code reads 128 bytes of cudaMalloc.*, which was freed at",),
    "direction": ("invalid argument .*cudaMemcpyHostToDevice writes .*the host's memory: expected"
                  " the GPU's",),
    "order": ("invalid argument .*cudaMemcpyDeviceToHost writes 128 bytes of cudaMalloc.* which is"
              " the GPU's memory: expected the host's",),
    "long": ("invalid argument .*128 bytes of cudaMalloc.* on: 4 bytes behind its end",),
    "fill": ("invalid argument .*which is the host's memory: expected the GPU's",),
    "behind": (rf"0 bytes behind the end of the nearest below, 128 bytes of cudaMalloc at"
               rf" .*program.cu:{LINES['x']}",),
    "far_behind": (rf"99872 bytes behind the end of the nearest below, 128 bytes of cudaMalloc at"
                   rf" .*program.cu:{LINES['y']}",),
    "wait_first": (
        rf"the wait at .*program.cu:{LINES['waits first']} is for an event without a record, so for"
        rf" nothing: queue 0x\w+ records it at .*program.cu:{LINES['records late']}, later",
    ),
    "graph_early": ("global memory is read that fill, work of another queue, writes",
                    "missing: an edge of the graph from fill to this", "in branch 1 of a graph"),
    "graph_copy": ("cudaMemcpy, work of another queue, writes, with no", "in branch 1 of a graph"),
    "pool_early": ("global memory is written that cudaMallocAsync, work of another queue, allo",
                   rf"cudaMallocAsync allocates it at .*program.cu:{LINES['pool']}, in queue"),
    "pool_late": (rf"program.cu:{LINES['pool freed']}: global: cudaFreeAsync frees memory that fill,"
                  " work of another queue, writes",),
    "free_orders": ("global memory is read that fill, work of another queue, writes",),
    "again": (rf"is recorded again at .*program.cu:{LINES['again']}, in queue",),
}  # fmt: skip


@pytest.mark.parametrize("how", MISTAKES)
def test_a_mistake_of_the_host_is_named(run, how):
    done = run(how)
    assert done.returncode == 1, done.stderr
    for said in MISTAKES[how]:
        assert re.search(said, done.stdout + done.stderr), done.stdout + done.stderr


@pytest.mark.parametrize(
    "how, said",
    [
        ("copied", "496"),
        ("waited", "496"),
        ("callback", "496"),
        ("managed_waited", "496"),
        ("managed_other", "32"),
        ("default", "no error"),
        ("event", ""),
        ("graph_again", ""),
        ("pool", ""),
    ],
)
def test_its_twin_is_clean(run, how, said):
    done = run(how)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
