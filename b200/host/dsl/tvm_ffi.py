"""Functions compiled for the TVM FFI run under the DSL's own calling convention.

A TVM FFI function loads its kernel and reports errors in machine code that the hooks of runtime.py
do not see, and it refuses CPU tensors. The kernel does not depend on the convention, so in the
emulator `--enable-tvm-ffi` compiles for the DSL's own; the package apache-tvm-ffi is not needed.
What the TVM FFI does at a call is done here: tensors are passed in the layout that the function was
compiled for, and a stream may be left out. What does not fit is refused in its words (the DSL's
base_dsl/tvm_ffi_builder/tvm_ffi_builder.py), a tensor on the CPU, too.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

from b200.host.refusals import unsupported
from b200.host.runtime import Runtime


@dataclass(frozen=True)
class TensorSpec:
    """What a function was compiled for.

    at: the argument, in words. shape, stride: the number where it is static, else `Dynamic`.
    on_gpu: whether a tensor on the CPU is refused.
    """

    name: str
    at: str
    dtype: Any
    shape: tuple
    stride: tuple
    on_gpu: bool

    def descriptor(self, tensor, bound: Bound) -> Descriptor:
        """The argument for a tensor; ValueError if it does not fit."""
        from cutlass.cute.runtime import from_dlpack

        given: Any = tensor if hasattr(tensor, "_dlpack_data") else from_dlpack(_shared(tensor))
        if len(given.shape) != len(self.shape):
            self._refuse(f"ndim={len(self.shape)}", len(given.shape))
        if self.on_gpu and getattr(tensor, "is_cuda", True) is False:
            self._refuse("device_type=cuda", "a tensor on the CPU")
        if given.element_type.width != self.dtype.width:
            self._refuse(f"dtype={self.dtype}", given.element_type)
        for i, (have, want) in enumerate(zip(given.shape, self.shape)):
            bound.hold(f"{self.name}.shape[{i}]", self.at, have, want)
        for i, (have, want) in enumerate(zip(given.stride, self.stride)):
            if given.shape[i] != 1:
                bound.hold(f"{self.name}.strides[{i}]", self.at, have, want)
        return Descriptor(given, self)

    def _refuse(self, want: str, have: Any) -> NoReturn:
        raise ValueError(f"Mismatched Tensor {self.at}, expected {want}, not {have}")


@dataclass(frozen=True)
class Dynamic:
    """A number that a call brings. symbol: the DSL's SymInt, the same wherever it must be the same
    number; None where it stands alone.
    """

    bits: int
    symbol: Any = None


class Bound:
    """The numbers that symbols stand for in one call."""

    def __init__(self):
        self._values: dict[int, tuple[int, str]] = {}  # id of a symbol -> its value, and whose

    def hold(self, name: str, at: str, have: int, want: int | Dynamic) -> None:
        """Hold an extent or a stride against what the function was compiled for; ValueError."""
        if not isinstance(want, Dynamic):
            if have != want:
                raise ValueError(f"Mismatched {name} {at}, expected to be {want}, not {have}")
            return
        if want.symbol is None:
            return
        value, first = self._values.setdefault(id(want.symbol), (have, name))
        if value != have:
            said = f"expected to match {first}, which is {value}, not {have}"
            raise ValueError(f"Mismatched {name} {at}, {said}")
        divisor = getattr(want.symbol, "divisibility", 1)
        if have % divisor:
            said = f"expected to be divisible by {divisor}, not {have}"
            raise ValueError(f"Invalid {name} {at}, {said}")


class Descriptor:
    """A tensor as the DSL's host code takes it: address, dynamic extents, dynamic strides."""

    def __init__(self, tensor, spec: TensorSpec):
        raw = struct.pack("<Q", tensor.data_ptr)
        for values, wanted in ((tensor.shape, spec.shape), (tensor.stride, spec.stride)):
            dynamic = [(v, w.bits // 8) for v, w in zip(values, wanted) if isinstance(w, Dynamic)]
            raw += _structure(dynamic, len(raw))
        self._memory = ctypes.create_string_buffer(raw, len(raw))
        self._tensor = tensor

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._memory)]


def _structure(fields: list[tuple[int, int]], at: int) -> bytes:
    """(value, bytes) fields as a C structure that begins at or after offset `at`."""
    largest = max((size for _, size in fields), default=1)
    out = bytearray(-at % largest)
    start = len(out)
    for value, size in fields:
        out += bytes(-(len(out) - start) % size) + value.to_bytes(size, "little")
    return bytes(out) + bytes(-(len(out) - start) % largest)


@dataclass(frozen=True)
class ScalarSpec:
    """A number inside of a tuple. type: the DSL's."""

    type: Any

    def descriptor(self, value, _bound: Bound) -> Any:
        return value if hasattr(value, "__c_pointers__") else self.type(value)


@dataclass(frozen=True)
class PointerSpec:
    """A pointer. example: that which the function was compiled with. The TVM FFI takes an address,
    too.
    """

    example: Any

    def descriptor(self, value, _bound: Bound) -> Any:
        if not isinstance(value, int):
            return value
        like = self.example
        return type(like)(value, like._dtype, like._addr_space, like._assumed_align)


@dataclass(frozen=True)
class TupleSpec:
    """A tuple with tensors or numbers in it. items: a spec each, None for what is passed as it
    is.
    """

    at: str
    items: tuple

    def descriptor(self, values, bound: Bound) -> Any:
        """The tuple with its arguments in place; ValueError or TypeError if it does not fit."""
        if not isinstance(values, (tuple, list)):
            found = type(values).__name__
            raise TypeError(f"Mismatched type {self.at}, expected a tuple, not {found}")
        if len(values) != len(self.items):
            wanted = f"expected tuple size={len(self.items)}, not {len(values)}"
            raise ValueError(f"Mismatched tuple size {self.at}, {wanted}")
        pairs = zip(self.items, values, strict=True)
        filled = [
            v if spec is None or v is None else spec.descriptor(v, bound) for spec, v in pairs
        ]
        make = getattr(values, "_make", tuple)  # of a named tuple
        return make(filled)


_ON_GPU = "_b200_on_gpu"  # of a tensor of the DSL: whether it was made of one on "cuda"
Spec = TensorSpec | ScalarSpec | PointerSpec | TupleSpec


def spec_of(name: str, index: int, example, inside: bool = False) -> Spec | None:
    """The spec of an argument that a function was compiled with, None if it is passed as it is.
    index: of the argument. inside: it is an item of a tuple, which the DSL does not adapt.
    """
    from cutlass.base_dsl.typing import Numeric
    from cutlass.cute.runtime import _FakeTensor, _Pointer, _Tensor

    at = f"on {name} in argument #{index}" if inside else f"on argument #{index}"
    if isinstance(example, (tuple, list)):
        items = tuple(spec_of(f"{name}[{n}]", index, item, True) for n, item in enumerate(example))
        return TupleSpec(at, items) if any(items) else None
    if inside and isinstance(example, Numeric):
        return ScalarSpec(type(example))
    if type(example) is _Pointer:
        return PointerSpec(example)

    def masked(values, mask, bits: int):
        return tuple(Dynamic(bits) if dynamic else v for v, dynamic in zip(values, mask))

    def symbolic(values):
        return tuple(v if isinstance(v, int) else Dynamic(v.width, v) for v in values)

    if type(example) is _FakeTensor:
        shape, stride, on_gpu = symbolic(example.shape), symbolic(example.stride), True
    elif type(example) is _Tensor:
        bits = 32 if example._use_32bit_stride else 64
        shape = masked(example.shape, example.dynamic_shapes_mask, 32)
        stride = masked(example.stride, example.dynamic_strides_mask, bits)
        on_gpu = getattr(example, _ON_GPU, False)
    else:
        return None
    return TensorSpec(name, at, example.element_type, shape, stride, on_gpu)


def _shared(tensor: Any) -> Any:
    """What exports a tensor's memory. The TVM FFI takes a tensor that needs a gradient, too, which
    torch's own `__dlpack__` refuses.
    """
    return tensor.detach() if getattr(tensor, "requires_grad", False) else tensor


def patch(_runtime: Runtime) -> None:
    import cutlass.base_dsl.compiler as compiler
    import cutlass.base_dsl.jit_executor as jit
    import cutlass.cute.runtime as runtime
    from cutlass.cutlass_dsl.cutlass import CutlassBaseDSL

    patched: Any = compiler.CompileOptions
    patched.enable_tvm_ffi = property(lambda self: False)
    make_tensor, compile_and_cache = runtime._Tensor.__init__, CutlassBaseDSL.compile_and_cache
    generate = jit.ExecutionArgs.generate_execution_args

    @functools.wraps(make_tensor)
    def make_plain_tensor(
        self, *args: Any, enable_tvm_ffi: bool = False, **kwargs: Any
    ) -> None:  # args: tensor, ...
        setattr(self, _ON_GPU, getattr(args[0], "is_cuda", False))
        if enable_tvm_ffi:
            args = (_shared(args[0]), *args[1:])
        make_tensor(self, *args, **kwargs)

    @functools.wraps(compile_and_cache)
    def compile_with_specs(
        self,
        *args: Any,
        full_args: tuple | None = None,
        full_kwargs: dict | None = None,
        **kwargs: Any,
    ):
        function = compile_and_cache(
            self, *args, full_args=full_args, full_kwargs=full_kwargs, **kwargs
        )
        if self.compile_options.options[compiler.EnableTVMFFI].value:
            _record(function.execution_args, full_args or (), full_kwargs or {})
            function.export_to_c = _refuse_export
        return function

    @functools.wraps(generate)
    def generate_with_specs(self, args: tuple, kwargs: dict):
        specs = getattr(self, "tvm_ffi_specs", None)
        if specs is not None:
            args, kwargs = self.tvm_ffi_arguments = _arguments(self, specs, args, kwargs), {}
        return generate(self, args, kwargs)

    runtime._Tensor.__init__ = make_plain_tensor
    CutlassBaseDSL.compile_and_cache = compile_with_specs
    jit.ExecutionArgs.generate_execution_args = generate_with_specs


def _refuse_export(*_args: Any, **_kwargs: Any) -> NoReturn:
    """A library of its own would launch past the runtime functions that are taken over."""
    raise unsupported("export_to_c of a function compiled with --enable-tvm-ffi is not modelled")


def _record(execution_args, args: tuple, kwargs: dict) -> None:
    """Remember a function's tensors, and the streams that its caller may leave out."""
    bound = execution_args.original_signature.bind(*args, **kwargs).arguments
    names = [n for n in execution_args.signature.parameters if n in bound]
    execution_args.tvm_ffi_specs = {
        n: spec for i, n in enumerate(names) if (spec := spec_of(n, i, bound[n])) is not None
    }
    execution_args.tvm_ffi_streams = {
        n for n in names if getattr(bound[n], "use_tvm_ffi_env_stream", False)
    }


def _arguments(execution_args, specs: dict[str, Spec], args: tuple, kwargs: dict) -> tuple:
    """The arguments of a call in the order of the signature, tensors as descriptors."""
    from cuda.bindings.driver import CUstream

    names, streams = list(execution_args.signature.parameters), execution_args.tvm_ffi_streams
    given = [n for n in names if len(args) >= len(names) or n not in streams]
    values = dict.fromkeys(streams, CUstream(0)) | dict(zip(given, args, strict=False)) | kwargs
    bound = Bound()
    for name, spec in specs.items():
        if name in values:
            values[name] = spec.descriptor(values[name], bound)
    return tuple(execution_args.get_rectified_args((), values))
