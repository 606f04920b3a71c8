"""What nvcc leaves in device code: calls, managed variables, asserts, code of several files."""

from __future__ import annotations

import ctypes

import pytest
import torch

import b200
from b200.errors import EmulatorError
from tests.b200.host.cuda.support import caller, compile_program, needs_nvcc

pytestmark = needs_nvcc

SOURCE = r"""
#include <cassert>
#include <cuda_fp16.h>
struct Shape { __device__ virtual int area(int x) { return x + 1; } };
struct Square : Shape { __device__ int area(int x) override { return x * x; } };
typedef int (*Function)(int);
struct Four { int a[4]; };
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int thrice(int x) { return 3 * x; }
__device__ __noinline__ Four with(Four s, int x) { s.a[x & 3] += x; return s; }
__device__ __noinline__ void put_once(int* p) { if (*p > 5) return; *p = 5; }
__device__ Function table[2] = {twice, thrice};
__managed__ int shared_with_host = 11;

__global__ void calls(int* out, int n) {
  Shape shape; Square square;
  Shape* chosen = threadIdx.x > 1 ? (Shape*)&square : &shape;
  Four four = with(Four{{1, 2, 3, 4}}, n);
  out[threadIdx.x] = chosen->area(10) + 1000 * table[threadIdx.x & 1](n) + 100000 * four.a[n & 3];
  put_once(out + 4);
}
__global__ void touch(int* count, unsigned* left, float* log) {
  shared_with_host += 1;
  atomicSub(count, 10); atomicSub(left, 1u); atomicMax(count + 1, -5); atomicAnd(left + 1, ~1u);
  log[0] = __half2float(hlog2(__float2half(log[0])));
  log[1] = __half2float(__shfl_sync(~0u, __float2half(1.0f + threadIdx.x), 3));
}
__global__ void checks(int n) { assert((int)threadIdx.x < n); }

TEST(run_calls, { calls<<<1, 4>>>((int*)a, 7); })
TEST(run_touch, {
  touch<<<1, 1>>>((int*)a, (unsigned*)a + 2, (float*)b);
  cudaDeviceSynchronize();
  ((int*)a)[4] = shared_with_host;
  shared_with_host = 20;
  touch<<<1, 1>>>((int*)a, (unsigned*)a + 2, (float*)b);
  cudaDeviceSynchronize();
  ((int*)a)[5] = shared_with_host;
})
TEST(run_checks, { checks<<<1, 32>>>((int)a); })
TEST(code, { said = cudaGetErrorName(cudaDeviceSynchronize()); })
"""


@pytest.fixture(scope="module")
def library():
    b200.install()
    return compile_program("device_code", SOURCE)


@pytest.fixture
def call(library):
    b200.install()
    return caller(library)


def test_calls_by_name_through_tables_and_of_virtual_functions(call):
    out = torch.tensor([0, 0, 0, 0, 3], dtype=torch.int32)
    assert call("run_calls", out.data_ptr()) == ""
    chosen, table = (11, 11, 100, 100), (14, 21, 14, 21)
    assert out.tolist() == [a + 1000 * t + 1100000 for a, t in zip(chosen, table)] + [5]


def test_managed_variables_negative_constants_and_half(call):
    ints = torch.tensor([100, -9, 100, 255, 0, 0], dtype=torch.int32)
    floats = torch.tensor([256.0, 0.0])
    assert call("run_touch", ints.data_ptr(), floats.data_ptr()) == ""
    assert ints.tolist() == [80, -5, 98, 254, 12, 21]
    assert floats[0] == 3  # log2 of log2 of 256


def test_a_failed_assert_has_its_own_number(call):
    """710; a kernel's failure stays until the device is reset."""
    with pytest.raises(EmulatorError, match="assertion `.int.threadIdx.x < n` failed"):
        raise EmulatorError("fault", call("run_checks", 28))
    assert call("code") == "cudaErrorAssert"


FIRST = """
#if defined __CUDA_NO_HALF_OPERATORS__ || !defined __CUDA_NO_HALF2_OPERATORS__
#error "a program's own flags take back some of torch's"
#endif
extern __device__ int twice(int);
extern __device__ int factor;
static __device__ int local(int x) { return x + 1; }
__global__ void k(int* x) { *x = local(twice(*x)) + factor; }
extern "C" __attribute__((visibility("default"))) void run(int* x) { k<<<1, 1>>>(x); }
"""
SECOND = """
__device__ int factor = 2;
__constant__ int offset[2] = {0, 1};
static __device__ __noinline__ int local(int x) { return x * factor; }
__device__ int twice(int x) { return local(x) + offset[1]; }
"""


def test_device_code_of_two_files_is_linked(tmp_path):
    b200.install()
    from torch.utils.cpp_extension import load

    for name, text in (("first.cu", FIRST), ("second.cu", SECOND)):
        (tmp_path / name).write_text(text)
    flags = ["-gencode=arch=compute_100a,code=sm_100a", "-rdc=true"]
    flags += ["-U__CUDA_NO_HALF_OPERATORS__"]
    path = load(
        "linked_device_code",
        [str(tmp_path / "first.cu"), str(tmp_path / "second.cu")],
        extra_cuda_cflags=flags,
        is_python_module=False,
    )
    x = torch.tensor([21], dtype=torch.int32)
    ctypes.CDLL(path).run(ctypes.c_void_p(x.data_ptr()))
    assert x.item() == 21 * 2 + 1 + 1 + 2
