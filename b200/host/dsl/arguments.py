"""Arguments of compiled functions of the CuTe DSL against those that they were compiled for.

A tensor is compiled with the sizes and strides that it has, but for those that are marked dynamic.
A call hands over a pointer, and of sizes and strides those that are marked in *its* tensor. The DSL
does not compare the two: where fewer are marked than the code reads, it reads what lies after, 0
or anything; where a fixed size differs, the code goes on with the one it was compiled for.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from b200.checker.finding import ERROR, NOTE, Finding
from b200.host.callers import caller
from b200.host.runtime import Runtime

_ATTRIBUTE = "b200_compiled_for"


class DynamicShape(NamedTuple):
    """What of a tensor is dynamic, a 1 a dimension, and its sizes and strides."""

    sizes: tuple
    strides: tuple
    shape: tuple
    stride: tuple


def form_of(value: Any) -> DynamicShape | None:
    try:
        masks = tuple(value.dynamic_shapes_mask), tuple(value.dynamic_strides_mask)
        return DynamicShape(*masks, tuple(value.shape), tuple(value.stride))
    except (AttributeError, TypeError, RuntimeError, ValueError, NotImplementedError):
        return None


def compare(name: str, compiled: DynamicShape, given: DynamicShape) -> Finding | None:
    if any(compiled.sizes) or any(compiled.strides):
        if (compiled.sizes, compiled.strides) == (given.sizes, given.strides):
            return None
        return Finding(
            "arguments",
            f"argument {name} is not marked as it was when the function was compiled: sizes and "
            "strides arrive as 0, or as what lies there",
            (
                f"compiled for dynamic sizes {compiled.sizes} and strides {compiled.strides}; "
                f"given {given.sizes} and {given.strides}, of shape {given.shape}",
                "missing: the same mark_layout_dynamic() or mark_compact_shape_dynamic() as for "
                "cute.compile",
            ),
            caller(),
            severity=ERROR,
        )
    if compiled.shape != given.shape:
        return Finding(
            "arguments",
            f"argument {name} has shape {given.shape}, and the function is compiled for "
            f"{compiled.shape}: it goes on with that",
            (
                "no size of the tensor was marked dynamic for cute.compile",
                "missing: mark_layout_dynamic(), or a compiled function for each shape",
            ),
            caller(),
            severity=NOTE,
        )
    return None


def _forms(signature: inspect.Signature, args: tuple, kwargs: dict) -> dict[str, DynamicShape]:
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:  # what does not fit the signature, the DSL refuses itself
        return {}
    forms = {name: form_of(value) for name, value in bound.items()}
    return {name: form for name, form in forms.items() if form is not None}


def patch(runtime: Runtime) -> None:
    """Compare each call of a compiled function from now on; runtime.mismatched has the rest."""
    import cutlass.base_dsl.compiler as compiler
    import cutlass.base_dsl.jit_executor as jit

    build = compiler.CompileCallable.__call__
    prepare = jit.ExecutionArgs.generate_execution_args

    def compile_(self, *args: Any, **kwargs: Any):
        compiled = build(self, *args, **kwargs)
        execution = getattr(compiled, "execution_args", None)
        if execution is not None:
            function, values = args[0], args[1:]
            if inspect.ismethod(function):
                values = (function.__self__, *values)
            elif not inspect.isfunction(function):
                values = (function, *values)
            signature = execution.original_signature
            named = {name: v for name, v in kwargs.items() if name in signature.parameters}
            setattr(execution, _ATTRIBUTE, _forms(signature, values, named))
        return compiled

    def generate_execution_args(self, args: tuple, kwargs: dict):
        arguments = prepare(self, args, kwargs)  # what a tensor's marks mean is found out then
        expected = getattr(self, _ATTRIBUTE, {})
        if expected:
            given = _forms(self.signature, args, kwargs)
            both = ((n, expected[n], form) for n, form in given.items() if n in expected)
            found = (compare(*each) for each in both)
            runtime.mismatched = [finding for finding in found if finding is not None]
        return arguments

    compiler.CompileCallable.__call__ = compile_
    jit.ExecutionArgs.generate_execution_args = generate_execution_args
