"""CuTe DSL programs in the emulator: from `cute.compile` or a direct call to the result."""

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass")

import cuda.bindings.driver as cuda  # noqa: E402
import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cutlass.cute.runtime import (  # noqa: E402
    from_dlpack,
    make_fake_compact_tensor,
    make_fake_stream,
    make_ptr,
)

import b200
from b200.errors import EmulatorError  # noqa: E402
from b200.host.features import DSL
from tests.b200.host.dsl import dsl_kernels as kernels
from tests.versions import needs, needs_feature

needs_atomics = needs("cutlass.cute.arch:atomic_add")
needs_tvm_ffi = needs_feature(next(f for f in DSL if f.what == "--enable-tvm-ffi"))


@pytest.fixture
def gpu():
    """The emulator; the checker finds nothing wrong in what a test launches."""
    found = b200.install()
    before = len(found.launches)
    yield found
    assert [f for launch in found.launches[before:] for f in launch.findings] == []


def random(*shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_elementwise_with_vector_accesses(gpu):
    x, y = random(1024, seed=1), random(1024, seed=2)
    out = torch.empty(1024)
    kernels.scaled_sum(*(from_dlpack(t, assumed_align=16) for t in (x, y, out)), 2.5)
    wide = 2.5 * x.double() + y.double()
    assert (out.double() - wide).abs().max() <= 2**-23 * wide.abs().max()
    launch = gpu.launches[-1]
    assert launch.grid == (2, 1, 1) and launch.block == (128, 1, 1)
    assert launch.counters["ld.global"] == 16 and launch.counters["st.global"] == 8


def test_tma_copy_leaves_alone_what_is_outside(gpu):
    """Tiles of 32 x 64 over a tensor of 40 x 100: the store must not write over its edges."""
    x = random(40, 100)
    backing = torch.full((50, 128), -1.0)
    backing[:40, :100] = 0
    kernels.tma_copy(from_dlpack(x, assumed_align=16), from_dlpack(backing[:40, :100], 16))
    assert torch.equal(backing[:40, :100], x)
    assert (backing[40:] == -1).all() and (backing[:, 100:] == -1).all()


@pytest.mark.parametrize("k", [64, 192])
def test_gemm(gpu, k):
    a, b = random(128, k, seed=3, dtype=torch.float16), random(64, k, seed=4, dtype=torch.float16)
    c = torch.full((128, 64), float("nan"))
    arguments = [from_dlpack(t, assumed_align=16) for t in (a, b, c)]
    cute.compile(kernels.gemm, *arguments)(*arguments)
    exact = a.double() @ b.double().T
    bound = a.double().abs() @ b.double().abs().T * 2**-22 * (k // 16)
    assert ((c.double() - exact).abs() <= bound).all()
    assert gpu.launches[-1].counters["tcgen05.mma"] == k // 16


@needs("cutlass.cute.arch:map_dsmem_ptr")
def test_cluster_exchange_through_distributed_shared_memory(gpu):
    x = random(8 * kernels.THREADS)
    out = torch.empty_like(x)
    kernels.ring(from_dlpack(x), from_dlpack(out))
    blocks = x.reshape(2, kernels.RING, kernels.THREADS)
    assert torch.equal(out.reshape(blocks.shape), blocks.roll(1, dims=1))


@needs_atomics
def test_atomic_reduction(gpu):
    x = torch.from_numpy(np.random.default_rng(5).integers(0, 7, 512)).to(torch.int32)
    counts = torch.full((7,), 100, dtype=torch.int32)
    kernels.histogram(from_dlpack(x), from_dlpack(counts))
    assert counts.tolist() == [100 + int((x == v).sum()) for v in range(7)]


def test_printf(gpu, capsys):
    kernels.say(from_dlpack(torch.arange(32, dtype=torch.float32) / 4))
    assert capsys.readouterr().out == "thread 2 has 0.500000, 100%\n"


@cute.kernel
def show_in_kernel(x: cute.Tensor):
    cute.print_tensor(x)


@cute.jit
def show(x: cute.Tensor):
    """Prints on the host and in a kernel, and counts up on the host."""
    cute.print_tensor(x)
    cute.printf("column {}", x[None, 1])
    x.store(x.load() + 1)
    show_in_kernel(x).launch(grid=(1, 1, 1), block=(1, 1, 1))


def test_host_code_prints_cpu_tensors(gpu, capfd):
    """As the DSL does it; a kernel prints them as tensors in global memory."""
    x = torch.tensor([[1.5, 2.5], [3.5, 4.5]])
    show(from_dlpack(x))
    assert x.tolist() == [[2.5, 3.5], [4.5, 5.5]]
    out = capfd.readouterr().out
    host, _, kernel = out.partition("column ")
    assert "generic" in host and "1.500000" in host and "4.500000" in host
    assert "gmem" not in kernel.partition("\n")[0] and "gmem" in kernel and "5.500000" in kernel


@needs_atomics
def test_several_kernels_and_launches(gpu):
    """One compiled function on changed data and on other tensors, with another kernel between."""
    x, y, out = random(512, seed=6), random(512, seed=7), torch.empty(512)
    arguments = [from_dlpack(t, assumed_align=16) for t in (x, y, out)]
    compiled = cute.compile(kernels.scaled_sum, *arguments, cutlass.Float32(1.0))
    before = len(gpu.launches)
    for factor in (1.0, -3.0):
        compiled(*arguments, factor)
        torch.testing.assert_close(out, factor * x + y)
        counts = torch.zeros(1, dtype=torch.int32)
        kernels.histogram(from_dlpack(torch.zeros(128, dtype=torch.int32)), from_dlpack(counts))
        assert counts.item() == 128
        x += 1
    del out
    other = torch.empty(512)
    compiled(*arguments[:2], from_dlpack(other, assumed_align=16), 0.5)
    torch.testing.assert_close(other, 0.5 * x + y)
    assert len(gpu.launches) == before + 5


@needs_atomics
def test_an_error_reaches_the_caller(gpu):
    """An index after the tensor: the report names the line of the kernel and the tensor."""
    x = torch.full((128,), 9_000_000, dtype=torch.int32)
    counts = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(EmulatorError) as caught:
        kernels.histogram(from_dlpack(x), from_dlpack(counts))
    assert caught.value.kind == "fault"
    report = str(caught.value)
    assert "dsl_kernels.py:" in report and "is in no tensor's allocation" in report
    assert "CTA (0, 0, 0), warp 0" in report and "atom" in report
    x.fill_(3)
    kernels.histogram(from_dlpack(x), from_dlpack(counts))  # the next launch is not affected
    assert counts.tolist() == [0, 0, 0, 128]


@needs_tvm_ffi
def test_tvm_ffi_functions_take_tensors_of_their_layout(gpu):
    """Extents and strides of 64 and 32 bits, static ones, and a stream that is left out."""
    n, m = cute.sym_int64() if hasattr(cute, "sym_int64") else cute.sym_int(64), cute.sym_int()
    fake = make_fake_compact_tensor(cutlass.Float32, (n, m, 4), stride_order=(2, 1, 0))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    compiled = cute.compile(fill, fake, stream, options="--enable-tvm-ffi")
    for shape in ((3, 5, 4), (2, 9, 4)):
        x = torch.zeros(shape, device="cuda")
        compiled(x)
        expected = torch.arange(x.numel(), dtype=torch.float32, device="cuda").reshape(shape)
        assert torch.equal(x[:, :, 1], expected[:, :, 1]) and (x[:, :, 0] == 0).all()
    compiled(x, cuda.CUstream(0))
    for wrong, words in (
        (torch.zeros(3, 5, 8, device="cuda"), r"x.shape\[2\] on argument #0, expected to be 4"),
        (torch.zeros(3, 5, device="cuda"), "Tensor on argument #0, expected ndim=3"),
        (torch.zeros(3, 5, 4).cuda().double(), "Tensor on argument #0, expected dtype="),
        (torch.zeros(3, 5, 4), "Tensor on argument #0, expected device_type=cuda"),
    ):
        with pytest.raises(ValueError, match=f"Mismatched {words}"):
            compiled(wrong)
    with pytest.raises(EmulatorError, match="export_to_c .* is not modelled"):
        compiled.export_to_c("fill.o", function_name="fill")


@cute.kernel
def fill_kernel(x: cute.Tensor):
    row, column, _ = cute.arch.block_idx()
    x[row, column, 1] = cutlass.Float32(row * x.stride[0] + column * x.stride[1] + 1)


@cute.jit
def fill(x: cute.Tensor, stream: cuda.CUstream):
    fill_kernel(x).launch(grid=(x.shape[0], x.shape[1], 1), block=(1, 1, 1), stream=stream)


@needs_tvm_ffi
def test_tvm_ffi_functions_take_addresses(gpu):
    """Of another tensor than the one at compilation, and above 32 bits."""
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    example = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, 16)
    compiled = cute.compile(fill_at, example, 3, stream, options="--enable-tvm-ffi")
    large, y = torch.zeros(1 << 24, device="cuda"), torch.zeros(4, device="cuda")
    x = large[:4]  # what is small may lie below
    assert x.data_ptr() > 2**32
    compiled(x.data_ptr(), 3)
    compiled(make_ptr(cutlass.Float32, y.data_ptr(), cute.AddressSpace.gmem, 16), 2)
    assert x.tolist() == [1, 2, 3, 0] and y.tolist() == [1, 2, 0, 0]


@cute.kernel
def fill_at_kernel(x: cute.Pointer):
    row, _, _ = cute.arch.block_idx()
    cute.make_tensor(x, cute.make_layout(4))[row] = cutlass.Float32(row + 1)


@cute.jit
def fill_at(x: cute.Pointer, n: cutlass.Int32, stream: cuda.CUstream):
    fill_at_kernel(x).launch(grid=(n, 1, 1), block=(1, 1, 1), stream=stream)


@cute.kernel
def add_to_kernel(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    row, _, _ = cute.arch.block_idx()
    column, _, _ = cute.arch.thread_idx()
    y[row, column] = x[row, column] + n


@cute.jit
def add_to(args: tuple, stream: cuda.CUstream):
    x, (y, n) = args
    add_to_kernel(x, y, n).launch(grid=(x.shape[0], 1, 1), block=(x.shape[1], 1, 1), stream=stream)


@needs_tvm_ffi
def test_tvm_ffi_functions_take_tuples(gpu):
    """Tensors of another shape and numbers inside of a tuple, which the TVM FFI looks into."""
    rows, columns = cute.sym_int(), cute.sym_int()
    x, y = (
        make_fake_compact_tensor(cutlass.Int32, (rows, columns), stride_order=(1, 0))
        for _ in range(2)
    )
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    compiled = cute.compile(add_to, (x, (y, cutlass.Int32(1))), stream, options="--enable-tvm-ffi")
    for shape, n in (((3, 8), 5), ((4, 2), -7)):
        x = torch.arange(shape[0] * shape[1], dtype=torch.int32, device="cuda").reshape(shape)
        y = torch.zeros(shape, dtype=torch.int32, device="cuda")
        compiled((x, (y, n)))
        assert torch.equal(y, x + n)
    with pytest.raises(ValueError, match=r"tuple size on args\[1\] in argument #0, expected .*=2"):
        compiled((x, (y,)))
    with pytest.raises(
        ValueError, match=r"args\[1\]\[0\].shape\[0\] .* match args\[0\].shape\[0\]"
    ):
        compiled((x, (torch.zeros(3, 2, dtype=torch.int32, device="cuda"), n)))


@cute.kernel
def mark_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    if thread == 0:
        x[cta] = cutlass.Int32(1)


@cute.jit
def mark(
    x: cute.Tensor, ctas: cutlass.Int32, threads: cutlass.Int32, cooperative: cutlass.Constexpr
):
    mark_kernel(x).launch(grid=(ctas, 1, 1), block=(threads, 1, 1), cooperative=cooperative)


@needs("cutlass.base_dsl.dsl:BaseDSL.LaunchConfig.cooperative")
@pytest.mark.parametrize(
    "ctas, threads, cooperative, code, reason",
    [
        # two CTAs of 1024 threads an SM, 148 SMs
        (297, 1024, True, 720, "a cooperative grid of 297 CTAs, 296 are resident at once"),
        (2, 1056, False, 9, "1056 threads a CTA, at most 1024"),
    ],
)
def test_a_refused_launch_raises_the_dsls_error(gpu, ctas, threads, cooperative, code, reason):
    """cudaErrorCooperativeLaunchTooLarge is 720, cudaErrorInvalidConfiguration 9."""
    from cutlass.base_dsl.common import DSLCudaRuntimeError

    x = torch.zeros(ctas, dtype=torch.int32)
    with pytest.raises(DSLCudaRuntimeError) as caught:
        mark(from_dlpack(x), ctas, threads, cooperative)
    assert caught.value.error_code == code
    assert isinstance(caught.value, EmulatorError) and caught.value.kind == "limit"
    assert str(caught.value).startswith(f"launch of mark_kernel refused: {reason}")
    assert not x.any()
    mark(from_dlpack(x), ctas - 1, 1024, cooperative)  # the next launch is not affected
    assert x.sum() == ctas - 1


def test_alignment_that_only_cuda_allocations_have(gpu):
    """256 bytes are declared; torch's CPU allocator promises 64."""
    tensors = [torch.zeros(512) for _ in range(8)]
    for t in tensors:
        kernels.scaled_sum(*(from_dlpack(x, assumed_align=256) for x in (t, t, t)), 1.0)
        make_ptr(cutlass.Float32, t.data_ptr(), cute.AddressSpace.gmem, assumed_align=256)
    with pytest.raises(Exception, match="align"):
        kernels.scaled_sum(*(from_dlpack(t[1:], assumed_align=256) for _ in range(3)), 1.0)


def test_a_process_without_emulation_is_untouched(fork_server):
    """The DSL without `install`: its engine is its own, and a launch needs a driver."""
    program = (
        "import b200, cutlass\n"
        "import cutlass._mlir.execution_engine as engines\n"
        "import cutlass.base_dsl.jit_executor as jit, cutlass.cute.runtime as runtime\n"
        "import torch\n"
        "graph = torch.cuda.CUDAGraph\n"
        "for thing in (engines.ExecutionEngine, jit.JitExecutor.run_compiled_program,\n"
        "              runtime._Tensor.__init__, graph):\n"
        "    assert not thing.__module__.startswith('b200'), thing\n"
        "    print(thing.__module__)\n"
    )
    done = fork_server.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4
