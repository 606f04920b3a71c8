"""CUDA graphs of torch with torch's own operations: a replay gives what the same calls give now."""

# torch's names are replaced by the software B200's, which torch's types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import copy
import gc

import pytest
import torch

import b200
from b200.chip.launch import Shape
from b200.host.captures import KernelWork
from tests.b200.ptx_support import kernel, own_element


@pytest.fixture(autouse=True)
def gpu():
    return b200.install()


def captured(function):
    """A graph of a function, and what it has returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def out_of_nothing(x):
    out = torch.empty(0, device="cuda")
    torch.mul(x, 3, out=out)
    return out


HOST = torch.arange(8.0)
FUNCTIONS = {
    "chain": lambda x: torch.relu(x - 2).view(2, -1).t().contiguous(),
    "made and changed": lambda x: torch.zeros_like(x).add_(x).mul_(x),
    "from nothing": lambda x: torch.arange(8.0, device="cuda") + x,
    "from the host": lambda x: HOST.to("cuda", non_blocking=True) * x,
    "to the host": lambda x: (x + 1).to("cpu", non_blocking=True),
    "out=": out_of_nothing,
    "several results": lambda x: torch.cat(torch.topk(x.flip(0).view(2, 4), 2)[:1]),
    "indexed": lambda x: torch.zeros(8, device="cuda").index_add_(
        0, torch.arange(8, device="cuda"), x
    ),
    "list": lambda x: torch._foreach_add([x, x * 2], 1)[1],
    "matmul": lambda x: x.view(2, 4) @ x.view(4, 2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_replay_computes_with_the_values_of_now(function):
    x = torch.arange(8, dtype=torch.float32, device="cuda")
    graph, result = captured(lambda: function(x))
    for seed in range(2):
        x.copy_(torch.randn(8, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert torch.equal(result.cpu(), function(x).cpu())


def test_a_capture_changes_nothing_and_each_replay_does():
    total, x = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    graph, _ = captured(lambda: total.add_(x))
    assert total.tolist() == [0] * 4
    graph.replay()
    graph.replay()
    assert total.tolist() == [2] * 4


def test_work_of_other_queues_is_done_at_once():
    x, aside = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def function():
        with torch.cuda.stream(aside):
            x.mul_(5)
        return x + 1

    graph, result = captured(function)
    assert x.tolist() == [5] * 4
    x.zero_()
    graph.replay()
    assert (x.tolist(), result.tolist()) == ([0] * 4, [1] * 4)


def test_a_temporary_lives_as_long_as_the_graph(gpu):
    """A kernel writes to memory that nobody holds any more, and another reads it there."""
    text = kernel(
        own_element(4)
        + "ld.param.u64 %rd4, [to]; add.u64 %rd5, %rd4, %rd2; ld.global.u32 %r5, [%rd3];"
        " add.u32 %r5, %r5, 1; st.global.u32 [%rd5], %r5;",
        [".u64 out", ".u64 to"],
    )
    program = gpu.load(text)

    def launch(source, to):
        pointers = source.data_ptr().to_bytes(8, "little") + to.data_ptr().to_bytes(8, "little")
        runtime = torch.cuda.Stream.queues.follows.__self__  # what front ends launch by
        queue = torch.cuda.current_stream().cuda_stream
        shape = Shape((1, 1, 1), (32, 1, 1), (1, 1, 1), 0)
        runtime.launch(KernelWork(program, "k", shape, pointers), queue)

    x = torch.zeros(32, dtype=torch.int32, device="cuda")
    y = torch.zeros_like(x)
    gc.collect()
    before = torch.cuda.memory_allocated()

    def function():
        between = torch.empty_like(x)
        launch(x, between)
        launch(between, y)

    graph, _ = captured(function)
    gc.collect()
    others = [torch.zeros(32, device="cuda") for _ in range(8)]
    x.fill_(10)
    graph.replay()
    assert y.tolist() == [12] * 32 and not any(bool(t.any()) for t in others)
    assert torch.cuda.memory_allocated() > before + 8 * 128
    del others
    graph.reset()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0]),
        lambda x: x.cpu(),
        lambda x: torch.ones(4).cuda(),
        lambda x: torch.cuda.synchronize(),
    ],
    ids=["item", "bool", "cpu", "cuda", "synchronize"],
)
def test_the_host_cannot_wait_for_a_capture(wait):
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        captured(lambda: wait(x))
    assert x.sum().item() == 4 and not torch.cuda.is_current_stream_capturing()


def test_capture_begin_and_end_on_a_queue_of_ones_own():
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="must be captured on a non-default"):
        graph.capture_begin()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(pool=torch.cuda.graph_pool_handle())
        y = x * 2
        graph.capture_end()
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [8] * 4


def test_a_training_step_is_replayed():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = model.cuda()
    other = copy.deepcopy(model)
    assert [type(p) for p in other.parameters()] == [type(p) for p in model.parameters()]
    assert isinstance(next(other.parameters()), torch.nn.Parameter)
    x, y = torch.randn(16, 4, device="cuda"), torch.randn(16, 1, device="cuda")

    def stepping(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

        return step

    graph, _ = captured(stepping(model))
    eager = stepping(other)
    for _ in range(3):
        x.copy_(torch.randn(16, 4))
        graph.replay()
        eager()
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)


def test_graphed_callables():
    layer = torch.nn.Linear(4, 4).cuda()
    given = torch.randn(2, 4, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (given,))
    other = torch.randn(2, 4, device="cuda", requires_grad=True)
    out = graphed(other)
    out.sum().backward()
    wanted = torch.nn.functional.linear(other.detach(), layer.weight, layer.bias)
    assert torch.allclose(out, wanted)
    assert torch.allclose(other.grad, layer.weight.sum(0).expand(2, 4))


def test_a_product_that_torch_has_no_cpu_for_is_one_operation():
    codes = torch.randint(0, 256, (128, 32), dtype=torch.uint8, device="cuda")
    ones = torch.full((512,), 0x38, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)

    def function():
        a = codes.view(torch.float4_e2m1fn_x2)
        return torch._scaled_mm(a, a.t(), ones, ones, out_dtype=torch.float32)

    graph, result = captured(function)
    codes.fill_(0x22)  # ones
    graph.replay()
    assert torch.equal(result, torch.full((128, 128), 64.0, device="cuda"))
