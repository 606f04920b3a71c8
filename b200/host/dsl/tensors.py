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
    def print_view(view, *args, **kwargs):
        return print_one(printable(view), *args, **kwargs)

    @functools.wraps(print_text)
    def print_(values: list, *args, **kwargs):
        return print_text([printable(value) for value in values], *args, **kwargs)

    runtime._Tensor.mlir_type = property(mlir_type)
    dialect.print_view, dialect.print_ = print_view, print_


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
