"""torch programs that believe in a GPU: tensors, torch.cuda, cuda-python, workers."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

import b200
from b200.errors import EmulatorError
from tests.b200.ptx_support import kernel as ptx_kernel

GPU = torch.device("cuda", 0)
CODES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)  # of e2m1, OCP MX 1.0


@pytest.fixture(autouse=True)
def gpu():
    return b200.install()


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


MAKERS = {
    "device=": lambda: torch.empty(3, device="cuda"),
    "device=cuda:0": lambda: torch.zeros(3, device="cuda:0"),
    "device=0": lambda: torch.arange(3, device=0),
    "torch.device": lambda: torch.full((3,), 2, device=torch.device("cuda")),
    "tensor": lambda: torch.tensor([1, 2], device="cuda"),
    "as_tensor": lambda: torch.as_tensor([1, 2], device=torch.device("cuda")),
    "zeros_like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "new_empty": lambda: torch.ones(2).new_empty(3, device="cuda"),
    "randint": lambda: torch.randint(0, 9, (2, 2), dtype=torch.uint8, device="cuda"),
    ".cuda()": lambda: torch.ones(2).cuda(),
    ".to": lambda: torch.ones(2).to("cuda", torch.float16),
    ".to(device=)": lambda: torch.ones(2).to(device="cuda", non_blocking=True),
    ".to(other)": lambda: torch.ones(2).to(on_gpu(1)),
    "view": lambda: on_gpu(4).view(torch.float8_e4m3fn).view(4, 4).permute(1, 0)[:2],
    "arithmetic": lambda: on_gpu(2) + torch.ones(2),
    "cat": lambda: torch.cat([on_gpu(2), on_gpu(2)]),
    "max": lambda: torch.max(on_gpu(2, 2), 0).values,
    "iteration": lambda: next(iter(on_gpu(2, 2))),
    "in place": lambda: on_gpu(2).fill_(3),
    "pickle": lambda: pickle.loads(pickle.dumps(on_gpu(2))),
    "deepcopy": lambda: copy.deepcopy(on_gpu(2)),
    "detach": lambda: on_gpu(2).detach().clone().contiguous(),
    "module": lambda: torch.nn.Linear(2, 2).cuda().weight,
    "new module": lambda: torch.nn.Linear(2, 2, device="cuda")(on_gpu(1, 2)),
    "dlpack": lambda: torch.from_dlpack(on_gpu(2)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_says_cuda(make):
    tensor = make()
    assert (tensor.device, tensor.is_cuda, tensor.is_cpu) == (GPU, True, False)
    assert tensor.device.type == "cuda" and tensor.get_device() == 0
    assert "device='cuda:0'" in repr(tensor)


LEAVERS = {
    ".cpu()": lambda t: t.cpu(),
    ".to": lambda t: t.to("cpu"),
    ".to(other)": lambda t: t.to(torch.ones(1)),
    "new_zeros": lambda t: t.new_zeros(3, device="cpu"),
    "like": lambda t: torch.empty_like(t, device="cpu"),
    "copy_": lambda t: torch.zeros(3).copy_(t),
}


@pytest.mark.parametrize("leave", LEAVERS.values(), ids=LEAVERS)
def test_says_cpu(leave):
    tensor = leave(on_gpu(3))
    assert tensor.device.type == "cpu" and not tensor.is_cuda and type(tensor) is torch.Tensor


def test_a_move_is_a_copy():
    host = torch.zeros(3)
    device = host.cuda()
    back = device.cpu()
    device.fill_(1)
    assert (host.sum(), back.sum(), device.sum()) == (0, 0, 3)
    assert device.cuda() is device and device.to("cuda") is device


def test_prints_as_on_a_gpu():
    assert repr(torch.zeros(2, dtype=torch.int32, device="cuda")) == (
        "tensor([0, 0], device='cuda:0', dtype=torch.int32)"
    )
    assert repr(torch.tensor(2.5, device="cuda")) == "tensor(2.5000, device='cuda:0')"
    leaf = torch.ones(1, device="cuda", requires_grad=True)
    assert repr(leaf) == "tensor([1.], device='cuda:0', requires_grad=True)"
    assert f"{torch.tensor(2.5, device='cuda'):.3f}" == "2.500"


def test_gradients():
    x = torch.arange(3.0, device="cuda", requires_grad=True)
    (x * x).sum().backward()
    assert x.is_leaf and x.grad.device == GPU and x.grad.tolist() == [0, 2, 4]


def test_a_default_device_of_cuda():
    with torch.device("cuda"):
        assert torch.ones(2).device == GPU and torch.ones(2, device="cpu").device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"


def test_threads_see_the_gpu():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.ones(2, device="cuda").device))
    thread.start()
    thread.join()
    assert seen == [GPU]


def test_what_a_gpu_refuses_is_refused():
    with pytest.raises(TypeError, match="Use Tensor.cpu"):
        on_gpu(2).numpy()
    with pytest.raises(RuntimeError, match="invalid device ordinal: cuda:3"):
        torch.zeros(2, device="cuda:3")
    with pytest.raises(EmulatorError, match="torch.cuda.utilization is not in the software B200"):
        torch.cuda.utilization()


def test_a_huge_tensor_takes_no_memory(capfd):
    assert torch.zeros(20_000_000_000, device="cuda")[-1] == 0
    assert torch.randn((16000, 1024, 1024), device="cuda").shape == (16000, 1024, 1024)
    assert "62.5 GiB on cuda is left as zeros" in capfd.readouterr().err


def test_the_device_is_a_b200():
    properties = torch.cuda.get_device_properties("cuda")
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (10, 0) == (properties.major, properties.minor)
    assert properties.multi_processor_count == 148 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name(0) == properties.name == "NVIDIA B200"


def test_memory_is_counted():
    torch.cuda.reset_peak_memory_stats()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    held = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    view = held[5:]
    del held
    assert torch.cuda.memory_allocated() - before == 1 << 20
    assert free - torch.cuda.mem_get_info()[0] == 1 << 20
    del view
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 1 << 20


def test_seeds():
    generator = torch.Generator("cuda").manual_seed(3)
    first = torch.rand(4, generator=generator, device="cuda")
    assert generator.device == GPU and isinstance(generator, torch.Generator)
    assert first.equal(
        torch.rand(4, generator=torch.Generator("cuda").manual_seed(3), device="cuda")
    )
    torch.cuda.manual_seed(5)
    first = torch.rand(4, device="cuda")
    torch.manual_seed(5)
    assert first.equal(torch.rand(4, device="cuda"))


def test_what_names_no_device_is_the_current_one():
    """torch.cuda._utils._get_device_index goes on with the current device for a queue."""
    torch.cuda.synchronize(torch.cuda.Stream())
    assert torch.cuda.current_stream(torch.cuda.Event()) == torch.cuda.current_stream()
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.synchronize(torch.device("cpu"))


EMPTY = ptx_kernel("", [])


def between_events(work) -> float:
    """Microseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(torch.cuda.Stream()):
        start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def test_time_between_events_is_modelled_where_launches_take_time():
    timed = b200.install(timing=True)
    launch = lambda: timed.launch(EMPTY, None, (1, 1, 1), (32, 1, 1))  # noqa: E731
    once, twice = between_events(launch), between_events(lambda: (launch(), launch()))
    # b200/clock/constants.toml: an event pair around one empty kernel, and the gap between kernels
    assert 4 < once < 8 and 1 < twice - once < 4


def test_scaled_mm_of_nvfp4():
    """Against sums of Python's own fractions: codes and scales from the tables of the standards."""
    rng = np.random.default_rng(1)
    m, n, k = 130, 32, 192
    a, b = (rng.integers(0, 256, (rows, k // 2), dtype=np.uint8) for rows in (m, n))
    sfa, sfb = (rng.integers(0, 120, (rows, k // 16), dtype=np.uint8) for rows in (m, n))

    def values(codes, scales):
        nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
        exponent, mantissa = scales >> 3, scales & 7
        normal = (1 + mantissa / 8) * 2.0 ** (exponent.astype(int) - 7)
        scale = np.where(exponent > 0, normal, mantissa / 8 * 2.0**-6)
        return np.array(CODES)[nibbles] * np.repeat(scale, 16, axis=1)

    def atoms(scales):
        stored = np.full((-(-len(scales) // 128), k // 64, 32, 4, 4), 99, np.uint8)
        for row in range(len(scales)):
            for column in range(k // 16):
                place = (row // 128, column // 4, row % 32, row % 128 // 32, column % 4)
                stored[place] = scales[row, column]
        return torch.from_numpy(stored).cuda().view(torch.float8_e4m3fn).flatten()

    fp4 = [torch.from_numpy(x).cuda().view(torch.float4_e2m1fn_x2) for x in (a, b)]
    got = torch._scaled_mm(
        fp4[0], fp4[1].t(), atoms(sfa), atoms(sfb), bias=None, out_dtype=torch.float32
    )
    want = (values(a, sfa) @ values(b, sfb).T).astype(np.float32)
    assert got.device == GPU and np.array_equal(got.cpu().numpy(), want)
    with pytest.raises(ValueError, match="scale_a is .*; expected float8_e4m3fn with 3072, 2 x 3"):
        torch._scaled_mm(fp4[0], fp4[1].t(), atoms(sfb), atoms(sfb), out_dtype=torch.float16)


def test_the_dsl_knows_the_hardware():
    import cutlass.torch
    from cutlass.utils import HardwareInfo

    info = HardwareInfo()
    # NCU1: 33 of 4; QuickRunCUDA's I8: on a B300 the 16th cluster of 8 shares SMs with the first
    assert [info.get_max_active_clusters(n) for n in (1, 2, 4, 8)] == [148, 74, 33, 15]
    assert info.get_device_multiprocessor_count() == 148
    assert int(cutlass.torch.default_stream()) == 0


def test_kernels_take_tensors_that_say_cuda(gpu):
    text = ptx_kernel(
        "ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4;"
        " add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1;",
        [".u64 to"],
    )
    to = torch.zeros(32, dtype=torch.int32, device="cuda")
    gpu.launch(text, None, (1, 1, 1), (32, 1, 1), args=[to])
    assert to.tolist() == list(range(32)) and not gpu.launches[-1].findings


WORKERS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import torch

def work(tensor):
    assert torch.cuda.is_available()
    return tensor + torch.ones(2, device="cuda"), device_of(tensor)

def device_of(tensor):
    return str(tensor.device)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            total, device = pool.submit(work, torch.ones(2, device="cuda")).result()
            print(method, total.tolist(), total.device, device)
"""


def test_workers(tmp_path, fork_server):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = fork_server.run("-m", "b200", "run", str(script))
    assert done.stdout.splitlines() == [
        f"{method} [2.0, 2.0] cuda:0 cuda:0" for method in ("fork", "spawn", "forkserver")
    ], done.stderr


def test_files_that_a_script_leaves_open_are_written(tmp_path, fork_server):
    """As with `python SCRIPT`; a function keeps the script's names, the file among them, alive."""
    script, out = tmp_path / "leaves.py", tmp_path / "out.txt"
    script.write_text(
        "import sys\n"
        "def work(): pass\n"
        "out = open(sys.argv[1], 'w')\n"
        "print('said', file=out)\n"
        "sys.exit(3)\n"
    )
    done = fork_server.run("-m", "b200", "run", "--no-again", str(script), str(out))
    assert done.returncode == 3 and out.read_text() == "said\n"


def test_work_on_memory_of_which_a_freed_tensor_held_the_beginning():
    """Tensors with gaps and tensors without: the whole of what they span is looked for."""
    gpu = b200.install()
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(8, 8, device="cuda")
        gpu.memory.register(x.data_ptr(), 4, "a tensor that was freed")
        x.t().mul_(2)
        gpu.memory.register(x.data_ptr(), 4, "a tensor that was freed")
        x.mul_(2)
    torch.cuda.synchronize()
    assert x.cpu().eq(4).all()
