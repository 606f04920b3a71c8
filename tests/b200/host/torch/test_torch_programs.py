"""What programs do with torch on a GPU beside kernels: allocations, autograd, operators of their
own, torch.compile, the profiler.
"""

from __future__ import annotations

import ctypes

import pytest
import torch

import b200
from b200.host.torch.aligned_storage import ALIGNMENT

SIZES = (1, 3, 64, 100, 1 << 10, 1 << 18, (1 << 20) + 1)


@pytest.fixture(autouse=True)
def gpu():
    return b200.install()


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# --- allocations
MAKERS = {
    "empty": lambda n: torch.empty(n, device="cuda"),
    "zeros": lambda n: torch.zeros(n, dtype=torch.uint8, device="cuda"),
    "randn": lambda n: torch.randn(n, device="cuda"),
    "cuda()": lambda n: torch.ones(n).cuda(),
    "to another type": lambda n: torch.ones(n, device="cuda").to(torch.float16),
    "arithmetic": lambda n: torch.ones(n, device="cuda") * 2,
    "like": lambda n: torch.empty_like(torch.ones(n, device="cuda")),
    "numpy": lambda n: torch.as_tensor(torch.ones(n).numpy(), device="cuda"),
    "clone": lambda n: torch.ones(2 * n, device="cuda")[n:].clone(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_allocations_begin_at_multiples_of_512(make):
    kept = [make(n) for n in SIZES for _ in range(3)]
    assert [address(t) % ALIGNMENT for t in kept] == [0] * len(kept)


def test_a_tensor_that_grows_stays_aligned():
    kept = [torch.zeros(n, device="cuda").resize_(n + 1000) for n in SIZES]
    into = [torch.zeros(0, device="cuda") for _ in SIZES]
    for n, out in zip(SIZES, into, strict=True):
        torch.add(torch.ones(n, device="cuda"), 1, out=out)
    assert all(address(t) % ALIGNMENT == 0 for t in kept + into)
    assert all(bool((out == 2).all()) for out in into)


@pytest.mark.parametrize("n", SIZES)
def test_contents_survive_the_move(n):
    host = torch.arange(n, dtype=torch.int32)
    device = host.cuda()
    assert device.cpu().equal(host) and (device + 1).cpu().equal(host + 1)
    assert address(host) != address(device)


def test_views_share_the_memory_that_was_moved():
    parts = torch.ones(6, device="cuda").split(2)
    parts[1].fill_(5)
    assert torch.cat(parts).tolist() == [1, 1, 5, 5, 1, 1]
    assert len({address(part) for part in parts}) == 1


def test_moved_memory_is_given_back(fork_server):
    """A process whose address space ends soon."""
    program = """
import resource, torch, b200
torch.set_num_threads(1)  # each takes room for a stack and a heap of its own
b200.install()
torch.zeros(1, device="cuda")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
for _ in range(12):
    tensor = torch.ones(50 << 20, dtype=torch.uint8, device="cuda")
print("done")
"""
    done = fork_server.run("-c", program)
    assert done.stdout == "done\n", done.stderr


def test_memory_that_is_not_torchs_stays_where_it_is():
    host = torch.ones(100)
    numbers = host.numpy()
    seen = host.view_as(torch.ones(100, device="cuda"))  # a view of host memory
    assert not seen.is_cuda and address(seen) == numbers.ctypes.data
    numbers[3] = 7
    assert host[3] == 7


# --- autograd
class Scaled(torch.autograd.Function):
    """Notes what backward sees."""

    seen: list = []

    @staticmethod
    def forward(ctx, x, factor):
        y = x * factor
        ctx.save_for_backward(x, y, factor)
        return y, factor.clone()

    @staticmethod
    def backward(ctx, grad, grad_factor):
        Scaled.seen.append([t.device.type for t in (grad, grad_factor, *ctx.saved_tensors)])
        return grad * ctx.saved_tensors[2], None


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_backward_sees_the_device_of_forward(device):
    Scaled.seen.clear()
    x = torch.ones(4, device=device, requires_grad=True)
    y, _ = Scaled.apply(x, torch.full((4,), 3.0, device=device))
    (y.exp() * 2).sum().backward()
    assert Scaled.seen == [[device] * 5]
    assert x.grad is not None and x.grad.device.type == device
    assert torch.allclose(x.grad.cpu(), 6 * torch.full((4,), 3.0).exp())


def test_hooks_see_the_device():
    seen = []
    x = torch.ones(2, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: seen.append(grad.device.type))
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.device.type))
    (x * x).sum().backward()
    assert seen == ["cuda", "cuda"]


def test_a_tensor_that_needs_a_gradient_is_not_exported():
    x = torch.ones(2, device="cuda", requires_grad=True)
    with torch.no_grad(), pytest.raises(BufferError, match="require gradient"):
        x.__dlpack__()
    assert torch.from_dlpack(x.detach()).is_cuda


def test_what_is_exported_says_cuda_to_compiled_code():
    """As apache-tvm-ffi asks: for the class's C interface first, then for a capsule."""
    x = torch.ones(2, device="cuda")
    assert not hasattr(type(x), "__dlpack_c_exchange_api__")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for tensor, device in ((x, 2), (torch.ones(2), 1)):
        capsule = torch.utils.dlpack.to_dlpack(tensor)
        assert ctypes.c_int32.from_address(get(capsule, b"dltensor") + 8).value == device


# --- torch.library
# It lives as long as the process: torch 2.9's inductor asks for every operator it has ever seen.
DEVICES = torch.library.Library("b200_devices", "DEF")


def test_an_operator_with_a_kernel_for_each_device():
    DEVICES.define("where(Tensor x) -> Tensor")
    DEVICES.impl("where", lambda x: x + (10 if x.is_cuda else 20), "CUDA")
    DEVICES.impl("where", lambda x: x + (30 if x.is_cuda else 40), "CPU")
    found = torch.ops.b200_devices.where(torch.zeros(1, device="cuda"))
    assert found.is_cuda and found.item() == 10
    found = torch.ops.b200_devices.where(torch.zeros(1))
    assert not found.is_cuda and found.item() == 40


def test_an_operator_without_a_kernel_for_the_cpu():
    @torch.library.custom_op("b200_only::half", mutates_args=(), device_types="cuda")
    def half(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x / 2

    assert half(torch.ones(2, device="cuda")).is_cuda
    with pytest.raises(NotImplementedError, match="b200_only::half.*'CPU' backend"):
        half(torch.ones(2))


def test_gradients_of_an_operator():
    @torch.library.custom_op("b200_grad::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    devices = []

    def save(ctx, inputs, output):
        devices.extend(t.device.type for t in (*inputs, output))
        ctx.save_for_backward(*inputs)

    def gradient(ctx, grad):
        devices.extend(t.device.type for t in (grad, *ctx.saved_tensors))
        return 2 * grad * ctx.saved_tensors[0]

    square.register_autograd(gradient, setup_context=save)
    x = torch.tensor([3.0], device="cuda", requires_grad=True)
    square(x).sum().backward()
    assert devices == ["cuda"] * 4
    assert x.grad is not None and x.grad.tolist() == [6]


# --- the compiler and the profiler
def test_a_compiled_function_is_right():
    @torch.compile(fullgraph=True)
    def shifted(x):
        return x * 2 + 1

    found = shifted(torch.ones(3, device="cuda"))
    assert found.is_cuda and found.tolist() == [3, 3, 3]


@pytest.mark.parametrize("activities", [("CUDA",), ("CPU", "CUDA"), ("CPU",)])
def test_a_profile_is_taken(activities):
    from torch.profiler import ProfilerActivity, profile

    chosen = [getattr(ProfilerActivity, name) for name in activities]
    with profile(activities=chosen) as taken:
        torch.ones(8, device="cuda").mul(2)
    assert any(event.key == "aten::mul" for event in taken.key_averages())


def test_a_context_of_a_queue_is_a_type():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    assert isinstance(torch.cuda.stream(first), torch.cuda.StreamContext)
    with torch.cuda.stream(first):
        with torch.cuda.stream(None), torch.cuda.stream(second):
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


# --- kernels behind torch's own operators
def test_kernels_of_a_library_take_the_place_of_torchs_on_the_gpu(capsys):
    called = []

    def product(a, b):
        called.append(("mm", a.is_cuda and b.is_cuda))
        return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)

    def ones(size, *, dtype=None, layout=None, device=None, pin_memory=None):
        called.append(("ones", device == torch.device("cuda", 0)))
        return torch.zeros(size, dtype=dtype, device=device).fill_(1)

    def plus(x, y, *, alpha=1):
        called.append(("add", x.is_cuda))
        return torch.sub(x, y, alpha=-alpha)

    library = torch.library.Library("aten", "IMPL")
    library.impl("neg", lambda x: (called.append(("neg", x.is_cuda)), x * -1)[1], "CUDA")
    library.impl("aten::mm", product, "CUDA")
    library.impl(torch.ops.aten.ones.default, ones, "CUDA")
    library.impl("add.Tensor", plus, "CUDA")
    library.impl("softmax.int", torch.zeros_like, "CUDA")
    assert "aten::softmax.int on CUDA is not called" in capsys.readouterr().err
    try:
        x = torch.arange(4.0, device="cuda", requires_grad=True)
        (-x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [-1] * 4
        w, a = torch.randn(3, 4, device="cuda"), torch.randn(2, 4, device="cuda")
        assert torch.allclose(torch.nn.functional.linear(a, w).cpu(), a.cpu() @ w.cpu().t())
        assert torch.ones(2, device="cuda").tolist() == [1, 1]
        assert (w + 1).is_cuda and called[-1] == ("add", True)
        assert (-torch.ones(2)).tolist() == [-1, -1]  # of the CPU: torch's own
        names = [name for name, _ in called]
        assert all(on_gpu for _, on_gpu in called)
        assert (names.count("mm"), names.count("ones")) == (1, 1)
        before = len(called)
    finally:
        library._destroy()
    assert (-torch.ones(2, device="cuda")).tolist() == [-1, -1] and len(called) == before


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"])
def test_products_with_a_wider_result(name):
    """bf16 itself would keep 8 bits of the sums."""
    shape = (2,) if "b" in name.removeprefix("addmm") else ()
    a, b = (torch.randn(*shape, 8, 8).bfloat16() for _ in range(2))
    c = [torch.randn(*shape, 8, 8)] if "add" in name else []
    wanted = (a.double() @ b.double() + sum(c)).float()
    given = [t.cuda() for t in (*c, a, b)]
    found = getattr(torch, name)(*given, out_dtype=torch.float32)
    assert found.is_cuda and found.dtype == torch.float32
    assert torch.allclose(found.cpu(), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="out_dtype must be the same"):
        getattr(torch, name)(*given, out_dtype=torch.float64)
