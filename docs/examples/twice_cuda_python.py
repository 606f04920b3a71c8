"""A kernel in CUDA C++, compiled by NVRTC and launched by cuda-python: x = 2 x.

Run it without a B200: python -m b200 run docs/examples/twice_cuda_python.py
"""

import ctypes

import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = b"""
extern "C" __global__ void twice(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
"""


def done(result):
    """The value of a call of cuda.bindings, which returns its status first."""
    status, *values = result
    assert int(status) == 0, status
    return values[0] if values else None


def compiled(source: bytes, *options: bytes) -> bytes:
    program = done(nvrtc.nvrtcCreateProgram(source, b"twice.cu", 0, [], []))
    done(nvrtc.nvrtcCompileProgram(program, len(options), list(options)))
    image = bytes(done(nvrtc.nvrtcGetCUBINSize(program)))
    done(nvrtc.nvrtcGetCUBIN(program, image))
    return image


done(driver.cuInit(0))
done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(0))))))
module = done(driver.cuModuleLoadData(compiled(SOURCE, b"--gpu-architecture=sm_100a")))
twice = done(driver.cuModuleGetFunction(module, b"twice"))
host = np.arange(1000, dtype=np.float32)
x = done(driver.cuMemAlloc(host.nbytes))
done(driver.cuMemcpyHtoD(x, host, host.nbytes))
arguments = ((x, host.size), (None, ctypes.c_int))
done(driver.cuLaunchKernel(twice, 4, 1, 1, 256, 1, 1, 0, 0, arguments, 0))
done(driver.cuMemcpyDtoH(host, x, host.nbytes))
print("the last element:", host[-1])
