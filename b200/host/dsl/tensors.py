"""CPU tensors as arguments of the CuTe DSL.

For the DSL such a tensor is host memory ("generic"), which a kernel cannot have in a tensormap or
copy from. Here it is global memory, so functions are compiled for that. What the DSL's host code
does with host memory it may do with these tensors, too: it prints them, which it refuses for
tensors of a GPU.
"""

# Functions of the DSL are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportOptionalCall=false

from __future__ import annotations

import functools
from typing import Any

from b200.host.runtime import Runtime

CPU_ALIGNMENT = 64  # bytes; torch's CPU allocator (c10 gAlignment)
_GLOBAL = "gmem"  # as the type of a tensor is written


def patch(_runtime: Runtime) -> None:
    """Take CPU tensors for global memory, and print them all the same."""
    import cutlass.cute.runtime as runtime
    from cutlass._mlir import ir
    from cutlass._mlir.dialects import cute as dialect

    seen = False
    type_of, print_one, print_text = (runtime._Tensor.mlir_type, dialect.print_view, dialect.print_)

    def mlir_type(self) -> Any:
        nonlocal seen
        made = type_of.fget(self)
        text = str(made)
        if ", generic" not in text:
            return made
        seen = True
        return ir.Type.parse(text.replace(", generic", f", {_GLOBAL}"))

    def printable(value: Any) -> Any:
        return _in_host_memory(value) if seen and _on_host() else value

    @functools.wraps(print_one)
    def print_view(view, *args: Any, **kwargs: Any):
        return print_one(printable(view), *args, **kwargs)

    @functools.wraps(print_text)
    def print_(values: list, *args: Any, **kwargs: Any):
        return print_text([printable(value) for value in values], *args, **kwargs)

    runtime._Tensor.mlir_type = property(mlir_type)
    dialect.print_view, dialect.print_ = print_view, print_


def patch_checks(_runtime: Runtime) -> None:
    """Switch off what CPU tensors would fail. A tensor whose declared alignment is larger than that
    of CPU tensors is held to theirs, which is more than any access of a B200 needs; on "cuda" they
    begin at multiples of 512 bytes (aligned_storage.py). And there is no context to initialise.
    """
    import cutlass.base_dsl.runtime.cuda as cuda
    import cutlass.cute.runtime as runtime
    from cutlass.cute import AddressSpace

    cuda.initialize_cuda_context = lambda device_id=0, flags=0: None

    pointers = runtime._Tensor.__c_pointers__

    @functools.wraps(pointers)
    def pointers_held_to_cpu_alignment(self):
        declared = self._assumed_align
        if declared is None or declared <= CPU_ALIGNMENT:
            return pointers(self)
        self._assumed_align = CPU_ALIGNMENT
        try:
            return pointers(self)
        finally:
            self._assumed_align = declared

    runtime._Tensor.__c_pointers__ = pointers_held_to_cpu_alignment
    make_pointer = runtime._Pointer.__init__

    @functools.wraps(make_pointer)
    def make_pointer_held_to_cpu_alignment(
        self, pointer, dtype, mem_space=AddressSpace.generic, assumed_align=None
    ) -> None:
        held = assumed_align if assumed_align is None else min(assumed_align, CPU_ALIGNMENT)
        make_pointer(self, pointer, dtype, mem_space, held)
        if assumed_align is not None:
            self._assumed_align = assumed_align

    runtime._Pointer.__init__ = make_pointer_held_to_cpu_alignment


def _on_host() -> bool:
    """Whether what the DSL traces now is host code: no kernel, which stands in a gpu.module."""
    from cutlass._mlir import ir

    block = ir.InsertionPoint.current.block
    operation: Any = block.owner
    while operation is not None:
        if operation.operation.name == "gpu.module":
            return False
        operation = operation.operation.parent
    return True


def _in_host_memory(value: Any) -> Any:
    """A tensor in global memory as one in host memory, at the same address; others as they are."""
    from cutlass import cute
    from cutlass.cute.tensor import _Tensor

    if not str(value.type).startswith("!cute.memref<") or f", {_GLOBAL}" not in str(value.type):
        return value
    tensor = _Tensor(value)
    pointer: Any = tensor.iterator
    same = cute.make_ptr(
        tensor.element_type,
        pointer.toint(),
        cute.AddressSpace.generic,
        assumed_align=pointer.alignment,
    )
    return cute.make_tensor(same, tensor.layout).value
