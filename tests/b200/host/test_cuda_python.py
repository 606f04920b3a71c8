"""Programs over cuda.bindings (cuda-python): kernels as PTX, kernels that NVRTC compiles."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io

import numpy as np
import pytest

import b200
from b200.host.cuda.errors import BuildError
from b200.host.cuda_python import nvrtc as nvrtc_here
from tests.b200.ptx_support import kernel

driver = pytest.importorskip("cuda.bindings.driver")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
runtime = pytest.importorskip("cuda.bindings.runtime")


@pytest.fixture(scope="module", autouse=True)
def gpu():
    return b200.install()


def done(result):
    """The values of a call of cuda.bindings that went well."""
    status, *values = result
    assert int(status) == 0
    return values[0] if len(values) == 1 else tuple(values)


def refused(kind: str, function) -> str:
    """What is said of a call: a B200 refuses it (limit), with a status and no values; or it raises."""
    if kind == "limit":
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status, *values = function()
        assert int(status) != 0 and not any(values)
        (line,) = said.getvalue().splitlines()
        assert f"returns {status.name}: " in line
        return line
    with pytest.raises(b200.EmulatorError) as caught:
        function()
    assert caught.value.kind == kind and "\n" not in str(caught.value)
    return str(caught.value)


# to[i] = i + add, of a CTA of 32 threads
COUNT = kernel(
    "ld.param.u64 %rd1, [to]; ld.param.u32 %r2, [add]; mov.u32 %r1, %tid.x;"
    " mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; add.u32 %r1, %r1, %r2;"
    " st.global.u32 [%rd1], %r1;",
    [".u64 to", ".u32 add"],
    smem=".global .align 4 .u32 table[3] = {7, 8, 9};",
    name="count",
).encode()
COUNTED = list(range(5, 37))
DIMENSIONS = (1, 1, 1, 32, 1, 1)


@pytest.fixture
def memory():
    address = done(driver.cuMemAlloc(128))
    yield address
    done(driver.cuMemFree(address))


@pytest.fixture(scope="module")
def count():
    return done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(COUNT)), b"count"))


def fetched(memory, n=32) -> list[int]:
    host = np.zeros(n, np.uint32)
    done(driver.cuMemcpyDtoH(host, memory, host.nbytes))
    return host.tolist()


def test_questions_and_memory():
    sm_count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    done(driver.cuInit(0))
    assert done(driver.cuDeviceGetCount()) == 1
    assert done(driver.cuDeviceGetAttribute(sm_count, done(driver.cuDeviceGet(0)))) == 148
    memory = done(driver.cuMemAlloc(64))
    done(driver.cuMemsetD32Async(memory, 0x01020304, 16, driver.CUstream(0)))
    host = np.zeros(16, np.uint32)
    done(runtime.cudaMemcpy(host, int(memory), 64, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost))
    assert (host == 0x01020304).all()
    done(driver.cuMemcpyHtoD(memory, bytes(range(64)), 64))
    pinned = done(driver.cuMemAllocHost(64))
    done(driver.cuMemcpyDtoHAsync(pinned, memory, 64, 0))
    assert ctypes.string_at(pinned, 64) == bytes(range(64))
    done(driver.cuMemFreeHost(pinned))
    said = refused("fault", lambda: driver.cuMemcpyDtoH(host, memory, 65))
    assert "65 bytes" in said and "a copy from it by the host" in said
    done(driver.cuMemFree(memory))
    assert "which was freed" in refused("limit", lambda: driver.cuMemFree(memory))
    refused("fault", lambda: driver.cuMemcpyDtoH(host, memory, 64))  # memory that was freed
    said = refused("unsupported", lambda: driver.cuMulticastCreate(None))
    assert "driver.cuMulticastCreate is not in the software B200" in said


def as_values(memory):
    return ((memory, np.int32(5)), (None, ctypes.c_int))


def as_handles(memory):
    return ((int(memory), 5), (ctypes.c_void_p, ctypes.c_uint))


def as_pointers(memory):
    """An array of pointers, as a program with numpy makes it."""
    cells = [np.array([int(memory)], np.uint64), np.array([5], np.uint32)]
    as_pointers.kept = cells
    return np.array([cell.ctypes.data for cell in cells], np.uint64)


@pytest.mark.parametrize("arguments", (as_values, as_handles, as_pointers))
def test_ptx(gpu, count, memory, arguments):
    done(driver.cuLaunchKernel(count, *DIMENSIONS, 0, 0, arguments(memory), 0))
    assert fetched(memory) == COUNTED and not gpu.launches[-1].findings


def test_arguments_of_other_types(count, memory):
    """A ctypes object of another type, an enumeration of cuda.bindings in the place of a number, a
    structure of cuda.bindings in the place of its address.
    """
    five = runtime.cudaError_t(5)  # no enumeration of the driver's has a 5
    there = runtime.dim3(_ptr=int(memory))
    for to, value, kind in (
        (ctypes.c_uint64(int(memory)), ctypes.c_ushort(5), ctypes.c_int),
        (int(memory), five, None),
        (there, 5, ctypes.c_int),
    ):
        arguments = (to, value), (ctypes.c_void_p, kind)
        done(driver.cuMemsetD32(memory, 0, 32))
        done(driver.cuLaunchKernel(count, *DIMENSIONS, 0, 0, arguments, 0))
        assert fetched(memory) == COUNTED


@pytest.mark.parametrize("value, kind", [(2**32 + 5, ctypes.c_int), (200, ctypes.c_byte)])
def test_a_number_that_does_not_fit(count, memory, value, kind):
    with pytest.raises(OverflowError, match=f"{value} does not fit a c_"):
        arguments = (memory, value), (None, kind)
        driver.cuLaunchKernel(count, *DIMENSIONS, 0, 0, arguments, 0)


def test_packed_arguments(count, memory):
    packed = ctypes.create_string_buffer(int(memory).to_bytes(8, "little") + b"\x05\0\0\0", 12)
    size = ctypes.c_size_t(12)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
    done(driver.cuLaunchKernel(count, *DIMENSIONS, 0, 0, 0, ctypes.addressof(extra)))
    assert fetched(memory) == COUNTED


def test_libraries(memory, tmp_path):
    file = tmp_path / "count.ptx"
    file.write_bytes(COUNT)
    for library in (
        done(driver.cuLibraryLoadData(COUNT, [], [], 0, [], [], 0)),
        done(driver.cuLibraryLoadFromFile(str(file).encode(), [], [], 0, [], [], 0)),
    ):
        assert done(driver.cuLibraryGetKernelCount(library)) == 1
        (found,) = done(driver.cuLibraryEnumerateKernels(1, library))
        assert done(driver.cuKernelGetName(found)) == b"count"
        function = done(driver.cuKernelGetFunction(found))
        done(driver.cuLaunchKernel(function, *DIMENSIONS, 0, 0, as_values(memory), 0))
        assert fetched(memory) == COUNTED
        address, nbytes = done(driver.cuLibraryGetGlobal(library, b"table"))
        assert nbytes == 12 and fetched(address, 3) == [7, 8, 9]
        done(driver.cuLibraryUnload(library))
        refused("limit", lambda gone=library: driver.cuLibraryGetKernel(gone, b"count"))
    of_runtime = done(runtime.cudaLibraryLoadData(COUNT, [], [], 0, [], [], 0))
    found = done(runtime.cudaLibraryGetKernel(of_runtime, b"count"))
    function = driver.CUfunction(int(found))
    done(driver.cuLaunchKernel(function, *DIMENSIONS, 0, 0, as_values(memory), 0))


RANKS = kernel(
    "ld.param.u64 %rd1, [to]; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank;"
    " mov.u32 %r3, %ctaid.x; mul.wide.u32 %rd2, %r3, 4; add.s64 %rd1, %rd1, %rd2;"
    " mad.lo.u32 %r1, %r2, 100, %r1; st.global.u32 [%rd1], %r1;",
    [".u64 to"],
    name="ranks",
    reqntid=1,
).encode()


def config(cluster: int, grid: int = 4, threads: int = 1):
    made = driver.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ = grid, 1, 1
    made.blockDimX, made.blockDimY, made.blockDimZ = threads, 1, 1
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dim = attribute.value.clusterDim
    dim.x, dim.y, dim.z = cluster, 1, 1
    made.attrs, made.numAttrs = [attribute], 1
    return made


def test_launch_attributes(memory):
    ranks = done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(RANKS)), b"ranks"))
    arguments = ((memory,), (None,))
    done(driver.cuLaunchKernelEx(config(2), ranks, arguments, 0))
    assert fetched(memory, 4) == [200, 201, 200, 201]
    assert done(driver.cuOccupancyMaxActiveClusters(ranks, config(2))) == 148 * 32 // 2
    wide = config(16, grid=16)
    said = refused("limit", lambda: driver.cuLaunchKernelEx(wide, ranks, arguments, 0))
    assert "NonPortableClusterSizeAllowed" in said
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    done(driver.cuFuncSetAttribute(ranks, attribute, 1))
    done(driver.cuLaunchKernelEx(wide, ranks, arguments, 0))
    assert fetched(memory, 16) == [1600 + i for i in range(16)]
    odd = config(2)
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
    odd.attrs = [attribute]
    said = refused("unsupported", lambda: driver.cuLaunchKernelEx(odd, ranks, arguments, 0))
    assert "launch attribute 7" in said


# A box of 4 x 2 words from (4, 1) of a tensor, by TMA, then to global memory.
TMA = kernel(
    """
    ld.param.u64 %rd1, [to]; mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2; mov.b32 %r4, 4; mov.b32 %r5, 1;
    mbarrier.init.shared::cta.b64 [bar], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [bar], 32;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [box], [%rd2, {%r4, %r5}], [bar];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [box]; st.global.v4.b32 [%rd1], {%r10, %r11, %r12, %r13};
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [box+16]; st.global.v4.b32 [%rd1+16], {%r10, %r11, %r12, %r13};
    """,
    [".align 64 .b8 map[128]", ".u64 to"],
    smem=".shared .align 128 .b8 box[128];\n.shared .align 8 .b64 bar;",
    name="tma",
    reqntid=1,
).encode()


def tensor_map(address, strides=(32,)):
    word, dim = driver.cuuint64_t, driver.cuuint32_t
    return driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT32,
        2,
        address,
        [word(8), word(8)],
        [word(stride) for stride in strides],
        [dim(4), dim(2)],
        [dim(1), dim(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


def test_tensor_maps(gpu, memory):
    tensor = done(driver.cuMemAlloc(256))
    done(driver.cuMemcpyHtoD(tensor, np.arange(64, dtype=np.uint32), 256))
    tma = done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(TMA)), b"tma"))
    arguments = ((done(tensor_map(tensor)), memory), (None, None))
    done(driver.cuLaunchKernel(tma, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))
    assert fetched(memory, 8) == [12, 13, 14, 15, 20, 21, 22, 23]
    assert not gpu.launches[-1].findings
    assert "a multiple of 16" in refused("limit", lambda: tensor_map(tensor, (24,)))
    done(driver.cuMemFree(tensor))


@pytest.mark.parametrize(
    "kind, text, said",
    (
        ("limit", COUNT.replace(b"sm_100a", b"sm_90a"), "PTX for sm_90a, a B200 is sm_100a"),
        ("limit", COUNT.replace(b"sm_100a", b"sm_120"), "PTX for sm_120, a B200 is sm_100a"),
        ("unsupported", b"\x7fELF\0\0\0", "a module of machine code (cubin)"),
    ),
)
def test_refused_modules(kind, text, said):
    assert said in refused(kind, lambda: driver.cuModuleLoadData(text))


def test_older_targets():
    for target in (b"sm_75", b"sm_100f", b"sm_100"):
        done(driver.cuModuleLoadData(COUNT.replace(b"sm_100a", target)))


def test_refused_launches(count, memory):
    def launch(arguments, smem=0, threads=32):
        return refused(
            "limit",
            lambda: driver.cuLaunchKernel(count, 1, 1, 1, threads, 1, 1, smem, 0, arguments, 0),
        )

    assert "1 values and 1 types of arguments, it has 2 parameters" in launch(((memory,), (None,)))
    narrow = ((1024, 5), (ctypes.c_int, ctypes.c_int))
    assert "argument 0 is a c_int of 4 bytes, its parameter takes 8" in launch(narrow)
    assert "argument 1 is a int with the type None" in launch(((memory, 5), (None, None)))
    assert "no arguments, but it has 2 parameters" in launch(0)
    assert "cudaFuncAttributeMaxDynamicSharedMemorySize" in launch(as_values(memory), 65536)
    assert "compiled for blocks of" in launch(as_values(memory), threads=64)
    module = done(driver.cuModuleLoadData(COUNT))
    said = refused("limit", lambda: driver.cuModuleGetFunction(module, b"counts"))
    assert "no kernel 'counts' in the module; its kernels: count" in said
    assert "returns CUDA_ERROR_NOT_FOUND" in said


@pytest.mark.parametrize(
    "look",
    [
        lambda answer: answer[0],
        lambda answer: [status for status in answer],
        lambda answer: answer == (driver.CUresult.CUDA_SUCCESS,),
        lambda answer: answer != (driver.CUresult.CUDA_SUCCESS,),
        lambda answer: driver.CUresult.CUDA_SUCCESS in answer,
        str,
        None,
    ],
    ids=["indexed", "unpacked", "compared", "differs", "searched", "printed", "nobody"],
)
def test_a_refused_launch_is_asked_for(count, look, capsys):
    """Twice the same launch: the one that nobody looks at stays."""
    before = b200.unasked()
    for looked in (look, None):
        answer = driver.cuLaunchKernel(count, 1, 65536, 1, 32, 1, 1, 0, 0, 0, 0)
        assert isinstance(answer, tuple) and len(answer) == 1
        if looked is not None:
            looked(answer)
    left = b200.unasked()[len(before) :]
    assert len(left) == (1 if look else 2)
    assert left[-1].startswith("cuLaunchKernel returned CUDA_ERROR_INVALID_VALUE, at which nobody")
    assert "has looked: launch of count refused: " in left[-1]
    done(driver.cuCtxSynchronize())  # no error of the context


def test_attributes_of_kernels(count):
    attributes = driver.CUfunction_attribute

    def asked(name):
        return done(
            driver.cuFuncGetAttribute(getattr(attributes, f"CU_FUNC_ATTRIBUTE_{name}"), count)
        )

    assert asked("MAX_THREADS_PER_BLOCK") == 32 and asked("SHARED_SIZE_BYTES") == 0
    most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert asked("MAX_DYNAMIC_SHARED_SIZE_BYTES") == 49_152
    done(driver.cuFuncSetAttribute(count, most, 200_000))
    assert asked("MAX_DYNAMIC_SHARED_SIZE_BYTES") == 200_000
    resident = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
    assert done(resident(count, 32, 100_000)) == 2


# --- NVRTC


def has_nvrtc() -> bool:
    try:
        nvrtc_here.needing_library(nvrtc.nvrtcVersion)()
    except BuildError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(
    not has_nvrtc(), reason="NVRTC (nvidia-cuda-nvrtc) is not installed"
)

SOURCE = r"""
template <typename T> __device__ T twice(T x) { return x + x; }

extern "C" __global__ void scale(float* to, const float* from, int n) {
  extern __shared__ float staged[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  staged[threadIdx.x] = i < n ? from[i] : 0;
  __syncthreads();
  to[i] = twice(staged[threadIdx.x]);
}
"""


def compiled(source: str, *options: bytes, machine_code: bool = False) -> bytes:
    program = done(nvrtc.nvrtcCreateProgram(source.encode(), b"scale.cu", 0, [], []))
    done(nvrtc.nvrtcCompileProgram(program, len(options), list(options)))
    kind = "CUBIN" if machine_code else "PTX"
    text = b" " * done(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
    done(getattr(nvrtc, f"nvrtcGet{kind}")(program, text))
    done(nvrtc.nvrtcDestroyProgram(program))
    return text


@needs_nvrtc
@pytest.mark.parametrize(
    "arch, machine_code", ((b"compute_100a", False), (b"sm_100a", True), (b"compute_80", False))
)
def test_nvrtc(gpu, arch, machine_code):
    """Through the same calls, PTX or what stands for machine code; a fault names the line."""
    text = compiled(SOURCE, b"--gpu-architecture=" + arch, machine_code=machine_code)
    module = done(driver.cuModuleLoadData(np.frombuffer(text, np.uint8)))
    scale = done(driver.cuModuleGetFunction(module, b"scale"))
    to, source = done(driver.cuMemAlloc(800)), done(driver.cuMemAlloc(400))
    numbers = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    done(driver.cuMemcpyHtoD(source, numbers, 400))

    def launch(grid):
        values, kinds = (to, source, 100), (None, None, ctypes.c_int)
        return driver.cuLaunchKernel(scale, grid, 1, 1, 64, 1, 1, 256, 0, (values, kinds), 0)

    done(launch(2))
    host = np.ones(128, np.float32)
    done(driver.cuMemcpyDtoH(host, to, 512))
    assert np.array_equal(host[:100], numbers + numbers) and not host[100:].any()
    assert not gpu.launches[-1].findings
    with pytest.raises(b200.EmulatorError) as caught:
        launch(4)  # 1024 bytes
    lines, _ = inspect.getsourcelines(inspect.getmodule(test_nvrtc))
    line = next(i for i, text in enumerate(lines, 1) if text.startswith("  to[i] = twice"))
    assert f"test_cuda_python.py:{line}" in str(caught.value)
    assert runtime.cudaDeviceSynchronize() == (runtime.cudaError_t.cudaErrorIllegalAddress,)
    status, address = driver.cuMemAlloc(16)
    assert status == driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS and address is None
    done(runtime.cudaDeviceReset())
    for memory in (to, source):
        done(driver.cuMemFree(memory))


@needs_nvrtc
def test_nvrtc_that_does_not_compile():
    program = done(nvrtc.nvrtcCreateProgram(b"__global__ void k() { no }", b"k.cu", 0, [], []))
    status, *_ = nvrtc.nvrtcCompileProgram(program, 0, [])
    assert status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
    log = b" " * done(nvrtc.nvrtcGetProgramLogSize(program))
    done(nvrtc.nvrtcGetProgramLog(program, log))
    assert b'k.cu(1): error: identifier "no" is undefined' in log


@needs_nvrtc
def test_nvrtc_for_another_chip():
    text = compiled(SOURCE, b"-arch=compute_90a")
    assert "PTX for sm_90a" in refused("limit", lambda: driver.cuModuleLoadData(text))


def test_without_nvrtc():
    def missing():
        raise RuntimeError('Failure finding "libnvrtc.so.13"\n')

    with pytest.raises(BuildError, match="libnvrtc is missing: .*nvfp4-b200.nvrtc.") as caught:
        nvrtc_here.needing_library(missing)()
    assert "\n" not in str(caught.value)
