"""What the DSL's host code would refuse only because the tensors are on the CPU.

TVM FFI: a function loads its kernel and reports errors in machine code that the hooks of runtime.py do not see, and it
refuses CPU tensors. The kernel does not depend on the convention and the DSL's own takes the same arguments, so in
the emulator `--enable-tvm-ffi` has no effect; the package apache-tvm-ffi is not needed.

Alignment: CUDA allocations begin at multiples of 256 bytes, torch's CPU allocations at multiples of 64. A tensor whose
declared alignment is larger than that is held to 64, which is more than any access of a B200 needs.

Context: there is none to initialise.
"""

from __future__ import annotations

import functools
import inspect

CPU_ALIGNMENT = 64  # bytes; torch's CPU allocator (c10 gAlignment)


def patch_host_code(settings):
    """Put the rules in place. settings: the DSL's environment settings."""
    _patch_calling_convention(settings)
    _patch_alignment()
    _patch_context()


def _patch_context():
    import cutlass.base_dsl.runtime.cuda as cuda

    cuda.initialize_cuda_context = lambda device_id=0, flags=0: None


def _patch_alignment():
    import cutlass.cute.runtime as runtime
    from cutlass.cute.typing import AddressSpace

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
    def make_pointer_held_to_cpu_alignment(self, pointer, dtype, mem_space=AddressSpace.generic, assumed_align=None):
        held = assumed_align if assumed_align is None else min(assumed_align, CPU_ALIGNMENT)
        make_pointer(self, pointer, dtype, mem_space, held)
        if assumed_align is not None:
            self._assumed_align = assumed_align

    runtime._Pointer.__init__ = make_pointer_held_to_cpu_alignment


def _patch_calling_convention(settings):
    import cutlass.base_dsl.compiler as compiler
    import cutlass.base_dsl.jit_executor as jit
    import cutlass.cute.runtime as runtime

    settings.enable_tvm_ffi = False
    compiler.CompileOptions.enable_tvm_ffi = property(lambda self: False)
    make_tensor = runtime._Tensor.__init__

    @functools.wraps(make_tensor)
    def make_plain_tensor(self, *args, enable_tvm_ffi=False, **kwargs):
        make_tensor(self, *args, **kwargs)

    runtime._Tensor.__init__ = make_plain_tensor
    rectify = jit.ExecutionArgs.get_rectified_args

    @functools.wraps(rectify)
    def rectify_with_stream(self, args, kwargs):
        return rectify(self, args, {**kwargs, **_missing_streams(self.signature, args, kwargs)})

    jit.ExecutionArgs.get_rectified_args = rectify_with_stream


def _missing_streams(signature: inspect.Signature, args: tuple, kwargs: dict) -> dict:
    """Streams a caller left out: the TVM FFI takes them from its environment."""
    from cuda.bindings.driver import CUstream

    parameters = list(signature.parameters.values())[len(args) :]
    return {p.name: CUstream(0) for p in parameters
            if p.name not in kwargs and p.default is p.empty and p.annotation in (CUstream, "cuda.CUstream", "CUstream")}  # fmt: skip
