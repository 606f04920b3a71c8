"""The compiler of TIRx-kernels' own kernels: the wheel apache-tvm 0.27.0.post1.

The kernels were made with a commit that lies between two releases, and three of its names are not
those of the wheel. They get the names of today here; the kernels' sources stay as they are. CUDA
C++ that the compiler makes goes through nvcc to PTX, with the compiler's own options.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

ARCH = "sm_100a"
CHECKS = "low_level_ir"  # the module of checks of the IR, which ask for more of the names


def prepare(package: str) -> None:
    """Make the compiler known to the kernels of `package`. Raises ImportError without the wheel."""
    tirx: Any = importlib.import_module("tvm.tirx")
    ir: Any = importlib.import_module("tvm.ir")
    tvm_ffi: Any = importlib.import_module("tvm_ffi")
    nvcc: Any = importlib.import_module("tvm.support.nvcc")
    os.environ["TIRX_PREPARE_CUDA_ARCH"] = ARCH
    ir.TensorLoad.buffer = property(lambda load: load.source)
    tirx.BufferLoad = ir.TensorLoad

    def ir_transform(body: Any, _before: None, after: Callable[[Any], Any]) -> Any:
        def each(statement: Any) -> Any:
            found = after(statement)
            return statement if found is None else found

        return tvm_ffi.structural_map(body, (tirx.SeqStmt, each))

    functor: Any = types.ModuleType("tvm.tirx.stmt_functor")
    functor.ir_transform = ir_transform
    tirx.stmt_functor = sys.modules[functor.__name__] = functor
    sys.modules[f"{package}.{CHECKS}"] = _Unchecked(f"{package}.{CHECKS}")

    def compiled(code: str) -> bytearray:
        return nvcc.compile_cuda(code, target_format="ptx", arch=ARCH, compiler="nvcc")

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


class _Unchecked(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None
