"""torch tensors that say they are on cuda:0 and lie in CPU memory.

A `CudaTensor` is a torch.Tensor over ordinary CPU memory that answers `cuda:0` where a program asks
for its device. Every torch function that is given one hands back its results as CudaTensors, unless
the call asks for another device; the arithmetic is that of torch on the CPU. Functions that make
tensors from nothing are wrapped so that `device="cuda"` reaches them.

Why a subclass, and not one of the other ways:

- torch's PrivateUse1 backend renamed to "cuda": torch refuses the name ("in-tree device name"), and
  `is_cuda` would be False.
- Tensors of the C++ device type CUDA over CPU memory, with Python kernels for torch's CUDA dispatch
  key: a torch without CUDA has no device guard for CUDA, which indexing, `.to` and the factories
  ask for in C++; it would take a C++ library built for each version of torch.
- A TorchFunctionMode: belongs to one thread, costs every call of programs that never say cuda, and
  cannot tell a tensor on the CPU from one on the GPU.

With a subclass tensors carry what they are through every thread, process and function, programs
that never say cuda meet torch as it was, and C++ code sees CPU tensors, which they are.

What differs from a GPU: an operation may mix CudaTensors with CPU tensors; both kinds draw from one
random generator; code in C++ sees the CPU.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

import copy
import ctypes
import re
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from b200.host.refusals import unsupported
from b200.host.torch.aligned_storage import ALIGNMENT, align
from b200.host.torch.device_arguments import DEVICE, names_cuda, on_gpu
from b200.host.torch.overrides import Overrides
from b200.host.torch.pinned import pin
from b200.host.torch.work import READS, host_reads, watch

_DLPACK_CPU, _DLPACK_CUDA = 1, 2  # DLDeviceType kDLCPU, kDLCUDA, of dlpack.h

_Tensor = torch.Tensor
_ON_CPU = torch._C.DisableTorchFunctionSubclass  # inside, a CudaTensor is the CPU tensor it is


class Allocations:
    """Bytes that live CudaTensors hold, and the most they ever held."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        self._holders: dict[int, list[int]] = {}  # address of a storage -> [tensors, bytes]

    def add(self, tensor: torch.Tensor) -> bool:
        """Count the tensor's storage until the last tensor on it is gone. Whether it is new."""
        storage = _Tensor.untyped_storage(tensor)
        address, size = storage.data_ptr(), -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        if not address:
            return False
        holders = self._holders.setdefault(address, [0, size])
        if holders[0] == 0:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            if (looks := watch()) is not None:
                looks.works.made(address, size, looks.current())
        holders[0] += 1
        weakref.finalize(tensor, self._release, address).atexit = False
        return holders[0] == 1

    def holds(self, address: int) -> bool:
        """Whether a CudaTensor lies in the storage at an address."""
        return address in self._holders

    def _release(self, address: int) -> None:
        holders = self._holders[address]
        holders[0] -= 1
        if holders[0] == 0:
            self.bytes -= holders[1]
            del self._holders[address]
            if (looks := watch()) is not None:
                looks.works.gone(address, holders[1])


allocations = Allocations()


def as_cuda(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a CudaTensor."""
    if type(tensor) is CudaTensor:
        return tensor
    return mark(tensor.as_subclass(_Tensor))


def mark(tensor: torch.Tensor, keep: bool = True) -> torch.Tensor:
    """Make a fresh CPU tensor a CudaTensor: the object itself, so that views and autograd stay.

    keep: its contents count.
    """
    if type(tensor) is _Tensor and tensor.device.type == "cpu":
        if tensor.layout == torch.strided:
            align(tensor, keep)
        new = allocations.add(tensor)
        tensor.__class__ = CudaTensor
        if new:
            _keep_for_graph(tensor)
    return tensor


def _keep_for_graph(tensor: torch.Tensor) -> None:
    """Memory that is made while a graph is captured lives as long as the graph."""
    looks = watch()
    if looks is not None and (capture := looks.capture) is not None:
        with _ON_CPU():
            alias = tensor.detach()
        capture.kept.append(mark(alias))


def special(function: Any, replacement: Any) -> None:
    """Call `replacement` where a CudaTensor is given to a function of torch."""
    _SPECIAL[function] = replacement


overrides = Overrides(mark, allocations.holds)


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a CPU tensor."""
    with _ON_CPU():
        return tensor.as_subclass(_Tensor) if type(tensor) is CudaTensor else tensor


def relabel(data: Any, function: Callable) -> Any:
    """`as_cuda` or `as_cpu` of every tensor in nested tuples, lists and dicts."""
    return tree_map_only(torch.Tensor, function, data)


class _Missing:
    """An attribute of a class that its base has and it has not."""

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__} has no C interface for DLPack")


class CudaTensor(torch.Tensor):
    """CPU memory that says it is on cuda:0."""

    __dlpack_c_exchange_api__ = _Missing()  # torch's own, for C++, hands on a tensor of the CPU

    @classmethod
    def __torch_function__(cls, func, types: tuple, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        if func in READS:
            host_reads()
        special = _SPECIAL.get(func)
        if special is not None:
            return special(*args, **kwargs)
        args, kwargs, wanted = _device_argument(func, args, kwargs)
        looks = watch()
        given = looks.before(args, kwargs) if looks is not None else None
        with _ON_CPU(), overrides.calling():
            result = func(*args, **kwargs)
        if looks is not None and given is not None:
            looks.after(func, given, kwargs, result)
        return on_device(result, args, kwargs) if wanted in (None, "cuda") else result


def _device_argument(func, args: tuple, kwargs: dict) -> tuple[tuple, dict, str | None]:
    """The arguments with the CPU in the place of cuda, and the type of the device asked for."""
    wanted = None
    if kwargs.get("device") is not None:
        cuda = names_cuda(kwargs["device"])
        wanted = "cuda" if cuda else torch.device(kwargs["device"]).type
        kwargs = {**kwargs, "device": "cpu"} if cuda else kwargs
    found = next((a for a in args if isinstance(a, torch.device)), None)
    if found is not None:
        wanted = found.type
        if names_cuda(found):
            args = tuple(torch.device("cpu") if a is found else a for a in args)
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    return args, kwargs, wanted


def work_on_gpu(args: tuple, kwargs: dict) -> bool:
    """Whether a function of compiled code works on the GPU: with a tensor there, or with none."""
    given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, _Tensor)]
    return not given or any(type(a) is CudaTensor for a in given)


def on_device(result: Any, args: tuple, kwargs: dict) -> Any:
    """Results as CudaTensors, but for those that are, or are views of, CPU tensors among the
    arguments.
    """
    if isinstance(result, _Tensor):
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, _Tensor)]
        if any(result is a for a in given):
            return _realigned(result)
        on_cpu = any(type(a) is _Tensor and _same_memory(a, result) for a in given)
        return result if on_cpu else mark(result)
    if isinstance(result, (tuple, list)):
        for item in result:
            if isinstance(item, (_Tensor, tuple, list)):
                on_device(item, args, kwargs)
    return result


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _realigned(tensor: torch.Tensor) -> torch.Tensor:
    """An argument that came back: it may have new memory (`resize_`, `out=`)."""
    if type(tensor) is CudaTensor:
        with _ON_CPU():
            if tensor.layout == torch.strided:
                align(tensor)
    return tensor


# --- functions of a CudaTensor that are not torch's own on the CPU


def _own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; of float4 by its bytes, for which torch 2.9 has no copy on a CPU."""
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return tensor.view(torch.uint8).clone().view(tensor.dtype)
    return tensor.clone()


def move(self, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Tensor.to with "cuda" understood; a copy wherever the device changes."""
    target = kwargs.get("device")
    for arg in filter(_is_device, args):
        if type(arg) is not int or target is None:
            target = arg
    other = next((a for a in (*args, kwargs.get("other")) if isinstance(a, _Tensor)), None)
    if other is not None:
        target = DEVICE if type(other) is CudaTensor else _Tensor.device.__get__(other)
    here = type(self) is CudaTensor
    there = here if target is None else names_cuda(target)
    if there:
        kwargs = kwargs | ({"device": "cpu"} if "device" in kwargs else {})
        args = tuple("cpu" if _is_device(a) else a for a in args)
    if target is not None and not there and torch.device(target).type not in ("cpu", "meta"):
        raise RuntimeError(f"{target} is not in the software B200: there are cpu, meta and cuda:0")
    with _ON_CPU():
        with on_gpu.making(there):
            result = torch_to(self, *args, **kwargs)  # pyright: ignore[reportArgumentType]
        if here != there and result.untyped_storage()._cdata == self.untyped_storage()._cdata:
            result = _own_copy(result)
    waits = not kwargs.get("non_blocking")
    if here == there:
        return self if result is self else mark(result) if here else result
    result = mark(result) if there else result if waits else pin(result)
    _copied(result, self, waits)
    return result


def _copied(to: torch.Tensor, source: torch.Tensor, waits: bool) -> None:
    """Tell of a copy between the host and the GPU. To and from memory that is not pinned the host
    waits until that memory may be used (CUDA driver API, "API synchronization behavior").
    """
    if (looks := watch()) is not None:
        shared = type(source) is not _Tensor, type(to) is not _Tensor
        looks.copied(to, source, shared, waits or not shared[1])


def _copy(self, source, non_blocking: bool = False) -> torch.Tensor:
    """Tensor.copy_ of which one side, or both, are on cuda."""
    with _ON_CPU():
        _Tensor.copy_(self, source)
    _copied(self, source, not (non_blocking or type(self) is type(source)))
    return self


def _is_device(arg: Any) -> bool:
    return isinstance(arg, (str, torch.device)) or type(arg) is int


def move_to_cuda(
    self, device=None, non_blocking: bool = False, memory_format=torch.preserve_format
) -> torch.Tensor:
    target = "cuda" if device is None else device
    return move(self, target, memory_format=memory_format, non_blocking=non_blocking)


def _numpy(self, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to"
        " host memory first."
    )


def _represent(self, **kwargs: Any) -> str:
    """The text that torch prints of a tensor on a GPU: the device after the values."""
    with _ON_CPU():
        leaf = self.grad_fn is None
        text = repr(self.detach().requires_grad_(self.requires_grad) if leaf else as_cpu(self))
    if not leaf:
        text = text.replace("AliasBackward0", self.grad_fn.name())
    values = text.rfind("]") + 1 or len(re.split(r"[,)]", text, maxsplit=1)[0])
    return f"{text[:values]}, device='{DEVICE}'{text[values:]}"


def _format(self, spec: str) -> str:
    return format(as_cpu(self), spec) if self.dim() == 0 else repr(self)


def _deepcopy(self, memo: dict):
    if id(self) not in memo:
        with _ON_CPU():
            plain = self.detach().as_subclass(_Tensor) if self.is_leaf else as_cpu(self)
            copied = memo[id(self)] = mark(copy.deepcopy(plain, memo))
            copied.requires_grad_(self.requires_grad)
            gradient = self.grad
        vars(copied).update(copy.deepcopy(vars(self), memo))  # `_is_param` of a Parameter
        if gradient is not None:
            copied.grad = copy.deepcopy(gradient, memo)
    return memo[id(self)]


def _dlpack(self, **kwargs: Any):
    """A capsule that says CUDA, as the consumers of GPU tensors expect it."""
    with _ON_CPU():
        capsule = as_cpu(self).__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = get(capsule, b"dltensor")  # ValueError for a capsule of another name
    address = ctypes.c_uint64.from_address(managed)  # DLTensor.data
    device = ctypes.c_int32.from_address(managed + 8)  # DLTensor.device.device_type
    if (address.value, device.value) != (as_cpu(self).data_ptr(), _DLPACK_CPU):
        raise unsupported("DLPack of cuda tensors: torch's capsule is unknown")
    device.value = _DLPACK_CUDA
    return capsule


def _set_data(self, value) -> None:
    with _ON_CPU():
        _Tensor.data.__set__(self, value)


_SPECIAL = {
    _Tensor.device.__get__: lambda self: DEVICE,
    _Tensor.is_cuda.__get__: lambda self: True,
    _Tensor.is_cpu.__get__: lambda self: False,
    _Tensor.get_device: lambda self: 0,
    torch.get_device: lambda self: 0,
    _Tensor.to: move,
    _Tensor.cuda: move_to_cuda,
    _Tensor.cpu: lambda self, **how: move(self, "cpu", **how),
    _Tensor.copy_: _copy,
    _Tensor.numpy: _numpy,
    _Tensor.__array__: _numpy,
    _Tensor.__repr__: _represent,
    _Tensor.__format__: _format,
    _Tensor.__deepcopy__: _deepcopy,
    _Tensor.__reduce_ex__: lambda self, protocol: (mark, (as_cpu(self),)),
    _Tensor.__dlpack__: _dlpack,
    _Tensor.__dlpack_device__: lambda self: (_DLPACK_CUDA, 0),
    _Tensor.__iter__: lambda self: iter(self.unbind(0)),
    _Tensor.data.__set__: _set_data,
    _Tensor.pin_memory: lambda self, device=None: refuse_pin(),
    _Tensor.is_pinned: lambda self, device=None: False,
}
torch_to = _Tensor.to


def refuse_pin() -> NoReturn:
    raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
