"""Kernels of a program for CUDA: of torch.library behind torch's own operators, and those that an
extension registers in C++ (TORCH_LIBRARY_IMPL).

Tensors on the GPU reach torch's dispatcher as the CPU's, so it does not find such a kernel. While
a function of torch works on tensors on the GPU, a mode looks at each operation below autograd and
calls the kernel in its place (`calling`).
"""

# Functions of torch are private here.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from b200.host.torch.device_arguments import DEVICE, on_gpu
from b200.host.torch.modes import Mode
from b200.host.torch.work import is_dense, storage_of

NOT_CALLED = (
    "b200: the kernel of this program for {} on CUDA is not called: torch makes that operator of"
    " others before its kernels are looked up"
)


class Overrides(Mode):
    """Calls the kernels of a program. mark: what makes a tensor one on the GPU; holds: whether one
    lies at an address.
    """

    def __init__(self, mark: Callable, holds: Callable[[int], bool]):
        super().__init__()
        self.mark, self.holds = mark, holds
        # by the operator's name with its overload: the kernel, while its library lives
        self.kernels: dict[str, tuple[Callable, weakref.ref]] = {}
        self.compiled: set[str] = set()  # operators with a kernel in C++
        self.everything = False  # whether all tensors are on the GPU: code of torch.compile
        self.on_gpu: ctypes.c_int | None = None  # b200_on_gpu of extensions, where there are some

    def put(self, library: Any, name: str, kernel: Callable) -> None:
        """name: "neg", "aten::add.Tensor"."""
        name = name if "::" in name else f"aten::{name}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            print(NOT_CALLED.format(name), file=sys.stderr)
        else:
            self.kernels[name] = kernel, weakref.ref(library)

    def calling(self, gpu: bool = True) -> contextlib.AbstractContextManager:
        """Inside, a function works on the GPU, or not: kernels of the program are called, and its
        compiled code knows.
        """
        mode = self if gpu and (self.kernels or self.compiled) else contextlib.nullcontext()
        return mode if self.on_gpu is None else self._telling(mode, self.on_gpu, gpu)

    @contextlib.contextmanager
    def _telling(
        self, mode: contextlib.AbstractContextManager, flag: ctypes.c_int, gpu: bool
    ) -> Generator[None]:
        before, flag.value = flag.value, gpu
        try:
            with mode:
                yield
        finally:
            flag.value = before

    @contextlib.contextmanager
    def with_everything_on_gpu(self) -> Generator[None]:
        """Inside, the program's kernels for CUDA are called, whatever the tensors are to Python."""
        before, self.everything = self.everything, True
        try:
            with self.calling():
                yield
        finally:
            self.everything = before

    def __torch_dispatch__(self, func, types: tuple, args: tuple = (), kwargs=None):
        kernel, kwargs = self._kernel(func), kwargs or {}
        if func.name() in self.compiled and self._on_gpu(args, kwargs):
            return func._op_dk(torch._C.DispatchKey.CUDA, *args, **kwargs)
        if kernel is None or not self._on_gpu(args, kwargs):
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, self._as_given, (args, kwargs))
        kwargs = {k: DEVICE if isinstance(v, torch.device) else v for k, v in kwargs.items()}
        with torch._C._EnableTorchFunction(), on_gpu.making(False):
            return kernel(*args, **kwargs)

    def _kernel(self, func: Any) -> Callable | None:
        overload = f".{func._overloadname}" if func._overloadname != "default" else ""
        kernel, library = self.kernels.get(func._schema.name + overload, (None, None))
        owner = library() if library is not None else None
        return kernel if owner is not None and owner.m is not None else None

    def _on_gpu(self, args: tuple, kwargs: dict) -> bool:
        """Whether an operator's operands are on the GPU; of one without any, what it makes."""
        if self.everything:
            return True
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not tensors:
            return on_gpu.made
        return any(is_dense(t) and self.holds(storage_of(t)) for t in tensors)

    def _as_given(self, tensor: torch.Tensor) -> torch.Tensor:
        """An operand as the program knows it: C++ code hands on views and results of its own. A
        number comes as a tensor of no dimensions on the CPU, as on a GPU.
        """
        number = tensor.dim() == 0 and not self.holds(storage_of(tensor))
        return tensor if number else self.mark(tensor)
