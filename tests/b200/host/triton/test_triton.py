"""Triton's kernels over the software B200: launches, what they find, autotuning, benchmarks."""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
import subprocess
import types
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")

import b200  # noqa: E402
from b200.host.cuda.fatbin import FRAME_SIZE, REGCOUNT, resources  # noqa: E402
from b200.host.runtime import Runtime  # noqa: E402
from b200.host.triton.backend import ptx_of, with_ptx  # noqa: E402

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@pytest.fixture(autouse=True)
def gpu():
    yield b200.install()
    b200.install()


@pytest.fixture(scope="module")
def kernels():
    b200.install()
    from tests.b200.host.triton import kernels

    return kernels


def line_of(kernels, mark: str) -> int:
    lines = Path(kernels.__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def operands(m: int, k: int, n: int):
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-4, 5, s, generator=generator).half() for s in ((m, k), (k, n)))
    return a.cuda(), b.cuda(), (a.double() @ b.double())


def cuda(n: int) -> torch.Tensor:
    return torch.linspace(-2, 2, n).cuda()


# --- launches


@pytest.mark.parametrize("n", [1000, 1024])
def test_elementwise_with_heuristics(kernels, gpu, n):
    x, y, out = torch.arange(float(n)).cuda(), torch.ones(n).cuda(), torch.empty(n, device="cuda")
    kernels.scaled_sum[(4,)](x, y, out, n, 2.5, B=256)
    assert torch.equal(out.cpu(), x.cpu() * 2.5 + y.cpu())
    launch = gpu.launches[-1]
    assert (launch.kernel, launch.grid, launch.block) == ("scaled_sum", (4, 1, 1), (128, 1, 1))
    assert launch.findings == []


def test_an_empty_grid_launches_nothing(kernels, gpu):
    before = len(gpu.launches)
    kernels.scaled_sum[(0,)](*(cuda(64) for _ in range(3)), 64, 1.0, B=64)
    assert len(gpu.launches) == before


def test_host_descriptors(kernels, gpu):
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, b, expected = operands(256, 128, 64)
    c = torch.empty(256, 64, device="cuda", dtype=torch.float16)
    blocks = zip((a, b, c), ([128, 64], [64, 64], [128, 64]))
    described = [TensorDescriptor.from_tensor(*each) for each in blocks]
    kernels.host_matmul[(2,)](*described, 128, 128, 64, 64)
    assert torch.equal(c.cpu().double(), expected.half().double())
    assert gpu.launches[-1].counters["tcgen05.mma"] and gpu.launches[-1].findings == []


def test_device_descriptors_and_warp_specialisation(kernels, gpu):
    asked = []

    def allocate(size, alignment, stream):
        asked.append((size, alignment, stream))
        return torch.empty(size, dtype=torch.int8, device="cuda")

    a, b, expected = operands(256, 192, 64)
    c = torch.empty(256, 64, device="cuda", dtype=torch.float16)
    triton.set_allocator(allocate)
    kernels.device_matmul[(2,)](a, b, c, 256, 64, 192, 128, 64, 64)
    assert torch.equal(c.cpu().double(), expected.half().double())
    assert gpu.launches[-1].block > (128, 1, 1) and gpu.launches[-1].findings == []
    ((size, alignment, stream),) = asked
    assert size >= 2 * 3 * 128 and alignment == 128 and stream == 0


def test_remarks_on_the_compilers_code_stand_apart(kernels, gpu, capsys):
    from b200.host.triton import remarks

    remarks._said.clear()
    a, b, expected = operands(128, 256, 64)
    c = torch.empty(128, 64, device="cuda")
    for _ in range(2):
        kernels.single_stage[(1,)](a, b, c, 256, 128, 64, 64)
    assert torch.equal(c.cpu().double(), expected)
    launch = gpu.launches[-1]
    assert launch.findings == []  # a stage that stores refill is no K-step that counts twice
    assert launch.of_compiler and {f.severity for f in launch.of_compiler} == {"portability"}
    said = [line for line in capsys.readouterr().err.splitlines() if "Triton's own code" in line]
    assert len(said) == len(set(said)) == len({f.diagnosis for f in launch.of_compiler})


def test_a_sum_that_goes_on_after_it_was_read(kernels, gpu):
    """Triton loads it from tensor memory in each turn, and its MMA accumulates there."""
    n, m, k = 3, 128, 32
    a = torch.randint(-2, 3, (n, m, k)).half()
    b = torch.randint(-2, 3, (n, k, m)).half()
    sums = torch.zeros(n + 1, m, m, device="cuda")
    kernels.running_sum[(1,)](a.cuda(), b.cuda(), sums, n, m, k)
    expected = torch.cumsum(torch.einsum("nij,njk->nik", a.double(), b.double()), 0)
    assert torch.equal(sums[1:].cpu().double(), expected)
    # Triton 3.6 puts no proxy fence between this loop's cp.async and its MMA, 3.8 does.
    assert [f for f in gpu.launches[-1].findings if f.kind != "proxy"] == []


def test_prints_atomics_inline_asm_and_libdevice(kernels, capfd):
    x, out = cuda(32), torch.zeros(34).cuda()
    kernels.many[(1,)](x, out, 32, 1.5, 32, num_warps=1)
    x, out = x.cpu(), out.cpu()
    assert out[1] == 2 and abs(out[0] - x.sum()) < 1e-5
    torch.testing.assert_close(out[2:], torch.sin(2 * x) + 1.5, atol=1e-6, rtol=0)
    printed = re.findall(r"pid \(0, 0, 0\) idx \( *(\d+)\) v: (\S+)", capfd.readouterr().out)
    assert [int(i) for i, _ in printed] == list(range(32))
    assert [float(v) for _, v in printed] == [round(float(v), 6) for v in x]


def test_clusters(kernels, gpu):
    x, y = cuda(512), torch.empty(512, device="cuda")
    try:
        kernels.whole_sum[(1,)](x, y, 512, num_ctas=2)
    except RuntimeError as error:  # Triton 3.6 cannot compile this reduction
        pytest.skip(str(error))
    assert gpu.launches[-1].cluster == (2, 1, 1) and gpu.launches[-1].grid == (2, 1, 1)
    torch.testing.assert_close(y.cpu(), x.cpu().sum() + torch.arange(512.0), atol=1e-4, rtol=0)


def test_tuples(kernels):
    x, out = cuda(64), torch.empty(64, device="cuda")
    kernels.nested[(1,)]((x, (3,)), out, 64)
    assert torch.equal(out.cpu(), x.cpu() + 3)


def test_functions_that_are_not_inlined(kernels):
    x, out = torch.arange(16.0).cuda(), torch.empty(16, device="cuda")
    kernels.calls[(16,)](x, out, 3.0)
    assert torch.equal(out.cpu(), 2 * (3 * torch.arange(16.0) + torch.arange(16.0)))


def test_a_reduction_whose_lanes_differ_in_the_last_bit(kernels, gpu):
    x = torch.rand(16, 128, generator=torch.Generator().manual_seed(0)).cuda()
    out = torch.zeros(16).cuda()
    kernels.sum_of_squares[(16,)](x, out, 128)
    torch.testing.assert_close(out.cpu(), x.cpu().square().sum(1), rtol=1e-6, atol=0)
    launch = gpu.launches[-1]
    assert launch.findings == []
    if triton.__version__ >= "3.8":  # before that, one lane stores
        assert "write different values to one address" in launch.of_compiler[0].diagnosis


def test_it_is_the_compilers_in_a_launch_that_does_not_end_too(kernels, gpu):
    x = torch.rand(16, 128, generator=torch.Generator().manual_seed(0)).cuda()
    out = torch.zeros(8).cuda()  # CTA 8 stores beyond it
    with pytest.raises(b200.EmulatorError) as caught:
        kernels.sum_of_squares[(16,)](x, out, 128)
    assert not caught.value.findings and "different values" not in str(caught.value)


def test_warps_that_hold_the_same_elements_update_them_in_place(kernels, gpu):
    """32 elements fill one of four warps, the others are its replicas."""
    x = torch.arange(32.0).cuda()
    kernels.in_place[(1,)](x, 32)
    assert torch.equal(x.cpu(), torch.arange(1.0, 33))
    assert gpu.launches[-1].findings == []


def test_a_store_to_what_another_warp_loads_is_a_race(kernels, gpu):
    x = torch.arange(128.0).cuda()
    kernels.shifted[(1,)](x, 64, 128)
    (finding,) = gpu.launches[-1].findings
    assert finding.kind == "global" and "another warp writes" in finding.diagnosis
    assert finding.other.endswith(f"kernels.py:{line_of(kernels, 'elsewhere')}")


def test_dependent_launches(kernels, monkeypatch):
    args, launched = (cuda(64), cuda(64), cuda(64), 64, 1.0), []
    monkeypatch.setattr(Runtime, "launch", lambda _self, launch, _queue: launched.append(launch))
    kernels.scaled_sum[(1,)](*args, B=64, launch_pdl=True)
    kernels.scaled_sum[(1,)](*args, B=64)
    assert [launch.shape.dependent for launch in launched] == [True, False]


# --- what goes wrong


def test_a_fault_names_the_line(kernels):
    with pytest.raises(b200.EmulatorError) as caught:
        kernels.beyond[(1,)](cuda(64), cuda(64), 64)
    assert f"kernels.py:{line_of(kernels, 'beyond the tensor')}" in str(caught.value)
    assert "is in no tensor's allocation" in str(caught.value)


def test_an_assertion_names_its_line_and_text(kernels, capsys):
    """It has CUDA's words, which programs look for, and is printed as by the driver."""
    with pytest.raises(b200.EmulatorError, match="too small") as caught:
        kernels.asserts[(1,)](cuda(1), debug=True)
    assert f"kernels.py:{line_of(kernels, 'the assertion')}" in str(caught.value)
    assert str(caught.value).endswith("CUDA error: device-side assert triggered")
    assert "assertion `too small` failed" in capsys.readouterr().err


@pytest.mark.parametrize("is_child", [False, True])
def test_a_process_of_the_programs_own_prints_no_remarks(kernels, capsys, monkeypatch, is_child):
    """Its program may read what it prints."""
    from b200.host.triton import remarks

    finding = types.SimpleNamespace(diagnosis="a matrix descriptor has version 0", loc="a.py:1")
    monkeypatch.setattr(remarks, "_said", set())
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: is_child or None)
    remarks._say(finding)
    assert capsys.readouterr().err.startswith("b200: Triton's own code") != is_child


def test_a_tensor_in_host_memory_is_refused_as_triton_does(kernels):
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        kernels.scaled_sum[(1,)](torch.ones(64), cuda(64), cuda(64), 64, 1.0, B=64)


def test_machine_code_without_ptx_is_refused(kernels):
    compiled = kernels.scaled_sum.fn.warmup(
        cuda(64), cuda(64), cuda(64), 64, 1.0, B=64, EVEN=True, grid=(1,)
    )
    code = compiled.asm["cubin"]
    bare = code[: code.index(b".version") - 64]
    utils = triton.runtime.driver.active.utils
    with pytest.raises(b200.EmulatorError, match="before b200.install"):
        utils.load_binary("scaled_sum", bare, 0, 0)


# --- what was compiled


def test_machine_code_keeps_its_ptx(kernels):
    assert ptx_of(with_ptx(b"\x7fELF", ".version 8.8")) == ".version 8.8"
    x = cuda(64)
    compiled = kernels.scaled_sum[(1,)](x, x, cuda(64), 64, 1.0, B=64)
    assert ptx_of(compiled.asm["cubin"]) == compiled.asm["ptx"]


def test_code_in_the_cache_is_of_the_folder_at_hand(tmp_path, monkeypatch):
    """Its PTX names files by their paths, and Triton's own key has the text of a kernel only."""
    from triton.compiler import make_backend

    backend = make_backend(triton.runtime.driver.active.get_current_target())
    here, others = backend.hash(), []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        others.append(backend.hash())
    assert len({here, *others}) == 3 and backend.hash() == others[-1]


RACE = """
import triton, triton.language as tl
@triton.jit
def twice(x): tl.store(x, tl.program_id(0).to(tl.float32))
"""


def test_lines_are_of_the_file_that_ran(tmp_path, monkeypatch, gpu):
    """Triton's cache has the kernel of another file of the folder, with the same text."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    places = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.py"
        file.write_text(RACE)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.twice[(2,)](cuda(1))
        places += [finding.loc for finding in gpu.launches[-1].findings]
    assert places == [f"{tmp_path}/one.py:4", f"{tmp_path}/two.py:4"]


@pytest.mark.skipif(not (BIN / "cuobjdump").exists(), reason="Triton brings no cuobjdump")
def test_registers_are_those_that_cuobjdump_tells(kernels, tmp_path):
    x = cuda(64)
    code = kernels.scaled_sum[(1,)](x, x, cuda(64), 64, 1.0, B=64).asm["cubin"]
    file = tmp_path / "kernel.cubin"
    file.write_bytes(code)
    command = [str(BIN / "cuobjdump"), "-res-usage", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()
    (found,) = resources(code).values()
    assert found == {REGCOUNT: int(registers), FRAME_SIZE: int(stack)}


# --- times


def test_autotuning_without_times_takes_the_first(kernels, gpu, capsys):
    from b200.host.triton import benchmark

    benchmark._say.cache_clear()
    kernels.tuned.cache.clear()
    x = torch.empty(300, device="cuda")
    before = len(gpu.launches)
    kernels.tuned[lambda meta: (triton.cdiv(300, meta["B"]),)](x, 300)
    assert kernels.tuned.best_config.kwargs == {"B": 64}
    assert len(gpu.launches) - before == 3  # each configuration once, then the call
    assert torch.equal(x.cpu(), torch.arange(300.0))
    assert "takes the first" in capsys.readouterr().err


def test_autotuning_with_times_takes_the_fastest(kernels):
    gpu = b200.install(timing=True)
    kernels.tuned.cache.clear()
    n = 4096
    x = torch.empty(n, device="cuda")
    kernels.tuned[lambda meta: (triton.cdiv(n, meta["B"]),)](x, n)
    first, second = (launch.time.time_us for launch in gpu.launches[-3:-1])
    assert kernels.tuned.best_config.kwargs == {"B": 64 if first <= second else 256}
    assert first != second


def test_do_bench(kernels):
    gpu = b200.install(timing=True)
    x = cuda(64)
    out = torch.empty(64, device="cuda")
    calls = []

    def call():
        calls.append(kernels.scaled_sum[(1,)](x, x, out, 64, 1.0, B=64))

    ms = triton.testing.do_bench(call)
    assert len(calls) == 1 and ms > gpu.launches[-1].time.time_us / 1e3 > 0
    assert triton.testing.do_bench(call, quantiles=[0.5, 0.2, 0.8]) == pytest.approx([ms] * 3)
    assert triton.testing.do_bench_cudagraph(call, return_mode="all") == pytest.approx([ms])


def test_a_sweep_is_passed_over_without_times(capsys):
    from b200.host.triton import benchmark

    benchmark._say.cache_clear()
    triton.testing.perf_report([])(lambda: None).run(print_data=True)
    assert "passed over" in capsys.readouterr().err


def test_cublas(kernels):
    cublas = triton._C.libtriton.nvidia.cublas.CublasLt(torch.empty(1))
    a, b, expected = operands(32, 64, 16)
    c = torch.empty(32, 16, dtype=torch.float16).cuda()
    cublas.matmul(a, b.T.contiguous(), c)
    assert torch.equal(c.cpu().double(), expected)
    with pytest.raises(b200.EmulatorError, match="nvfp4"):
        cublas.block_scaled_matmul_nvfp4(a, b, c, a, b)
