"""A submission in raw CUDA, from its source to a modelled time."""

from __future__ import annotations

import json
import os

from tests import ROOT
from tests.b200.host.cuda.support import needs_nvcc

SUBMISSION = r"""
import ctypes

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r'''
#include <cuda_runtime.h>
#include <cuda_fp16.h>

__device__ float e2m1(int code) {
  const float values[8] = {0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
  return code & 8 ? -values[code & 7] : values[code & 7];
}
__device__ float e4m3(int code) {
  const float value = code & 0x78 ? ldexpf(8 + (code & 7), (code >> 3 & 15) - 10) : ldexpf(code & 7, -9);
  return code & 0x80 ? -value : value;
}
__global__ void gemv(const unsigned char* a, const unsigned char* sfa, const unsigned char* b,
                     const unsigned char* sfb, __half* c, int k) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int block = 0; block < k / 16; block++) {
    float part = 0;
    for (int i = 0; i < 8; i++) {
      const int x = a[row * (k / 2) + block * 8 + i], y = b[block * 8 + i];
      part += e2m1(x & 15) * e2m1(y & 15) + e2m1(x >> 4) * e2m1(y >> 4);
    }
    sum += part * e4m3(sfa[row * (k / 16) + block]) * e4m3(sfb[block]);
  }
  c[row] = __float2half(sum);
}
extern "C" __attribute__((visibility("default"))) void run(
    const void* a, const void* sfa, const void* b, const void* sfb, void* c, int m, int k) {
  gemv<<<m / 32, 32>>>((const unsigned char*)a, (const unsigned char*)sfa, (const unsigned char*)b,
                       (const unsigned char*)sfb, (__half*)c, k);
}
'''

library = ctypes.CDLL(load_inline("raw_gemv", "", SOURCE, is_python_module=False,
    no_implicit_headers=True, extra_cuda_cflags=["-gencode=arch=compute_100a,code=sm_100a"]))


def custom_kernel(data):
    a, b, sfa, sfb, _, _, c = data
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, sfa, b, sfb, c)]
    library.run(*pointers, a.shape[0], a.shape[1] * 2)
    return c
"""


@needs_nvcc
def test_checked_and_timed(tmp_path, fork_server):
    """Every program that the build starts must be one that a submission may start."""
    file = tmp_path / "raw_gemv.py"
    file.write_text(SUBMISSION)
    command = [str(ROOT / "eval.py"), "leaderboard", "gemv", "--json"]
    command += ["--device", "emulator", "--submission", str(file)]
    command += ["--case", "m: 128; k: 256; l: 1"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}  # compiled here, whatever is kept
    done = fork_server.run(*command, env=environment)
    record = json.loads(done.stdout)
    assert record["status"] == "pass", record["message"]
    assert record["kind"] == "modelled" and record["time_us"] > 0
