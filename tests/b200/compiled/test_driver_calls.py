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

FROM_A_FILE = r"""
#include <cstdio>
#include <cuda.h>
int main() {
  CUdevice device;
  CUcontext context;
  CUlibrary library;
  CUkernel kernels[2] = {};
  CUfunction k;
  CUdeviceptr x;
  unsigned count = 0;
  int value = 0;
  cuInit(0), cuDeviceGet(&device, 0), cuDevicePrimaryCtxRetain(&context, device);
  cuCtxSetCurrent(context);
  if (cuLibraryLoadFromFile(&library, "k.cubin", 0, 0, 0, 0, 0, 0)) return 3;
  cuLibraryGetKernelCount(&count, library);
  if (cuLibraryEnumerateKernels(kernels, 1, library) || kernels[1]) return 4;
  cuKernelGetFunction(&k, kernels[0]);
  cuMemAlloc(&x, 4);
  void* arguments[] = {&x};
  cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0);
  cuMemcpyDtoH(&value, x, 4);
  printf("%u %d\n", count, value);
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


def test_machine_code_that_nvcc_makes_is_loaded_from_its_file(tmp_path):
    """As by DeepGEMM, which asks a library for its only kernel. The words are its nvcc's."""
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(int* x) { *x = 12; }')
    (tmp_path / "load.cpp").write_text(FROM_A_FILE)
    for words in (
        ("k.cu", "-cubin", "-o", "k.cubin", "--gpu-architecture=sm_100f"),
        ("load.cpp", "-lcuda", "-o", "load"),
    ):
        made = run_exec("nvcc", *words, cwd=tmp_path)
        assert made.returncode == 0, made.stdout + made.stderr
    done = run_exec("./load", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("1 12\n", 0), done.stderr
