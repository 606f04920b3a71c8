"""What a call of custom_kernel costs on the host: `python -m lab host_path`.

Only the host: the driver is replaced by a C function that does nothing. A line has the cost of the
whole call, and of its parts: checking the input and finding its problem, taking the addresses, and
calling the compiled function. Exit status 1: a whole call is over TARGET_US.
"""

from __future__ import annotations

import ctypes
import os
import sys
import timeit
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")

import cutlass._mlir.execution_engine as engines
import cutlass.cutlass_dsl.cuda_jit_executor as cuda_jit

import reference
import submission
from b200.command_line import Parser
from b200.host.runtime import ARGUMENTS

TARGET_US = 100.0
CALLS, REPEATS = 20, 1000  # short runs, so that some are not interrupted

CASES = {
    "gemv": ("nvfp4_gemv", {"m": 128, "k": 256, "l": 1}),
    "gemm": ("nvfp4_gemm", {"m": 128, "n": 128, "k": 256, "l": 1}),
    "dual gemm": ("nvfp4_dual_gemm", {"m": 128, "n": 128, "k": 256, "l": 1}),
    "group gemm of 8": ("nvfp4_group_gemm", {"m": (64,) * 8, "n": (128,) * 8, "k": (256,) * 8}),
}


def take_over_the_runtime() -> None:
    """Launches end in pthread_equal(config, kernel), which is 0, success; all else succeeds too."""

    def succeed(name: str):
        def call(out, *_):
            if name in ("_cudaLibraryLoadData", "_cudaLibraryGetKernel"):
                ctypes.c_uint64.from_address(out).value = 16  # a handle
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * ARGUMENTS[name])(call)

    # The driver's own, but for the launch: tensormaps are encoded by the DSL's host code.
    names = [name for name in ARGUMENTS if name != "_cuTensorMapEncodeTiled"]
    functions: dict[str, Any] = {name: succeed(name) for name in names}
    functions["_cudaLaunchKernelEx"] = ctypes.CDLL(None).pthread_equal

    class Engine(engines.ExecutionEngine):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.functions = functions
            for name, function in functions.items():
                self.raw_register_runtime(name, ctypes.cast(function, ctypes.c_void_p))

    engines.ExecutionEngine = Engine
    patched: Any = cuda_jit.CudaDialectJitCompiledFunction
    patched.num_devices = property(lambda self: 1)


def microseconds(function: Callable[[], object]) -> float:
    """The fastest of several runs: what else the machine does only adds."""
    return min(timeit.repeat(function, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def measure(problem: str, args: dict) -> tuple[float, float, float, float]:
    """The whole call, the problem, the addresses, the compiled function."""
    data = reference.generate_input(problem, seed=1, **args)
    submission.custom_kernel(data)
    groups, _ = submission.unpack(data)
    form = submission.problem_of(data, groups)
    config = submission.pick(form)
    kernel, _ = submission.kernel_for(form, config)
    words = [[16] * (len(forms) + 5) for forms in submission.forms_of(form)]

    return (
        microseconds(lambda: submission.custom_kernel(data)),
        microseconds(lambda: submission.problem_of(data, submission.unpack(data)[0])),
        microseconds(lambda: submission.bind(form, groups, config)),
        microseconds(lambda: kernel(submission.Words(words))),
    )


def main() -> int:
    Parser("python -m lab host_path", __doc__).parse_args()
    take_over_the_runtime()
    print("microseconds a call, host only (no driver)")
    print(f"{'problem':16} whole call  problem  addresses  compiled function")
    late = False
    for name, (problem, args) in CASES.items():
        whole, *parts = measure(problem, args | ({"g": 8} if "group" in name else {}))
        late |= whole > TARGET_US
        shown = "  ".join(f"{part:7.2f}" for part in parts)
        print(f"{name:16} {whole:10.2f}  {shown}", flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
