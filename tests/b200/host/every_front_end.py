"""A program that comes to the GPU in every way that there is, and asserts what it gets: the CuTe
DSL, torch, an extension, cuda-python; in a fork, too; objects are freed late and at its end.
"""

import gc
import os
import runpy
from pathlib import Path

import numpy as np
import torch
from cuda.bindings import driver, nvrtc, runtime
from torch.utils.cpp_extension import load_inline

import b200

ROOT = Path(b200.__file__).parents[1]
CUDA = """
#include <cuda_runtime.h>
__global__ void tripled(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 3 * x[i];
}
extern "C" int run(const void* x, void* y, int n) {
  tripled<<<(n + 127) / 128, 128>>>((const float*)x, (float*)y, n);
  return cudaDeviceSynchronize();
}
"""
NVRTC = b'extern "C" __global__ void k(float* y) { y[threadIdx.x] = threadIdx.x * 3.0f; }'


def of(result: tuple):
    """The value of a call of cuda-python."""
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]


def with_the_dsl() -> None:
    kept = runpy.run_path(str(ROOT / ".ci" / "doubled.py"))
    del kept
    gc.collect()  # compiled functions unload their libraries


def with_torch() -> None:
    x = torch.arange(8.0, device="cuda", requires_grad=True)
    (x * x).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach()) and x.grad.is_cuda
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        start.record()
        end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0 and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (10, 0)


def with_an_extension() -> None:
    import ctypes

    path = load_inline("tripled", "", CUDA, is_python_module=False, no_implicit_headers=True)
    x, y = torch.arange(300.0, device="cuda"), torch.empty(300, device="cuda")
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, y)]
    assert ctypes.CDLL(path).run(*pointers, 300) == 0
    assert torch.equal(y, 3 * x)


def with_cuda_python() -> None:
    of(driver.cuInit(0))
    context = of(driver.cuDevicePrimaryCtxRetain(of(driver.cuDeviceGet(0))))
    of(driver.cuCtxSetCurrent(context))
    program = of(nvrtc.nvrtcCreateProgram(NVRTC, b"k.cu", 0, [], []))
    of(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_100a"]))
    ptx = bytearray(of(nvrtc.nvrtcGetPTXSize(program)))
    of(nvrtc.nvrtcGetPTX(program, ptx))
    module = of(driver.cuModuleLoadData(bytes(ptx)))
    kernel = of(driver.cuModuleGetFunction(module, b"k"))
    memory = of(runtime.cudaMalloc(128))
    argument = np.array([int(memory)], np.uint64)
    arguments = np.array([argument.ctypes.data], np.uint64)
    of(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, arguments.ctypes.data, 0))
    out = np.empty(32, np.float32)
    of(driver.cuMemcpyDtoH(out.ctypes.data, memory, out.nbytes))
    assert (out == 3 * np.arange(32)).all()
    of(runtime.cudaFree(memory))
    of(driver.cuModuleUnload(module))


def main() -> None:
    ways = (with_the_dsl, with_torch, with_an_extension, with_cuda_python)
    for way in ways:
        way()
    child = os.fork()
    if not child:
        for way in ways:
            way()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("right in every way")


main()
