"""Checks of the DSL's host code that CPU tensors would fail, switched off.

Alignment: tensors on "cuda" begin at multiples of 512 bytes (aligned_storage.py), CPU tensors at
multiples of 64. A tensor whose declared alignment is larger than that is held to 64, which is more
than any access of a B200 needs.

Context: there is none to initialise.
"""

from __future__ import annotations

import functools

from b200.host.runtime import Runtime

CPU_ALIGNMENT = 64  # bytes; torch's CPU allocator (c10 gAlignment)


def patch(_runtime: Runtime) -> None:
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
    ):
        held = assumed_align if assumed_align is None else min(assumed_align, CPU_ALIGNMENT)
        make_pointer(self, pointer, dtype, mem_space, held)
        if assumed_align is not None:
            self._assumed_align = assumed_align

    runtime._Pointer.__init__ = make_pointer_held_to_cpu_alignment
