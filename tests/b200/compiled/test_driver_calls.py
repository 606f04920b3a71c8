"""What the driver gives compiled programs: mapped memory, linked PTX, memory of graphs, a heap."""

from __future__ import annotations

from pathlib import Path

import pytest

from b200.compiled.command import python_library
from tests.b200.compiled.driver_program import SAYS, SOURCE
from tests.b200.compiled.test_exec import run_exec
from tests.b200.host.cuda.support import needs, needs_nvcc

pytestmark = [needs_nvcc, needs(python_library)]

NVRTC = r"""
#include <cstdio>
#include <cuda.h>
#include <nvrtc.h>
#include <vector>
const char* text = "extern \"C\" __global__ void k(int* x) { *x = 11; }";
int main() {
  nvrtcProgram program;
  const char* options[] = {"--gpu-architecture=sm_100"};
  nvrtcCreateProgram(&program, text, "k.cu", 0, nullptr, nullptr);
  if (nvrtcCompileProgram(program, 1, options)) return 2;
  size_t size;
  nvrtcGetCUBINSize(program, &size);
  std::vector<char> image(size);
  nvrtcGetCUBIN(program, image.data());
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction k;
  CUdeviceptr x;
  int value = 0;
  cuInit(0), cuDeviceGet(&device, 0), cuDevicePrimaryCtxRetain(&context, device);
  if (cuModuleLoadData(&module, image.data())) return 3;
  cuModuleGetFunction(&k, module, "k");
  cuMemAlloc(&x, 4);
  void* arguments[] = {&x};
  cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0);
  cuMemcpyDtoH(&value, x, 4);
  printf("%d\n", value);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("driver")
    (made / "calls.cu").write_text(SOURCE)
    done = run_exec("nvcc", "-rdc=true", "calls.cu", "-lcuda", "-o", "calls", cwd=made)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.mark.slow
@pytest.mark.parametrize("part", SAYS)
def test_calls_of_the_driver(folder, part):
    done = run_exec("./calls", part, cwd=folder)
    assert done.stdout.splitlines() == SAYS[part], done.stderr
    assert done.returncode == 0, done.stderr


def test_nvrtc(tmp_path):
    (tmp_path / "rtc.cpp").write_text(NVRTC)
    done = run_exec("nvcc", "rtc.cpp", "-lnvrtc", "-lcuda", "-o", "rtc", cwd=tmp_path)
    if "nvrtc" in done.stdout + done.stderr and done.returncode:
        pytest.skip("needs NVRTC")
    done = run_exec("./rtc", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("11\n", 0), done.stderr
