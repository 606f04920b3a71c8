"""python -m b200 run PROGRAM.cu: how a program ends, its threads, what it shares with its kernels."""

from __future__ import annotations

import pytest

from tests.b200.host.cuda.support import needs_nvcc, one_folder

pytestmark = needs_nvcc


@pytest.fixture
def run(fork_server):
    """run(program, how, **files): with its other files, by name."""

    def call(program: str, how: str, *options: str, **files: str):
        named = {name.replace("_", "."): text for name, text in files.items()}
        folder = one_folder({"program.cu": program, **named})
        command = ("-m", "b200", "run", "--no-again", *options)
        return fork_server.run(*command, str(folder / "program.cu"), how, cwd=folder)

    return call


ENDS = r"""
#include <cassert>
#include <cstdlib>
#include <exception>
#include <stdexcept>
__global__ void store(int* x) { *x = 1; }
struct Thrower { ~Thrower() noexcept { throw std::runtime_error("a destructor's"); } };
struct Syncs { ~Syncs() noexcept { if (cudaDeviceSynchronize()) throw std::runtime_error("lost"); } };
int main(int argc, char** argv) {
  int* x;
  cudaMalloc(&x, 4);
  Syncs* syncs = argv[1][0] == 'f' ? new Syncs : nullptr;
  store<<<1, 1>>>(syncs ? x + 1000000 : x);
  switch (argv[1][0]) {
    case 'e': exit(3);
    case 'q': quick_exit(4);
    case 'E': _Exit(5);
    case 'a': abort();
    case 's': assert(!x && "it is there");
    case 't': std::terminate();
    case 'i': throw 3;
    case 'd': { Thrower thrower; }
    case 'f': delete syncs;
  }
}
"""


@pytest.mark.parametrize(
    "how, status, said",
    [
        ("e", 3, ""),
        ("q", 4, ""),
        ("E", 5, ""),
        ("abort", 134, "aborted"),
        ("s", 134, 'Assertion `!x && "it is there"\' failed.'),
        ("terminate", 134, "terminated"),
        ("int", 134, "terminated by an exception"),
        ("destructor", 134, "terminated by an exception: a destructor's"),
        ("fault", 1, "global access of 4 bytes"),
    ],
)
def test_what_a_cuda_program_launched_is_told_however_it_ends(run, how, status, said):
    done = run(ENDS, how)
    assert done.returncode == status and said in done.stderr, done.stderr
    assert ("kernel store" if how == "fault" else "b200: store") in done.stderr


BESIDE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda.h>
#include <cstdio>
#include <thread>
#include <vector>
__global__ void store(volatile int* x, int value) { *x = value; }
__global__ void add(int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i]++;
}
int in_threads() {
  const int n = 2000, launches = 4;
  std::vector<std::thread> threads;
  std::vector<int> found(6);
  for (int& mine : found)
    threads.emplace_back([&] {
      cudaStream_t queue;
      int* x;
      cudaStreamCreate(&queue);
      cudaMalloc(&x, 4 * n);
      cudaMemsetAsync(x, 0, 4 * n, queue);
      for (int i = 0; i < launches; ++i) add<<<(n + 255) / 256, 256, 0, queue>>>(x, n);
      cudaMemcpyAsync(&mine, x + n - 1, 4, cudaMemcpyDeviceToHost, queue);
      cudaStreamSynchronize(queue);
    });
  for (auto& thread : threads) thread.join();
  for (int each : found)
    if (each != launches) return 1;
  return 0;
}
__global__ void wait(volatile int* x) { while (*x == 0); }
__device__ __noinline__ int down(int n) {  // nvcc makes no loop of it
  const int below = n ? down(n - 1) : 0;
  return below * below + 1;
}
__global__ void count(int* x, int n) { *x = n < 0 ? 1 : down(n); }
namespace cg = cooperative_groups;
__global__ void sum_of_64(int* x) {  // in memory that the system lends
  const auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  x[threadIdx.x] = cg::reduce(tile, static_cast<int>(threadIdx.x), cg::plus<int>());
}
int main(int, char** argv) {
  int *x, *shared;
  cudaMalloc(&x, 4096);
  cudaMallocManaged(&shared, 8);
  switch (argv[1][0]) {
    case 'f': std::thread([=] { store<<<1, 1>>>(x + 1000000, 1); cudaDeviceSynchronize(); }).join();
    case 'a': std::thread([=] { cudaArray_t a; cudaMallocArray(&a, nullptr, 1, 1); }).join();
    case 'h': wait<<<1, 1>>>(shared); *shared = 1; break;
    case 'p': case 'q': {  // polls what nobody writes, or another queue does
      int* flag;
      cudaMalloc(&flag, 4);
      cudaMemset(flag, 0, 4);
      cudaStream_t one = 0, other = 0;
      if (argv[1][0] == 'q') cudaStreamCreate(&one), cudaStreamCreate(&other);
      wait<<<1, 1, 0, one>>>(flag);
      if (argv[1][0] == 'q') store<<<1, 1, 0, other>>>(flag, 1);
      break;
    }
    case 'r': {
      int got = 0;
      count<<<1, 1>>>(x, 3);
      cudaMemcpy(&got, x, 4, cudaMemcpyDeviceToHost);
      if (got != 26) return 3;
      count<<<1, 1>>>(x, 100);  // more calls within one another than are written out
      break;
    }
    case 'l': return in_threads();
    case 'm': return shared[0] + shared[1];
    case 'n': count<<<1, 1>>>(x, -1); return cudaDeviceSynchronize();
    case 'c': {
      cudaStreamAddCallback(0, [](cudaStream_t, cudaError_t, void* at) { *(int*)at = 5; }, shared, 0);
      return *shared - 5;
    }
    case 't': {
      int sums[128];
      sum_of_64<<<1, 128>>>(x);
      cudaMemcpy(sums, x, 512, cudaMemcpyDeviceToHost);
      return sums[5] != 2016 || sums[70] != 2016 + 64 * 64;
    }
    case 'd': {  // the driver's names
      CUcontext context; CUdeviceptr at; CUevent event; size_t bytes = 0; int got = 0;
      cuInit(0);
      cuCtxCreate(&context, nullptr, 0, 0);
      cuDeviceTotalMem(&bytes, 0);
      cuMemAlloc(&at, 8);
      cuMemsetD32(at, 9, 2);
      cuEventCreate(&event, 0);
      cuEventRecord(event, nullptr);
      cuMemcpyDtoHAsync(&got, at + 4, 4, nullptr);
      cuEventSynchronize(event);
      return got != 9 || bytes < (100ull << 30) || cuCtxDestroy(context);
    }
  }
}
"""


@pytest.mark.parametrize(
    "how, status, said",
    [
        ("fault", 1, "in a thread of the program: fault: "),
        ("array", 1, "in a thread of the program: unsupported: cudaMallocArray is not in"),
        (
            "host",
            1,
            "The host shares this memory, and here it goes on only when a launch has ended",
        ),
        ("queue", 1, "unsupported: what it polls may be written by work of another queue"),
        ("poll", 1, "b200 run: deadlock: no warp can proceed in wait"),
        ("recursion", 1, "the call of down (it calls itself, or is not in the PTX) is not in the"),
        ("managed", 0, ""),
        ("not called", 0, "b200: count"),
        ("callback", 0, ""),
        ("driver", 0, ""),
        ("tiles of 64", 0, "b200: sum_of_64"),
        ("launches of several threads at the same time", 0, "24 times: b200: add"),
    ],
)
def test_what_is_beside_a_main_and_its_kernels(run, how, status, said):
    done = run(BESIDE, how)
    assert done.returncode == status and said in done.stderr, done.stderr


def test_a_function_that_is_in_no_file(run):
    done = run("void not_here(int*);\nint main() { not_here(nullptr); }", "")
    assert done.returncode == 1 and "not_here is declared and in none of the files" in done.stderr


PARTS = r"""
#include <cstdlib>
void fill(int* x, int value);
int twice(int);
int main(int, char** argv) {
  int *x, found = 0;
  cudaMalloc(&x, 4);
  fill(x, twice(atoi(argv[1])));
  cudaMemcpy(&found, x, 4, cudaMemcpyDeviceToHost);
  return found;
}
"""
PART_CU = "__global__ void store(int* x, int v) { *x = v; }\nvoid fill(int* x, int v) { store<<<1, 1>>>(x, v); }"


def test_a_program_of_several_files(run):
    files = {"part_cu": PART_CU, "other_cpp": "int twice(int x) { return 2 * x; }"}
    done = run(PARTS, "21", "--with", "part.cu", "--with", "other.cpp", **files)
    assert done.returncode == 42 and "b200: store" in done.stderr, done.stderr
    done = run(PARTS, "21", "--with", "part.cu", "--with", "none.cpp", **files)
    assert done.returncode == 2 and "--with none.cpp: it is not a file" in done.stderr
