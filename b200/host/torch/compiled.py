"""torch.compile of functions of tensors on the GPU: inductor's Triton kernels run in the emulator.

Dynamo and inductor do their work as they do for a GPU: a tensor of the GPU, which is CPU memory, is
to them a fake tensor of cuda:0. What inductor writes is a Python program that allocates buffers and
launches Triton kernels, and these are launches like any others. Kernels of which inductor would
time several configurations take the first one: nothing is timed here.

What cannot be done is refused by name, or said: never is a function run as written without a word.
"""

# Functions of torch are private here.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from b200.host.imports import when_imported
from b200.host.refusals import unsupported
from b200.host.runtime import Runtime
from b200.host.torch.device_arguments import DEVICE
from b200.host.torch.devices import CudaTensor, allocations, as_cpu, as_cuda, overrides, relabel
from b200.host.torch.work import is_dense, storage_of

AS_WRITTEN = "b200: torch.compile: {} runs as it is written: {}"
GRADIENTS = "a torch without CUDA cannot trace gradients of cuda (torch.no_grad() has kernels)"
_TRACERS = {"create_aot_state", "create_aot_dispatcher_function"}  # of newer and older versions
_SWITCH = "TORCHDYNAMO_DISABLE"
_MODES = (None, "default", "reduce-overhead")  # the others time kernels to choose from
_Tensor = torch.Tensor
_torch_compile = torch.compile


def patch(_runtime: Runtime) -> None:
    os.environ.setdefault(_SWITCH, "1")  # of what this module does not start
    torch.compile = _compile
    when_imported("torch._functorch.aot_autograd", _refuse_gradients)
    when_imported("torch._functorch.config", _look_at_no_aliases)


def _refuse_gradients(aot: Any) -> None:
    """Whoever traces gradients of cuda by himself (torch.library.opcheck) would end the process: it
    has no guard of that device.
    """
    for name in _TRACERS & vars(aot).keys() if not torch.backends.cuda.is_built() else ():
        trace = getattr(aot, name)

        @functools.wraps(trace)
        def call(*args: Any, _trace: Callable = trace, **kwargs: Any) -> Any:
            given = (t for t in tree_leaves((args, kwargs)) if isinstance(t, _Tensor))
            if any(t.requires_grad and t.device.type == "cuda" for t in given):
                raise unsupported(f"AOTAutograd: {GRADIENTS}")
            return _trace(*args, **kwargs)

        setattr(aot, name, call)


def _look_at_no_aliases(config: Any) -> None:
    """A mode that knows no tensors but torch's own looks for results that alias arguments."""
    if hasattr(config, "check_custom_op_aliasing"):
        config.check_custom_op_aliasing = False


@functools.wraps(_torch_compile)
def _compile(model: Any = None, **options: Any) -> Any:
    if model is None:
        return lambda function: _compile(function, **options)
    name = getattr(model, "__qualname__", type(model).__name__)
    if why := _why_not(options):
        _say(name, why)
        return model
    mode = options.pop("mode", None)
    if mode not in _MODES:
        raise unsupported(
            f"torch.compile(mode={mode!r}) is not in the software B200: it chooses kernels by their"
            " time on a GPU; mode=None makes the same of templates that need no choice"
        )
    return _Compiled(model, name, options).made()


def _why_not(options: dict[str, Any]) -> str:
    """Why a function cannot be compiled; "" if it can."""
    if options.get("disable"):
        return "disable=True"
    backend = options.get("backend", "inductor")
    if backend != "inductor":
        return f"backend={backend!r} makes no kernels for the GPU"
    if importlib.util.find_spec("triton") is None:
        return "inductor's kernels need Triton, which is not installed"
    if importlib.util.find_spec("torch._inductor") is None:
        return "this torch has no inductor"
    return ""


@functools.cache
def _say(name: str, why: str) -> None:
    print(AS_WRITTEN.format(name, why), file=sys.stderr)


class _Compiled:
    """One function or module of the program. whole: whether dynamo can make one graph of it.
    Between the graphs of a function that breaks, its tensors would be the CPU's.
    """

    def __init__(self, model: Any, name: str, options: dict[str, Any]):
        self.model, self.name, self.whole = model, name, True
        self.dynamic, self.fullgraph = options.get("dynamic"), bool(options.get("fullgraph"))

    def made(self) -> Any:
        """What stands for the function or module."""
        os.environ[_SWITCH] = "0"
        try:
            how = {"fullgraph": True, "dynamic": self.dynamic}
            real: Any = _torch_compile(self.model, backend="inductor", **how)
        finally:
            os.environ[_SWITCH] = "1"
        if isinstance(self.model, torch.nn.Module):
            module = self.model
            real.forward = self._calling(real.forward, module, module)
            return real
        module = getattr(self.model, "__self__", None)
        module = module if isinstance(module, torch.nn.Module) else None
        return functools.wraps(self.model)(self._calling(real, self.model, module))

    def _calling(self, real: Callable, original: Callable, module: Any) -> Callable:
        """A call of the compiled function; the original for tensors of the CPU."""

        def call(*args: Any, **kwargs: Any) -> Any:
            held = [*module.parameters(), *module.buffers()] if module is not None else []
            given = [t for t in (*tree_leaves((args, kwargs)), *held) if type(t) is CudaTensor]
            if not given or not self.whole:
                return original(*args, **kwargs)
            if torch.is_grad_enabled() and any(t.requires_grad for t in given):
                _say(self.name, GRADIENTS)
                return original(*args, **kwargs)
            from torch._dynamo.exc import TorchDynamoException

            try:
                with _prepared(), _as_plain(held):
                    plain_args, plain_kwargs = relabel((args, kwargs), as_cpu)
                    result = real(*plain_args, **plain_kwargs)
            except TorchDynamoException as broken:
                if self.fullgraph:
                    raise
                self.whole = False
                _say(self.name, f"{type(broken).__name__}, {_reason(broken)}")
                return original(*args, **kwargs)
            return relabel(result, as_cuda)

        return call


def _reason(broken: Exception) -> str:
    """Why dynamo makes no kernels of a function: the first line that says so."""
    lines = [line.strip() for line in str(broken).splitlines() if line.strip()]
    told = (line for line in lines if line.startswith(("Explanation", "RuntimeError", "NotImpl")))
    return next(told, lines[0] if lines else "")


def _on_gpu(tensor: torch.Tensor) -> bool:
    return type(tensor) is CudaTensor or is_dense(tensor) and allocations.holds(storage_of(tensor))


@contextlib.contextmanager
def _as_plain(tensors: list[torch.Tensor]) -> Generator[None]:
    """Parameters and buffers on the GPU are to dynamo torch's own, and without gradients."""
    ours = [(t, t.requires_grad) for t in tensors if type(t) is CudaTensor]
    for t, _ in ours:
        t.__class__ = torch.nn.Parameter if getattr(t, "_is_param", False) else _Tensor
        t.requires_grad_(False)
    try:
        yield
    finally:
        for t, requires_grad in ours:
            t.requires_grad_(requires_grad)
            t.__class__ = CudaTensor


@contextlib.contextmanager
def _prepared() -> Generator[None]:
    """Inside, inductor finds the GPU in software, and dynamo no accelerator: a torch with CUDA
    would ask its own for the current queue.
    """
    _hook_inductor()
    before, accelerator = os.environ.get(_SWITCH), torch.accelerator.is_available
    os.environ[_SWITCH], torch.accelerator.is_available = "0", lambda: False
    try:
        yield
    finally:
        os.environ[_SWITCH], torch.accelerator.is_available = before or "1", accelerator


@functools.cache
def _hook_inductor() -> None:
    """Put what is ours in the place of what torch's CPU build lacks, once."""
    import torch._inductor.config as config
    from torch._C._dynamo import guards
    from torch._dynamo import trace_rules
    from torch._inductor.fx_passes import misc_patterns
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.runtime import triton_heuristics
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter

    trace_rules.add("b200")  # is run, not compiled
    config.compile_threads = 1
    config.force_disable_caches = True
    config.joint_graph_constant_folding = False  # it makes tensors on the device
    config.triton.cudagraphs = False
    for name in ("use_static_cuda_launcher", "use_static_triton_launcher"):
        if hasattr(config, name):
            setattr(config, name, False)
    # patterns about torch.randperm, which a torch for the CPU cannot trace for a GPU
    misc_patterns._misc_patterns_init = lambda *_args, **_kwargs: None
    triton_heuristics.CachingAutotuner.bench = lambda *_args, **_kwargs: 1.0
    guards._empty_strided_cuda = lambda size, stride, dtype: as_cpu(
        torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)
    )
    launch = triton_heuristics.CachingAutotuner.run

    @functools.wraps(launch)
    def run(self: Any, *args: Any, **how: Any) -> Any:
        return launch(self, *relabel(args, as_cuda), **how)

    triton_heuristics.CachingAutotuner.run = run
    call = CompiledFxGraph.__call__

    @functools.wraps(call)
    def call_on_gpu(self: Any, inputs: Any) -> Any:
        with overrides.with_everything_on_gpu():  # the program's operators, between kernels
            return call(self, inputs)

    CompiledFxGraph.__call__ = call_on_gpu
    real = FakeTensorConverter.from_real_tensor

    @functools.wraps(real)
    def from_real_tensor(self: Any, mode: Any, tensor: torch.Tensor, *args: Any, **how: Any) -> Any:
        fake = real(self, mode, tensor, *args, **how)
        has_memory = type(tensor) in (_Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        if has_memory and type(fake) is FakeTensor and _on_gpu(tensor):
            fake.fake_device = DEVICE
        return fake

    FakeTensorConverter.from_real_tensor = from_real_tensor
