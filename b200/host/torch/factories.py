"""Functions of torch that meet cuda:0 without being given a CudaTensor: those that make a tensor
from nothing, and those that move one from the CPU.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import dlpack

from b200.host.torch import devices
from b200.host.torch.device_arguments import names_cuda, on_gpu
from b200.host.torch.pinned import PinnedTensor, pin
from b200.host.torch.work import watch
from b200.sparse import pages

HUGE = 2 << 30  # bytes from which on a tensor's contents are not drawn or filled at once
_LIKE = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
_NEW = ("tensor", "empty", "zeros", "ones", "full", "empty_strided")
_CONTENTS = {"zeros", "ones", "full", "rand", "randn", "randint", "normal"}
_SHARING = ("as_tensor", "asarray")
_OF_DATA = (*_SHARING, "tensor", "new_tensor")
_WITHOUT_CONTENTS = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty")

_Tensor = torch.Tensor


def patch() -> None:
    """Let torch's factories and CPU tensors understand cuda:0."""
    from torch.utils import _device

    originals = {f.__name__: f for f in _device._device_constructors()}  # before they are wrapped
    for name, function in originals.items():
        if getattr(torch, name, None) is function:
            setattr(torch, name, _factory(function))
    torch.normal = _factory(torch.normal)
    for name in _LIKE:
        setattr(torch, f"{name}_like", _factory(getattr(torch, f"{name}_like")))
    for name in _NEW:
        setattr(_Tensor, f"new_{name}", _factory(getattr(_Tensor, f"new_{name}")))
    _Tensor.to = functools.wraps(devices.torch_to)(_moved(devices.move))
    _Tensor.cuda = functools.wraps(_Tensor.cuda)(_moved(devices.move_to_cuda))
    _Tensor.pin_memory = _pin_memory
    _Tensor.is_pinned = lambda self, device=None: type(self) is PinnedTensor
    _Tensor.record_stream = _record_queue
    torch.from_dlpack = _from_dlpack(torch.from_dlpack)
    dlpack.to_dlpack = _to_dlpack(dlpack.to_dlpack)
    torch.load = _load(torch.load)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # nn.Module.cuda()
    _patch_default_device(_device.DeviceContext)


def _pin_memory(self, device=None) -> torch.Tensor:
    """A pinned copy of a CPU tensor."""
    if type(self) is devices.CudaTensor:
        devices.refuse_pin()
    return self if type(self) is PinnedTensor else pin(self.clone())


def _record_queue(self, queue) -> None:
    """Tensor.record_stream, which in torch takes a queue of torch's own type only."""
    if (looks := watch()) is not None:
        address = _Tensor.untyped_storage(devices.as_cpu(self)).data_ptr()
        looks.works.given_back.record(address, queue.cuda_stream)


def _moved(function: Callable):
    """`function` for CPU tensors and CudaTensors; other subclasses go to torch."""

    def call(self, *args: Any, **kwargs: Any):
        if type(self) not in (_Tensor, devices.CudaTensor, PinnedTensor, torch.nn.Parameter):
            return devices.torch_to(self, *args, **kwargs)
        return function(self, *args, **kwargs)

    return call


def _factory(function):
    """`function` with its device understood."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any):
        device = kwargs.get("device")
        pinned = kwargs.get("pin_memory")
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        if device is None or not names_cuda(device):
            result = function(*args, **kwargs)
            return pin(result) if pinned else result
        if _is_tracing():
            return _traced(function, args, kwargs)
        kwargs["device"] = "cpu"
        huge = _huge(function, args, kwargs)
        if huge is not None:
            return devices.mark(huge)
        with on_gpu.making(True), devices.overrides.calling():
            result = function(*args, **kwargs)
        if type(result) is devices.CudaTensor:
            return result
        if function.__name__ in _SHARING:  # the argument may be in host memory
            result = result.clone()
        fills = function.__name__ not in _WITHOUT_CONTENTS
        result = devices.mark(result, keep=fills)
        if fills and (looks := watch()) is not None:
            looks.does(f"torch.{function.__name__}", [], [result])
        return result

    return make


def _traced(function: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """What a factory makes without memory. Some of them look at data or ask for CUDA's generator:
    what these make is given its device afterwards.
    """
    if function.__name__ not in _OF_DATA:
        with contextlib.suppress(RuntimeError):
            return function(*args, **kwargs)
    made = function(*args, **{**kwargs, "device": "cpu"})
    made.fake_device, made.constant = torch.device("cuda", 0), None
    return made


def _is_tracing() -> bool:
    """Whether tensors are without memory now, so that torch can make them on any device."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _huge(function, args: tuple, kwargs: dict) -> torch.Tensor | None:
    """A tensor of HUGE bytes or more as pages that exist once they are touched; None if smaller.

    A program writes such a tensor to flush the L2. Zeros are zeros; what would have been drawn or
    filled is left zero, and that is said.
    """
    if function.__name__ not in _CONTENTS | {"empty"} or kwargs.get("out") is not None:
        return None
    with torch.device("meta"):
        meta = function(
            *args, **{k: v for k, v in kwargs.items() if k not in ("device", "generator")}
        )
    size = meta.numel() * meta.element_size()
    if size < HUGE:
        return None
    if function.__name__ not in ("empty", "zeros"):
        print(
            f"b200: torch.{function.__name__} of {size / 2**30:.1f} GiB on cuda is left as zeros",
            file=sys.stderr,
        )
    return torch.frombuffer(pages(size), dtype=torch.uint8).view(meta.dtype).view(meta.shape)


def _from_dlpack(function: Callable):
    @functools.wraps(function)
    def from_dlpack(tensor: object, **kwargs: Any):
        if type(tensor) is devices.CudaTensor:
            return devices.as_cuda(devices.as_cpu(tensor))
        return function(tensor, **kwargs)

    return from_dlpack


def _to_dlpack(function: Callable):
    @functools.wraps(function)
    def to_dlpack(tensor):
        return tensor.__dlpack__() if type(tensor) is devices.CudaTensor else function(tensor)

    return to_dlpack


def _load(function: Callable):
    @functools.wraps(function)
    def load(file, map_location=None, **kwargs: Any):
        if isinstance(map_location, (str, torch.device)) and names_cuda(map_location):
            return devices.relabel(function(file, map_location="cpu", **kwargs), devices.mark)
        return function(file, map_location=map_location, **kwargs)

    return load


def _patch_default_device(context: type) -> None:
    """torch.set_default_device("cuda") and `with torch.device("cuda")`."""
    from torch.utils._device import _device_constructors

    original = context.__torch_function__

    def torch_function(self, func, types: tuple, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        if self.device.type != "cuda" or func not in _device_constructors():
            return original(self, func, types, args, kwargs)
        if kwargs.get("device") is not None:
            return func(*args, **kwargs)
        return _factory(func)(*args, **{**kwargs, "device": self.device})

    context.__torch_function__ = torch_function
