"""Raw CUDA programs, compiled by nvcc, run on the software B200: what is right stays right."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import b200
from b200.host.cuda import build, stand_in
from b200.host.cuda.cache import locked
from b200.host.cuda.errors import BuildError
from b200.host.cuda.toolkit import Toolkit, find_toolkit
from tests.b200.host.cuda import graph_program
from tests.b200.host.cuda.support import caller, compile_program, needs_nvcc, one_folder

pytestmark = needs_nvcc

SOURCE = r"""
#include <cooperative_groups.h>
__device__ int counter[4] = {1, 2, 3, 4};
__constant__ float factor = 2.0f;

__global__ void scale(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
  if (i == 0) counter[2] += n;
}

TEST(scale_it, {
  cudaMemcpyToSymbol(factor, std::vector<float>{3.0f}.data(), 4);
  scale<<<3, 128>>>((const float*)a, (float*)b, 300);
  cudaMemcpyToSymbol(factor, std::vector<float>{2.0f}.data(), 4);  // as the other programs want it
  int found[4];
  cudaMemcpyFromSymbol(found, counter, 16);
  if (found[1] != 2 || found[2] != 303) throw std::runtime_error(std::to_string(found[2]));
})

TEST(own_memory, {
  float* buffer;
  cudaMalloc(&buffer, 300 * 4);
  cudaMemset(buffer, 0xFF, 300 * 4);
  cudaMemcpy(buffer, (void*)a, 300 * 4, cudaMemcpyDeviceToDevice);
  scale<<<dim3(3), dim3(128)>>>(buffer, buffer, 300);
  cudaMemcpyAsync((void*)b, buffer, 300 * 4, cudaMemcpyDeviceToHost);
  cudaFree(buffer);
})

TEST(other_memory, {
  std::vector<float> own(300, 2.0f);  // of the host, until it is registered
  cudaHostRegister(own.data(), 1200, cudaHostRegisterMapped);
  float *mapped, *rows;
  cudaHostGetDevicePointer(&mapped, own.data(), 0);
  scale<<<3, 128>>>(mapped, mapped, 300);
  std::memcpy((void*)a, own.data(), 1200);
  int* codes = (int*)b;
  codes[0] = cudaHostUnregister(own.data());
  codes[1] = cudaHostUnregister(own.data());
  size_t pitch;
  cudaMallocPitch(&rows, &pitch, 100, 3);
  cudaMemset2D(rows, pitch, 1, 100, 3);
  cudaMemcpy2D(codes + 2, 4, rows, pitch, 4, 3, cudaMemcpyDeviceToHost);
  codes[5] = pitch;
})

TEST(events, {
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  float* milliseconds = (float*)b;
  for (int i = 0; i < 3; ++i) {
    cudaEventRecord(from);
    for (int calls = 0; calls < i; ++calls) scale<<<1, 32>>>((const float*)a, (float*)a, 32);
    cudaEventRecord(to);
    cudaEventElapsedTime(milliseconds + i, from, to);
  }
  cudaEventDestroy(to);
  cudaEventCreate(&to);
  milliseconds[3] = cudaEventElapsedTime(milliseconds + 4, from, to);
})

TEST(large_memory, {
  char* buffer;
  cudaMalloc(&buffer, 80'000'000'000);
  scale<<<1, 128>>>((float*)a, (float*)(buffer + 70'000'000'000), 4);
  cudaMemcpy((void*)b, buffer + 70'000'000'000, 16, cudaMemcpyDeviceToHost);
  cudaFree(buffer);
})

__global__ void ranks(int* out) {
  int rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  out[blockIdx.x] = 100 * size + rank;
}
__global__ void __cluster_dims__(2, 1, 1) fixed_ranks(int* out) {
  out[blockIdx.x] = 0;
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  out[blockIdx.x] = size;
}

__global__ void meets(int* x, int* out) {
  x[blockIdx.x] = blockIdx.x;
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) atomicMax(out, x[0] + x[1] + x[2] + x[3]);
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) x[blockIdx.x] = out[0];
}
TEST(grid_sync, {
  void* arguments[] = {&a, &b};
  cudaLaunchCooperativeKernel((const void*)meets, dim3(4), dim3(64), arguments, 0, nullptr);
})
TEST(grid_sync_of_a_plain_launch, { meets<<<4, 64>>>((int*)a, (int*)b); })

TEST(clusters, {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(8);
  config.blockDim = dim3(32);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = 4;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  cudaLaunchKernelEx(&config, ranks, (int*)a);
  fixed_ranks<<<4, 32>>>((int*)b);
})

template <int N>
__global__ void __launch_bounds__(256) shared_sum(const float* x, float* out) {
  extern __shared__ float dynamic[];
  __shared__ float fixed[N];
  dynamic[threadIdx.x] = x[threadIdx.x];
  fixed[threadIdx.x % N] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = fixed[0];
    for (int i = 0; i < blockDim.x; ++i) sum += dynamic[i];
    *out = sum;
  }
}

TEST(shared_memory, {
  auto kernel = shared_sum<8>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200'000);
  kernel<<<1, 128, 200'000>>>((const float*)a, (float*)b);
})

EXPORT void facts(int64_t* out) {
  cudaFuncAttributes attributes;
  cudaFuncGetAttributes(&attributes, (const void*)shared_sum<8>);
  int blocks;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, shared_sum<8>, 256, 100'000);
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  int count;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
  const int64_t all[] = {(int64_t)attributes.sharedSizeBytes, attributes.maxThreadsPerBlock,
                         attributes.numRegs, blocks, properties.multiProcessorCount, count,
                         (int64_t)properties.sharedMemPerBlockOptin, properties.major};
  std::memcpy(out, all, sizeof all);
}

// The driver's best CTA, and that of cuda_runtime.h, which finds it by what an SM holds.
EXPORT void best_ctas(int* out) {
  int n = 0;
  for (int smem = 0; smem <= 100'000; smem += 25'000) {
    cuOccupancyMaxPotentialBlockSize(out + n, out + n + 1, (CUfunction)shared_sum<8>, nullptr, smem, 0);
    cudaOccupancyMaxPotentialBlockSize(out + n + 2, out + n + 3, shared_sum<8>, smem);
    n += 4;
  }
}

__global__ void load_box(const __grid_constant__ CUtensorMap map, float* out) {
  __shared__ alignas(128) float box[8 * 16];
  __shared__ uint64_t barrier;
  const int at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(box);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(16), "r"(8), "r"(at) : "memory");
  }
  __syncthreads();
  asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
               "@!p bra WAIT;\n}" ::"r"(at) : "memory");
  for (int i = threadIdx.x; i < 128; i += blockDim.x) out[i] = box[i];
}

TEST(tensormap, {
  void* entry;
  cudaDriverEntryPointQueryResult status;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                   &status);
  CUtensorMap map;
  const cuuint64_t dims[] = {32, 16}, strides[] = {128};
  const cuuint32_t box[] = {16, 8}, steps[] = {1, 1};
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void*)a, dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  load_box<<<1, 32>>>(map, (float*)b);
})

const char* ptx = R"(
.version 8.7
.target sm_100a
.address_size 64
.visible .entry add_one(.param .u64 at, .param .u32 value) {
  .reg .u64 %a; .reg .u32 %v;
  ld.param.u64 %a, [at]; ld.param.u32 %v, [value];
  add.u32 %v, %v, 1; st.global.u32 [%a], %v; ret;
})";

TEST(raw_ptx, {
  CUmodule module;
  CUfunction function;
  cuModuleLoadData(&module, ptx);
  cuModuleGetFunction(&function, module, "add_one");
  uint64_t address = a;
  unsigned value = 41;
  void* arguments[] = {&address, &value};
  cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  struct { uint64_t address; unsigned value; } packed{b, 7};
  size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra);
})

extern "C" int cublasLtCreate(void**);
extern "C" int cublasLtDestroy(void*);
extern "C" int cublasLtMatmul();
TEST(a_handle_of_cublas, {
  void* handle = nullptr;
  if (cublasLtCreate(&handle) || !handle || cublasLtDestroy(handle)) throw 1;
  cublasLtMatmul();
})

__global__ void store_outside(int* at) {
  at[threadIdx.x + 1000] = 1;  // LINE OF THE STORE
}
TEST(fault, { store_outside<<<1, 32>>>((int*)a); })
"""


@pytest.fixture(scope="module")
def gpu():
    return b200.install()


def program() -> ctypes.CDLL:
    return compile_program("programs", SOURCE + graph_program.SOURCE)


@pytest.fixture(scope="module")
def library(gpu):
    return program()


@pytest.fixture
def call(library):
    b200.install()  # forgets the failure of an earlier test's kernel
    return caller(library)


def both(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.data_ptr() for t in tensors)


def test_a_launch_a_constant_and_a_variable(call, gpu):
    x, y = torch.randn(300), torch.zeros(300)
    assert call("scale_it", *both(x, y)) == ""
    assert torch.equal(y, 3 * x)
    assert gpu.launches[-1].grid == (3, 1, 1) and not gpu.launches[-1].findings


def test_memory_of_the_program_is_legal_and_copied(call):
    x, y = torch.randn(300), torch.zeros(300)
    assert call("own_memory", *both(x, y)) == ""
    assert torch.equal(y, 2 * x)


def test_memory_of_the_host_and_rows_of_a_pitch(call):
    """What is registered is legal for kernels, and cannot be given back twice."""
    x, codes = torch.zeros(300), torch.zeros(6, dtype=torch.int32)
    assert call("other_memory", *both(x, codes)) == ""
    assert x.eq(4).all()
    assert codes.tolist() == [0, 1, *[0x01010101] * 3, 512]


def test_time_between_events_is_modelled_from_the_first_pair_on(library):
    """As of torch's events: with the gap and what two events cost (b200/clock/constants.toml)."""
    b200.install(timing=True)
    a, found = torch.zeros(32), torch.full((5,), -1.0)
    assert caller(library)("events", *both(a, found)) == ""
    none, once, twice, refused, untouched = found.tolist()
    assert none == 0 and 4e-3 < once < 8e-3 and 1e-3 < twice - once < 4e-3
    assert (refused, untouched) == (400, -1)  # cudaErrorInvalidResourceHandle: not recorded


def test_memory_that_is_not_touched_takes_no_room(call):
    x, y = torch.randn(4), torch.zeros(4)
    assert call("large_memory", *both(x, y)) == ""
    assert torch.equal(y, 2 * x)


def test_clusters_of_the_launch_and_of_the_kernel(call):
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert call("clusters", *both(a, b)) == ""
    assert a.tolist() == [400, 401, 402, 403] * 2 and b.tolist() == [2] * 4


def test_a_cooperative_grid_meets(call, gpu):
    """All CTAs see what each has stored, twice, and the checker sees the order."""
    for _ in range(2):
        x, out = torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        assert call("grid_sync", *both(x, out)) == ""
        assert x.tolist() == [6] * 4 and gpu.launches[-1].findings == []


def test_a_grid_that_is_not_cooperative_does_not_meet(call):
    """CUDA's own code traps: the launch has no workspace."""
    x, out = torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert "trap executed" in call("grid_sync_of_a_plain_launch", *both(x, out))


def test_dynamic_shared_memory_beside_static(call, gpu):
    x, out = torch.arange(128.0), torch.zeros(1)
    assert call("shared_memory", *both(x, out)) == ""
    assert out.item() == 1 + 127 * 64
    assert gpu.launches[-1].smem_bytes == 200_032


def test_facts_of_a_kernel_and_of_the_device(library):
    out = np.zeros(8, np.int64)
    library.facts(out.ctypes.data_as(ctypes.c_void_p))
    smem, threads, registers, blocks, sms, also_sms, opt_in, major = out.tolist()
    assert (smem, threads, blocks) == (32, 256, 2)
    assert 8 <= registers <= 255
    assert (sms, also_sms, opt_in, major) == (148, 148, 232_448, 10)


def test_the_best_cta_is_that_of_the_runtimes_header(library):
    out = np.zeros((5, 4), np.int32)
    library.best_ctas(out.ctypes.data_as(ctypes.c_void_p))
    assert (out[:, :2] == out[:, 2:]).all() and (out > 0).all()


def test_a_tensormap_through_the_drivers_entry_point(call):
    x, out = torch.arange(512.0).reshape(16, 32), torch.zeros(8, 16)
    assert call("tensormap", *both(x, out)) == ""
    assert torch.equal(out, x[8:, 16:])


def test_raw_ptx_through_the_driver(call):
    a, b = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert call("raw_ptx", *both(a, b)) == ""
    assert (a.item(), b.item()) == (42, 8)


def test_a_handle_of_cublas_is_there_and_what_computes_is_refused(call):
    """DeepGEMM asks for a handle with its first kernel, and does nothing with it."""
    assert "cublasLtMatmul" in call("a_handle_of_cublas")


def test_a_report_names_the_line_of_the_python_file(call):
    said = call("fault", *both(torch.zeros(4, dtype=torch.int32), torch.zeros(1)))
    lines = open(__file__).read().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "// LINE OF THE STORE" in text)
    assert said.startswith(f"{__file__}:{line}: ")
    assert "lane" in said and "store_outside" in said


def test_the_same_content_is_compiled_once(library, monkeypatch):
    monkeypatch.setattr(build, "_compile", lambda *a: pytest.fail("compiled again"))
    again = program()
    assert again._name == library._name


def test_the_stand_in_is_compiled_once_for_each_content_and_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shim = tmp_path / "shim"
    monkeypatch.setattr(stand_in, "FOLDER", shim)
    shim.mkdir()
    (shim / "part.cpp").write_text('#include "part.h"\nint number() { return NUMBER; }\n')
    (shim / "part.h").write_text("#define NUMBER 1\n")
    toolkit = find_toolkit()

    def made(toolkit: Toolkit) -> str:
        return stand_in.compiled("part.cpp", toolkit)

    first = made(toolkit)
    kept = Path(first).stat()
    assert made(toolkit) == first and Path(first).stat().st_mtime_ns == kept.st_mtime_ns
    assert made(replace(toolkit, cxx_version="another")) != first
    (shim / "part.h").write_text("#define NUMBER 2\n")
    second = made(toolkit)
    assert second != first and Path(second).read_bytes() != Path(first).read_bytes()
    (shim / "part.h").write_text("#define NUMBER here\n")
    with pytest.raises(BuildError, match="here"):
        made(toolkit)
    assert len(list((tmp_path / "cache/b200/cuda").glob("*.o"))) == 3


def test_a_changed_header_is_seen(gpu):
    """Also where the libraries of both are there already: the folder is that of each run."""
    source = '#include "number.h"\nextern "C" int number() { return NUMBER; }\n'
    folder = one_folder({"source.cu": source})
    with locked(folder / "lock"):
        for number in (1, 2, 1):
            (folder / "number.h").write_text(f"#define NUMBER {number}\n")
            program = compile_program("header", source, "", extra_include_paths=[str(folder)])
            assert program.number() == number
