"""What CUDA refuses it refuses with a number, which the program acts on; a kernel's failure stays."""

from __future__ import annotations

import pytest
import torch

import b200
from b200.errors import EmulatorError
from tests.b200.host.cuda.support import needs_nvcc, torch_program

pytestmark = needs_nvcc

SOURCE = r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <string>

__global__ void mark(int* x) { extern __shared__ int s[]; s[0] = 7; x[threadIdx.x] = s[0]; }

// The largest power of two that a CTA may have as dynamic shared memory.
int64_t most(torch::Tensor x) {
  int bytes = 1 << 20;
  while (cudaFuncSetAttribute(mark, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
    bytes /= 2;
  if (cudaPeekAtLastError() != cudaErrorInvalidValue) return -1;
  if (cudaGetLastError() != cudaErrorInvalidValue) return -2;
  if (cudaGetLastError() != cudaSuccess) return -3;
  mark<<<1, 1, bytes>>>(x.data_ptr<int>());
  return bytes;
}
std::string text(int64_t code) {
  auto error = static_cast<cudaError_t>(code);
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}
int64_t unasked(torch::Tensor x) {
  mark<<<1, 2048>>>(x.data_ptr<int>());
  return 0;
}
int64_t wide(torch::Tensor x) {
  mark<<<1, 2048>>>(x.data_ptr<int>());
  return cudaGetLastError();
}
int64_t map(torch::Tensor x) {
  CUtensorMap m;
  const cuuint64_t dims[] = {64, 64}, strides[] = {64};
  const cuuint32_t box[] = {300, 8}, steps[] = {1, 1};
  const auto code = cuTensorMapEncodeTiled(&m, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, x.data_ptr(), dims,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return code == CUDA_ERROR_INVALID_VALUE && cudaGetLastError() == cudaSuccess;
}
int64_t fail() {
  mark<<<1, 1, 64>>>(reinterpret_cast<int*>(64));
  return 0;
}
int64_t after() {
  void* memory;
  const auto first = cudaDeviceSynchronize(), second = cudaMalloc(&memory, 16);
  cudaGetLastError();
  return first == second && second == cudaGetLastError() ? first : -1;
}
int64_t reset() { return cudaDeviceReset() + cudaDeviceSynchronize(); }
"""
DECLARED = {
    "most": "int64_t most(torch::Tensor x);",
    "text": "std::string text(int64_t code);",
    "unasked": "int64_t unasked(torch::Tensor x);",
    "wide": "int64_t wide(torch::Tensor x);",
    "map": "int64_t map(torch::Tensor x);",
    "fail": "int64_t fail();",
    "after": "int64_t after();",
    "reset": "int64_t reset();",
}


@pytest.fixture(scope="module")
def program():
    return torch_program()


def test_a_program_asks_for_less(program):
    x = torch.zeros(1, dtype=torch.int32, device="cuda")
    assert program.most(x) == 1 << 17  # of 227 KB
    assert x.item() == 7


def test_the_text_of_an_error_says_why(program):
    assert program.text(0) == "cudaSuccess: no error"
    program.most(torch.zeros(1, dtype=torch.int32, device="cuda"))
    assert program.text(1).startswith("cudaErrorInvalidValue: invalid argument (kernel ")
    assert "262144 is more than a B200 has: 232448 bytes" in program.text(1)


def test_an_error_that_nobody_asks_for_is_raised(program):
    x = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(EmulatorError, match="each dimension must be 1..") as caught:
        program.unasked(x)
    assert caught.value.kind == "limit"
    assert program.wide(x) == 9 and x.item() == 0


def test_a_refused_tensormap_is_no_error_of_the_runtime(program):
    assert program.map(torch.zeros(4096, dtype=torch.uint8, device="cuda")) == 1


def test_the_failure_of_a_kernel_stays(program):
    with pytest.raises(EmulatorError, match="is in no tensor's allocation"):
        program.fail()
    with pytest.raises(EmulatorError, match="every CUDA call fails after a launch that has failed"):
        program.unasked(torch.zeros(1, dtype=torch.int32, device="cuda"))
    assert program.after() == 700  # cudaErrorIllegalAddress
    assert program.reset() == 0 and program.after() == 0


def test_installing_again_forgets_a_failure(program):
    with pytest.raises(EmulatorError):
        program.fail()
    b200.install()
    assert program.after() == 0
