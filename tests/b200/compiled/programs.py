"""CUDA programs for the tests of `b200 exec`, each a file that nvcc compiles to an executable."""

# What a program may do: argv[1] says which part. Every part checks its own results.
PARTS = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>
#include "parts.h"

#define CHECK(call) if (cudaError_t e = (call)) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(9); }

__constant__ int scale = 3;
__device__ int counter;
__managed__ int shared_with_host = 5;
__global__ void add(const int* a, int* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b[i] += scale * a[i];
}
__global__ void count(int n) { atomicAdd(&counter, n); }
// Without cooperative_groups.h, which each compile takes two seconds for (test_run_cuda.py has it).
__device__ unsigned arrived;
__device__ void meet_grid() {
  unsigned seen;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&arrived) : "memory");
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&arrived) : "memory");
  while (seen < gridDim.x);
}
__device__ void meet_cluster() { asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory"); }
__global__ void sum_grid(int* parts, int* out) {
  if (threadIdx.x == 0) parts[blockIdx.x] = blockIdx.x + 1;
  if (threadIdx.x == 0) meet_grid();
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (int i = 0; i < gridDim.x; ++i) *out += parts[i];
}
__global__ void __cluster_dims__(2) neighbours(int* out) {
  __shared__ int mine;
  unsigned rank;
  const int* theirs;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(&mine), "r"(rank ^ 1));
  if (threadIdx.x == 0) mine = 10 + blockIdx.x;
  meet_cluster();
  if (threadIdx.x == 0) out[blockIdx.x] = *theirs;
  meet_cluster();
}
__global__ void speak() { printf("of the kernel\n"); }
__global__ void other_files(int* out) { *out = of_the_other_file(20) + variable_of_the_other_file; }
__global__ void add_managed() { shared_with_host += 2; }
__global__ void race(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = s[63 - threadIdx.x];  // RACE
}
__global__ void fault(int* out) { out[1 << 20] = 1; }

template <typename Of>
int on_device(Of of) {
  int *out, value = 0;
  CHECK(cudaMalloc(&out, 64 * sizeof(int)));
  CHECK(cudaMemset(out, 0, 64 * sizeof(int)));
  of(out);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

struct Early {  // works before main, and says so after it
  int* memory = nullptr;
  Early() {
    CHECK(cudaMalloc(&memory, sizeof(int)));
    count<<<1, 1>>>(1);
  }
  ~Early() { printf("destroyed: %d\n", cudaFree(memory)); }
};

void add_once() {
  const int n = 300;
  std::vector<int> a(n), b(n, 1);
  for (int i = 0; i < n; ++i) a[i] = i;
  int *da, *db;
  CHECK(cudaMalloc(&da, n * sizeof(int)));
  CHECK(cudaMalloc(&db, n * sizeof(int)));
  CHECK(cudaMemcpy(da, a.data(), n * sizeof(int), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), n * sizeof(int), cudaMemcpyHostToDevice));
  add<<<3, 128>>>(da, db, n);
  CHECK(cudaMemcpy(b.data(), db, n * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i)
    if (b[i] != 1 + 3 * i) printf("b[%d] is %d\n", i, b[i]), exit(8);
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
}

int main(int argc, char** argv) {
  const char* part = argv[1];
  const auto is = [part](const char* name) { return std::strcmp(part, name) == 0; };
  if (is("help")) return puts("no CUDA call"), 0;
  if (is("all")) {
    add_once();
    puts("added");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back([] { for (int i = 0; i < 3; ++i) count<<<1, 32>>>(1); });
    for (auto& thread : threads) thread.join();
    int counted = 0;
    CHECK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
    printf("counted %d\n", counted);
    const int total = on_device([](int* out) {
      int* parts = out + 1;
      void* arguments[] = {&parts, &out};
      CHECK(cudaLaunchCooperativeKernel((void*)sum_grid, 4, 32, arguments, 0, nullptr));
    });
    printf("grid %d\n", total);
    printf("cluster %d\n", on_device([](int* out) { neighbours<<<4, 32>>>(out); }));
    printf("other files %d\n", on_device([](int* out) { other_files<<<1, 1>>>(out); }));
    add_managed<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    printf("managed %d\n", shared_with_host);
    speak<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, add));
    printf("registers %d\n", attributes.numRegs);
    return 0;
  }
  if (is("early")) {
    static Early early;
    atexit([] {
      int counted = 0;
      printf("atexit: %d\n", cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
      printf("counted %d\n", counted);
    });
    return 7;
  }
  if (is("fault")) {
    int* out;
    CHECK(cudaMalloc(&out, 4));
    fault<<<1, 1>>>(out);
    printf("%d, then %d\n", cudaDeviceSynchronize(), cudaMalloc(&out, 4));
    return 0;
  }
  if (is("refused")) return add<<<1, 4096>>>(nullptr, nullptr, 0), 0;
  if (is("absent")) {
    cudaArray_t array;
    cudaChannelFormatDesc format{};
    printf("%d\n", cudaMallocArray(&array, &format, 4, 4, 0));
    return 0;
  }
  on_device([](int* out) { race<<<1, 64>>>(out); });
  fflush(stdout);
  if (is("abort")) abort();
  if (is("_exit")) _exit(0);
  if (is("segv")) *(volatile int*)8 = 1;
  if (is("seven")) return 7;
}
"""

PARTS_H = """
extern __device__ int variable_of_the_other_file;
__device__ int of_the_other_file(int x);
"""

OTHER = """
#include "parts.h"
__device__ int variable_of_the_other_file = 2;
__device__ __noinline__ int of_the_other_file(int x) { return 2 * x; }
"""

ONE_KERNEL = r"""
#include <cstdio>
__global__ void store(int* x) { *x = 6; }
int main() {
  int *x, value = 0;
  cudaMalloc(&x, 4);
  store<<<1, 1>>>(x);
  const int failed = cudaGetLastError();
  cudaMemcpy(&value, x, 4, cudaMemcpyDeviceToHost);
  return printf("%d %d\n", failed, value), 0;
}
"""

# Two tests of a build: "right" and "race".
TESTED = r"""
#include <cstring>
#include "parts.h"
__global__ void other_files(int* out) { *out = of_the_other_file(20) + variable_of_the_other_file; }
__global__ void race(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = s[63 - threadIdx.x];
}
int main(int, char** argv) {
  const bool right = std::strcmp(argv[1], "right") == 0;
  int *out, value = 0;
  cudaMalloc(&out, 64 * sizeof(int));
  if (right) other_files<<<1, 1>>>(out);
  else race<<<1, 64>>>(out);
  cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost);
  return right && value != 42;
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(tested LANGUAGES CXX CUDA)
set(CMAKE_CUDA_ARCHITECTURES 75 90)
add_executable(tested tested.cu other.cu)
set_target_properties(tested PROPERTIES CUDA_SEPARABLE_COMPILATION ON)
enable_testing()
add_test(NAME right COMMAND tested right)
add_test(NAME race COMMAND tested race)
"""
