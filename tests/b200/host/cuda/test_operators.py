"""Operators that an extension registers in C++, with a kernel for the CPU and one for CUDA."""

from __future__ import annotations

import pytest
import torch

import b200
from b200.host.torch.devices import overrides
from tests.b200.host.cuda.support import needs_nvcc, torch_program

pytestmark = needs_nvcc

SOURCE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void shift(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + 2;
}
at::Tensor shifted_cuda(const at::Tensor& x) {
  TORCH_CHECK(x.device().type() == at::kCUDA, "x is on the CPU");
  at::Tensor out = torch::empty_like(x);
  shift<<<(x.numel() + 31) / 32, 32, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  return out;
}
"""
REGISTERED = """
#include <torch/library.h>
at::Tensor shifted_cuda(const at::Tensor& x);
at::Tensor shifted_cpu(const at::Tensor& x) {
  TORCH_CHECK(x.device().is_cpu(), "x is on the GPU");
  return x + 1;
}
at::Tensor either(const at::Tensor& x) { return x.is_cuda() ? shifted_cuda(x) : shifted_cpu(x); }
TORCH_LIBRARY(b200_operators, m) {
  m.def("shifted(Tensor x) -> Tensor");
  m.def("either(Tensor x) -> Tensor", &either);
}
TORCH_LIBRARY_IMPL(b200_operators, CPU, m) { m.impl("shifted", &shifted_cpu); }
TORCH_LIBRARY_IMPL(b200_operators, CUDA, m) { m.impl("shifted", &shifted_cuda); }
"""
DECLARED = {"either": ""}  # it stands in REGISTERED


@pytest.fixture(scope="module")
def either():
    """The three ways to the same: by its kernels, one for both, and a function of the module."""
    program = torch_program()
    torch.library.register_fake("b200_operators::shifted", torch.empty_like)
    operators = torch.ops.b200_operators
    return [operators.shifted, operators.either, program.either]


@pytest.fixture
def launches():
    assert b200._runtime is not None
    gpu = b200._runtime.gpu
    before = len(gpu.launches)
    return lambda: len(gpu.launches) - before


def test_a_tensor_on_the_gpu_comes_to_the_kernel_for_cuda(either, launches):
    x = torch.zeros(40, device="cuda")
    for number, function in enumerate(either, 1):
        result = function(x)
        assert result.is_cuda and result.tolist() == [2] * 40 and launches() == number


def test_a_tensor_on_the_cpu_does_not(either, launches):
    for function in either:
        result = function(torch.zeros(40))
        assert not result.is_cuda and result.tolist() == [1] * 40 and launches() == 0


def test_the_kernel_for_cuda_runs_below_autograd(either, launches):
    """A formula of the program's (torch.library.register_autograd)."""
    torch.library.register_autograd("b200_operators::shifted", lambda ctx, gradient: 5 * gradient)
    x = torch.ones(3, device="cuda", requires_grad=True)
    y = either[0](x)
    y.sum().backward()
    assert y.tolist() == [3] * 3 and launches() == 1
    assert x.grad is not None and x.grad.is_cuda and x.grad.tolist() == [5] * 3


def test_where_torch_compile_has_made_the_code_it_is_the_kernel_for_cuda(either, launches):
    """There tensors on the GPU are the CPU's to Python."""
    with overrides.with_everything_on_gpu():
        assert either[0](torch.zeros(40)).tolist() == [2] * 40 and launches() == 1


def test_opcheck_traces_it_but_for_gradients(either):
    """What would end the process is refused by its name."""
    operator = either[0].default
    which = "test_aot_dispatch_dynamic"
    assert torch.library.opcheck(operator, (torch.zeros(3, device="cuda"),), test_utils=which)
    if not torch.backends.cuda.is_built():
        x = torch.zeros(3, device="cuda", requires_grad=True)
        with pytest.raises(Exception, match="cannot trace gradients of cuda"):
            torch.library.opcheck(operator, (x,), test_utils=which)


@pytest.mark.slow
@pytest.mark.torch_headers
def test_operators_that_are_registered_beside_the_kernel():
    """In one file of device code, for which nvcc reads torch's own headers for half a minute."""
    b200.install()
    from torch.utils.cpp_extension import load_inline

    program = load_inline(
        "beside_the_kernel",
        cpp_sources="at::Tensor either(const at::Tensor& x);",
        cuda_sources=f"{SOURCE}{REGISTERED}".replace("b200_operators", "b200_beside"),
        functions=["either"],
    )
    operators = torch.ops.b200_beside
    for function in (operators.shifted, operators.either, program.either):
        assert function(torch.zeros(40, device="cuda")).tolist() == [2] * 40
        assert function(torch.zeros(40)).tolist() == [1] * 40
