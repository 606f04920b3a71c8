"""Functions of the program that torch calls: backward functions, hooks, kernels of torch.library.

torch's C++ code calls them, inside of an operation on CPU tensors. There a CudaTensor (devices.py)
says that it is on the CPU, and tensors that C++ made are no CudaTensors. So what torch hands to the
program is given its device first, and the program runs as it would outside.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.library import Library

from b200.host.refusals import unsupported
from b200.host.runtime import Runtime
from b200.host.takeover import replace
from b200.host.torch import devices

_SAVED, _OUTPUTS = "_b200_saved", "_b200_outputs"  # on a ctx: which tensors are on cuda
_KERNELS = ("CPU", "CUDA")  # dispatch keys
_COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "Autograd", "AutogradCUDA")


def on_cuda(value: Any) -> bool:
    return isinstance(value, devices.CudaTensor)


def _as_program(function: Callable) -> Callable:
    """`function`, in which a CudaTensor says that it is on cuda."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return function(*args, **kwargs)

    return call


def _given(values: Iterable[Any], flags: Iterable[bool]) -> tuple:
    """Values, of which those with a flag are tensors on cuda, or None."""
    return tuple(
        devices.mark(value) if flag and isinstance(value, torch.Tensor) else value
        for value, flag in zip(values, flags, strict=True)
    )


# --- torch.autograd.Function


def patch_functions(_runtime: Runtime) -> None:
    """Give forward and backward functions their tensors' device."""
    _patch_saved_tensors()
    _patch_backward()


def _patch_saved_tensors() -> None:
    """ctx.saved_tensors: an output that was saved comes back as another object."""
    save, saved = FunctionCtx.save_for_backward, torch._C._FunctionBase.saved_tensors

    @functools.wraps(save)
    def save_for_backward(self, *tensors: Any) -> None:
        setattr(self, _SAVED, tuple(map(on_cuda, tensors)))
        save(self, *tensors)

    def saved_tensors(self):
        tensors = saved.__get__(self)
        return _given(tensors, getattr(self, _SAVED, (False,) * len(tensors)))

    FunctionCtx.save_for_backward = save_for_backward
    BackwardCFunction.saved_tensors = property(saved_tensors)


def _patch_backward() -> None:
    """Gradients are where the outputs are that they belong to."""

    def applying(apply: Callable):
        def apply_on_device(cls, *args: Any, **kwargs: Any):
            result = apply(cls, *args, **kwargs)
            if any(map(on_cuda, (*args, *kwargs.values()))):
                _note_outputs(result)
            return result

        return apply_on_device

    replace(torch.autograd.Function, "apply", applying)
    for name in ("apply", "apply_boxed"):
        if hasattr(BackwardCFunction, name):  # newer versions have apply_boxed
            replace(BackwardCFunction, name, _backward)


def _note_outputs(result: Any) -> None:
    """Outputs of a Function with arguments on cuda are on cuda; their node knows."""
    outputs = result if isinstance(result, tuple) else (result,)
    tensors = [devices.mark(output) for output in outputs if isinstance(output, torch.Tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        nodes = {tensor.grad_fn for tensor in tensors}
    for node in nodes:
        if isinstance(node, BackwardCFunction):
            setattr(node, _OUTPUTS, tuple(map(on_cuda, outputs)))


def _backward(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(self, *gradients: Any):
        flags = getattr(self, _OUTPUTS, None)
        if flags is None:
            return function(self, *gradients)
        if len(gradients) == 1 and isinstance(gradients[0], list):  # apply_boxed
            gradients[0][:] = _given(gradients[0], flags)
        else:
            gradients = _given(gradients, flags)
        return _as_program(function)(self, *gradients)

    return call


# --- hooks


def patch_hooks(_runtime: Runtime) -> None:
    """Give hooks their gradient's device."""
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        devices.special(getattr(torch.Tensor, name), _registering_hook(getattr(torch.Tensor, name)))


def _registering_hook(register: Callable) -> Callable:
    """Tensor.register_hook of a CudaTensor."""

    def call(self, hook: Callable):
        def on_device(gradient):
            return _as_program(hook)(devices.mark(gradient))

        with torch._C.DisableTorchFunctionSubclass():
            return register(self, on_device)

    return call


# --- torch.library


def patch_library(_runtime: Runtime) -> None:
    """Give kernels of torch.library their tensors' device."""
    replace(Library, "impl", _registering)


class _Operator:
    """The kernels of an operator by dispatch key, of which torch's dispatcher sees one."""

    def __init__(self, name: str):
        self.name = name
        self.kernels: dict[str, Callable] = {}
        self.library: Callable[[], Any] = lambda: None  # where the one is registered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.utils._pytree import tree_leaves

        if devices.overrides.everything:
            args, kwargs = devices.relabel((args, kwargs), devices.as_cuda)
        given = any(map(on_cuda, tree_leaves((args, kwargs))))
        key = _KERNELS[given]
        kernel = self.kernels.get(key)
        if kernel is None:
            raise NotImplementedError(
                f"Could not run '{self.name}' with arguments from the '{key}' backend: it has a"
                f" kernel for {' and '.join(self.kernels)}"
            )
        result = _as_program(kernel)(*args, **kwargs)
        return devices.relabel(result, devices.as_cpu) if devices.overrides.everything else result


_operators: dict[str, _Operator] = {}


def _registering(impl: Callable) -> Callable:
    """Library.impl: the tensors of a kernel for CUDA reach the dispatcher as the CPU's."""

    from torch.library import fallthrough_kernel

    @functools.wraps(impl)
    def call(self, op_name: Any, fn: Callable, dispatch_key: str = "", *args: Any, **options: Any):
        key = dispatch_key or self.dispatch_key
        name = op_name if isinstance(op_name, str) else op_name.name()
        if self.ns == "aten" and key == "CUDA" and callable(fn) and fn is not fallthrough_kernel:
            if options.get("with_keyset"):
                raise unsupported(f"a kernel for {op_name} on CUDA: with_keyset")
            devices.overrides.put(self, name, fn)
            return None
        torchs_own = self.ns == "aten" or fn is fallthrough_kernel or not callable(fn)
        if torchs_own or key not in (*_KERNELS, *_COMPOSITE, ""):
            return impl(self, op_name, fn, dispatch_key, *args, **options)
        if key not in _KERNELS or options.get("with_keyset"):
            return impl(self, op_name, _as_program(fn), dispatch_key, *args, **options)
        name = f"{self.ns}::{name.split('::')[-1]}"
        operator = _operators.setdefault(name, _Operator(name))
        operator.kernels[key] = fn
        if operator.library() is not self:
            impl(self, op_name, operator, "CPU", *args, **options)
            operator.library = weakref.ref(self)

    return call
