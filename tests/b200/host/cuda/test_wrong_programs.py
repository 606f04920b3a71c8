"""Wrong CUDA programs: each is refused with one line that names the thing."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import b200
from b200.host import cuda as host_cuda
from b200.host.cuda import toolkit
from b200.host.cuda.architecture import split_flags
from b200.host.cuda.errors import BuildError
from b200.host.cuda.headers import advice
from tests.b200.host.cuda.support import caller, compile_program, needs_nvcc, refusals


@pytest.fixture(scope="module", autouse=True)
def gpu():
    return b200.install()


def line_of(mark: str) -> int:
    """The line of this file that a mark stands in, the last one."""
    lines = Path(__file__).read_text().splitlines()
    return max(i for i, text in enumerate(lines, 1) if mark in text and "line_of" not in text)


# --- before nvcc ------------------------------------------------------------------------------------
@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine without nvcc: returns a function that puts a script in its place."""
    monkeypatch.setattr(toolkit, "_candidates", lambda: iter([tmp_path / "nvcc"][: made[0]]))
    made = [0]

    def put(script: str) -> Path:
        path = tmp_path / "nvcc"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        made[0] = 1
        toolkit._inspect.cache_clear()
        return path

    yield put
    toolkit._inspect.cache_clear()


def refused(source: str | None = "__global__ void k() {}", **options) -> str:
    with pytest.raises((BuildError, b200.EmulatorError)) as caught:
        compile_program("wrong", source, "", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nvcc_is_missing(nowhere):
    said = refused()
    assert "nvcc is missing" in said and "nvfp4-b200[cuda]" in said


def test_nvcc_is_too_old(nowhere):
    nowhere("echo 'Cuda compilation tools, release 12.4, V12.4.99'")
    assert "nvcc 12.4" in refused() and "12.8 or later" in refused()


def test_nvcc_is_something_else(nowhere):
    nowhere("echo hello")
    assert "does not say its version: 'hello'" in refused()


def test_the_headers_are_missing(nowhere):
    nowhere("echo release 13.0")
    assert "the CUDA headers are missing" in refused()


@pytest.mark.parametrize(
    "header, package",
    [
        ("cublas_v2.h", "nvidia-cublas"),
        ("cudnn.h", "nvidia-cudnn-cu13"),
        ("cub/cub.cuh", "nvidia-cuda-cccl"),
        ("cooperative_groups.h", "nvidia-cuda-runtime"),
        ("mine.h", ""),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "k.cu:1:10: fatal error: {}: No such file or directory",  # of gcc
        'k.cu(1): error: could not open source file "{}"',  # of NVRTC
    ],
)
def test_the_package_of_a_missing_header_is_named(words, header, package):
    said = f" (the pip package {package} has it)" if package else ""
    assert advice(words.format(header)) == said


def test_the_host_compiler_is_missing(nowhere, monkeypatch):
    nowhere("echo release 13.0")
    monkeypatch.setenv("CXX", "no-such-c++")
    assert "the C++ compiler 'no-such-c++' is missing" in refused()


@pytest.mark.parametrize(
    "flags, said",
    [
        (["-arch=sm_90a"], "no kernel image for this device: the flags compile for sm_90a"),
        (["-gencode", "arch=compute_120a,code=sm_120a"], "compile for sm_120a"),
        (["-gencode=arch=compute_103a,code=sm_103a"], "compile for sm_103a"),
    ],
)
def test_flags_that_no_b200_runs(flags, said):
    with pytest.raises(BuildError, match=re.escape(said)):
        split_flags(flags)


@pytest.mark.parametrize(
    "flags, architecture, others",
    [
        (["-O3", "-gencode=arch=compute_100a,code=sm_100a"], "compute_100a", ["-O3"]),
        (["-gencode", "arch=compute_100f,code=sm_100f"], "compute_100f", []),
        (["-arch=compute_100a", "-code=sm_100a", "-w"], "compute_100a", ["-w"]),
        (["-arch=sm_90a", "-gencode arch=compute_100a,code=sm_100a"], "compute_100a", []),
        (["-gencode=arch=compute_90,code=compute_90"], "compute_90", []),
        (["-arch=sm_100a", "-dc"], "compute_100a", ["-rdc=true"]),
        (["-Xptxas", "-v", "-lineinfo", "--maxrregcount=64"], "compute_100",
         ["-Xptxas", "-v", "--maxrregcount=64"]),
    ],
)  # fmt: skip
def test_flags_that_a_b200_runs(flags, architecture, others, monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert split_flags(flags) == (architecture, others)


def test_a_source_file_that_is_not_there():
    from torch.utils.cpp_extension import load

    with pytest.raises(BuildError, match="source file 'nowhere.cu' does not exist"):
        load("wrong", ["nowhere.cu"])


# --- compilers ---------------------------------------------------------------------------------------
@needs_nvcc
def test_a_compile_error_names_the_python_line():
    said = refused("""
__global__ void k(int* x) {
  x[0] = unheard_of;  // MARK: identifier
}
""")
    assert f"{__file__}:{line_of('// MARK: identifier')}: " in said
    assert '"unheard_of" is undefined' in said


@needs_nvcc
def test_a_kernel_that_launches_kernels_is_refused_by_its_name():
    said = refused("""
__global__ void child() {}
__global__ void parent() { child<<<1, 1>>>(); }  // MARK: device launch
""")
    assert f":{line_of('// MARK: device launch')}: a kernel that launches kernels" in said


@needs_nvcc
def test_what_ptxas_refuses_names_the_python_line():
    said = refused("""
__global__ void k(int* x) {
  asm volatile("tcgen05.nothing %0;" :: "l"(x));  // MARK: modifier
}
""")
    assert f"{__file__}:{line_of('// MARK: modifier')}: ptxas: Unknown modifier '.nothing'" in said


@needs_nvcc
def test_tensor_cores_need_the_a_in_the_architecture(monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    said = refused(
        """
__global__ void k(int x) { asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"); }
""",
        extra_cuda_cflags=[],
    )
    assert "not supported on .target 'sm_100'" in said


@needs_nvcc
def test_an_include_that_is_not_there():
    assert "no_such_header.h: No such file" in refused('#include "no_such_header.h"\n')


@needs_nvcc
def test_wrong_argument_count():
    said = refused("""
__global__ void k(int x, int y) {}
void f() {
  k<<<1, 1>>>(1);  // MARK: count
}
""")
    assert f":{line_of('// MARK: count')}: too few arguments" in said


@needs_nvcc
def test_a_setup_finds_a_toolkit():
    """By CUDA_HOME a setup.py chooses CUDAExtension."""
    command = SimpleNamespace(build_extensions=print)
    module = SimpleNamespace(CUDA_HOME=None, BuildExtension=command)
    host_cuda.take_over(module, SimpleNamespace(load_inline=None, load=None))
    assert Path(module.CUDA_HOME, "bin", "nvcc").is_file()


def test_flags_are_joined_as_torch_joins_them():
    """An empty flag vanishes, and one with blanks is several."""
    from b200.host.cuda.extension import _words

    assert _words(["", "-O2 -DX=1", ""]) == ("-O2", "-DX=1") and _words(None) == _words([""]) == ()


@needs_nvcc
def test_a_function_that_nobody_defines():
    said = refused(None, cpp_sources="void elsewhere(); void f() { elsewhere(); }\n")
    assert "does not load" in said and "elsewhere" in said


# --- calls and launches ------------------------------------------------------------------------------
SOURCE = r"""
__device__ int four[4];
__global__ void plain(int* x) { if (x) x[0] = 1; }
__global__ void __launch_bounds__(64) bounded() {}
__global__ void __cluster_dims__(2, 1, 1) paired() {}
__global__ void large() { extern __shared__ int s[]; s[threadIdx.x] = 0; }

void configured(void (*kernel)(int*), dim3 grid, dim3 cluster, int id, int smem = 0) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = smem;
  cudaLaunchAttribute attribute{};
  attribute.id = static_cast<cudaLaunchAttributeID>(id);
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, (int*)nullptr);
}
const char* ptx = ".version 8.7\n.target sm_100a\n.address_size 64\n"
    ".visible .entry one(.param .u64 a, .param .u32 b) { ret; }";

TEST(threads, { plain<<<1, 2048>>>(nullptr); })
TEST(empty_grid, { plain<<<0, 32>>>(nullptr); })
TEST(tall_grid, { plain<<<dim3(1, 70000), 32>>>(nullptr); })
TEST(deep_block, { plain<<<1, dim3(1, 1, 65)>>>(nullptr); })
TEST(over_bounds, { bounded<<<1, 65>>>(); })
TEST(odd_cluster, { paired<<<3, 32>>>(); })
TEST(other_cluster, { configured((void (*)(int*))paired, 4, dim3(4, 1, 1), 4); })
TEST(empty_cluster, { configured(plain, 4, dim3(2, 0, 1), 4); })
TEST(large_cluster, { configured(plain, 16, dim3(16, 1, 1), 4); })
TEST(unknown_attribute, { configured(plain, 4, dim3(1, 1, 1), 77); })
TEST(smem_without_limit, { large<<<1, 32, 100'000>>>(); })
TEST(smem_over_chip, { cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, 240'000); })
TEST(cooperative, {
  void* arguments[] = {&a};
  cudaLaunchCooperativeKernel((const void*)plain, dim3(100'000), dim3(1024), arguments, 0, nullptr);
})
TEST(not_a_kernel, { void* none[] = {nullptr}; cudaLaunchKernel((const void*)&four, 1, 1, none, 0, nullptr); })
TEST(no_such_kernel, {
  CUmodule module; CUfunction function;
  cuModuleLoadData(&module, ptx);
  cuModuleGetFunction(&function, module, "two");
})
TEST(short_arguments, {
  CUmodule module; CUfunction function;
  cuModuleLoadData(&module, ptx);
  cuModuleGetFunction(&function, module, "one");
  size_t size = 8;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &a, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra);
})
TEST(null_argument, {
  void* arguments[] = {nullptr};
  cudaLaunchKernel((const void*)plain, 1, 32, arguments, 0, nullptr);
})
TEST(a_cubin, { CUmodule module; cuModuleLoadData(&module, "\x7f" "ELF...."); })
TEST(bad_ptx, { CUmodule module; cuModuleLoadData(&module, ".version 8.7\n.target sm_100a\n.address_size 64\n"
  ".visible .entry k() { .reg .b32 %r1; frobnicate.b32 %r1, 1; ret; }"); CUfunction f; cuModuleGetFunction(&f, module, "k");
  cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); })
TEST(out_of_memory, { void* all; cudaMalloc(&all, 1'000'000'000'000); })
TEST(free_of_nothing, { cudaFree((void*)0x1000); })
TEST(null_copy, { cudaMemcpy(nullptr, &a, 8, cudaMemcpyHostToDevice); })
TEST(long_copy, { int more[8] = {}; cudaMemcpyToSymbol(four, more, sizeof more); })
TEST(second_device, { cudaSetDevice(1); })
TEST(unknown_device_attribute, { int x; cudaDeviceGetAttribute(&x, (cudaDeviceAttr)9999, 0); })
TEST(unknown_call, { cudaArray_t array; cudaChannelFormatDesc desc{}; cudaMallocArray(&array, &desc, 4); })
TEST(a_texture, { cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat); })
TEST(misaligned_map, {
  CUtensorMap map;
  const cuuint64_t dims[] = {32, 16}, strides[] = {100};
  const cuuint32_t box[] = {16, 8}, steps[] = {1, 1};
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void*)a, dims, strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
})
"""

SAID = {
    "threads": "each dimension must be 1..(1024, 1024, 64)",
    "empty_grid": "grid (0, 1, 1)",
    "tall_grid": "grid (1, 70000, 1), each dimension must be 1..",
    "deep_block": "block (1, 1, 65)",
    "over_bounds": "65 threads a CTA, its __launch_bounds__ allow 64",
    "odd_cluster": "grid (3, 1, 1) is not a multiple of the cluster (2, 1, 1)",
    "other_cluster": "cluster (4, 1, 1), but it is compiled for clusters of (2, 1, 1)",
    "empty_cluster": "cluster (2, 0, 1) has an empty dimension",
    "large_cluster": "cudaFuncAttributeNonPortableClusterSizeAllowed",
    "unknown_attribute": "launch attribute 77",
    "smem_without_limit": "its limit is 49152: raise it with cudaFuncSetAttribute",
    "smem_over_chip": "240000 is more than a B200 has: 232448 bytes a CTA",
    "cooperative": "a cooperative grid of 100000 CTAs, 296 are resident at once",
    "not_a_kernel": "a kernel that is not registered",
    "no_such_kernel": "no kernel 'two' in the module; its kernels: one",
    "short_arguments": "8 bytes of arguments, it takes 12",
    "null_argument": "argument 0 of 1 is a null pointer",
    "a_cubin": "a module of machine code (cubin)",
    "bad_ptx": "frobnicate",
    "out_of_memory": "out of memory: cudaMalloc of 1000000000000 bytes",
    "free_of_nothing": "cudaFree of 0x1000, which cudaMalloc has not returned",
    "null_copy": "a copy or fill of 8 bytes at a null pointer",
    "long_copy": "copy of 32 bytes with the variable four of 16 bytes",
    "second_device": "cudaSetDevice(1): there is one device",
    "unknown_device_attribute": "device attribute 9999",
    "unknown_call": "cudaMallocArray is not in the software B200's CUDA",
    "a_texture": "cudaCreateChannelDesc is not in the software B200's CUDA: textures, surfaces",
    "misaligned_map": "cuTensorMapEncodeTiled refused: ",
}


# What the functions return for them, of driver_types.h and cuda.h; 0: an exception says it.
CODES = {
    **dict.fromkeys(("unknown_attribute", "a_cubin", "bad_ptx", "unknown_call", "a_texture"), 0),
    **dict.fromkeys(("smem_without_limit", "smem_over_chip", "free_of_nothing"), 1),
    **dict.fromkeys(("null_copy", "long_copy", "misaligned_map"), 1),
    "unknown_device_attribute": 1,
    **{"out_of_memory": 2, "not_a_kernel": 98, "second_device": 101, "no_such_kernel": 500},
    "cooperative": 720,
}


@pytest.fixture(scope="module")
def call(gpu):
    return caller(compile_program("wrong_calls", SOURCE))


@needs_nvcc
@pytest.mark.parametrize("name", SAID)
def test_one_clear_line(call, name):
    refusals().clear()
    raised = call(name, torch.zeros(512).data_ptr())
    if code := CODES.get(name, 9):  # a launch: cudaErrorInvalidConfiguration
        assert not raised and list(refusals()) == [code]
        raised = refusals()[code]
    assert SAID[name] in raised
    assert "\n" not in raised.strip().replace("\n  kernel ", " ")


@needs_nvcc
def test_a_function_of_torchs_library_for_cuda():
    source = "namespace at::cuda { void sort(); }\nvoid f() { at::cuda::sort(); }\n"
    said = refused(None, cpp_sources=source)
    assert "does not link: at::cuda::sort is in torch's library for CUDA" in said
