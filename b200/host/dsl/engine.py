"""The CuTe DSL over the runtime functions of this package.

The DSL's JIT engine resolves a few CUDA runtime functions by name. A subclass of its execution
engine registers callbacks for them before anything is linked, so the DSL's own host code packs
tensormaps and kernel parameters and then launches into `Runtime.launch_kernel`. The PTX is the
compiler's own dump (`keep_ptx`), with line information.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from b200.errors import EmulatorError
from b200.host import refusals
from b200.host.runtime import Runtime
from b200.host.takeover import replace

_ARCH = "sm_100a"
_PREFIX = "b200-ptx-"  # of a folder of PTX
_LONGEST = 3600  # seconds that no compilation takes
_FOLDER = "b200_ptx_folder"
_ASSERTED = ("_cuTensorMapEncodeTiled",)  # the DSL's host code ends the process when it fails


def connect(runtime: Runtime) -> None:
    """Make the DSL compile for sm_100a and launch into `runtime`."""
    keep_ptx()
    _patch(runtime)
    _patch_unloading(runtime)


def keep_ptx() -> None:
    """Compile for sm_100a, keep the PTX with line information."""
    os.environ.setdefault("CUTE_DSL_ARCH", _ARCH)
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    every = [frontend.envar for frontend in frontends()]
    _patch_ptx_folder(asked=any(settings.keep_ptx for settings in every))
    for settings in every:
        settings.arch = os.environ["CUTE_DSL_ARCH"]
        settings.keep_ptx = settings.lineinfo = True
        settings.disable_file_caching = True
        settings.enable_tvm_ffi = False


def _patch_ptx_folder(asked: bool) -> None:
    """The DSL writes the PTX that it keeps into a folder for each compilation, removed after it.
    Not one for the process: a forked one may end without a word (multiprocessing calls os._exit, a
    signal kills), and what is left to its end stays for ever. asked: the program has asked the DSL
    for its PTX (CUTE_DSL_KEEP, CUTE_DSL_DUMP_DIR), and gets it where it has asked for it.
    """
    import cutlass.base_dsl.compiler as compiler
    import cutlass.base_dsl.dsl as dsl

    _remove_what_killed_processes_left()
    if asked:
        return
    apply = compiler.CompileOptions.apply_envar_settings
    clean_up = dsl.BaseDSL.post_compilation_cleanup

    def apply_with_folder(self, envar, function_name: str) -> None:
        apply(self, envar, function_name)
        kept = self.options[compiler.KeepPTX]
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        setattr(self, _FOLDER, folder)
        for name in ("dump_path", "full_ptx_path"):
            setattr(kept, name, str(Path(folder.name, Path(getattr(kept, name)).name)))

    def clean_up_with_folder(self) -> None:
        folder = getattr(self.compile_options, _FOLDER, None)
        clean_up(self)
        if folder is not None:
            folder.cleanup()

    compiler.CompileOptions.apply_envar_settings = apply_with_folder
    dsl.BaseDSL.post_compilation_cleanup = clean_up_with_folder


def _remove_what_killed_processes_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LONGEST:
                shutil.rmtree(folder, ignore_errors=True)


def frontends() -> list[Any]:
    from cutlass.cutlass_dsl import cutlass as dsls

    names = ("CuTeDSL", "CuteExperimentalDSL")
    return [getattr(dsls, name)._get_dsl() for name in names if hasattr(dsls, name)]


def _callback(runtime: Runtime, name: str, count: int, method: Callable):
    """The function of C that takes the place of a runtime function of so many arguments."""
    failed = 0 if name in _ASSERTED else refusals.LAUNCH_FAILURE

    def call(*args: Any):
        if runtime.error is not None:
            return failed
        try:
            method(*(a or 0 for a in args))
        except BaseException as error:  # noqa: BLE001  must not unwind through machine code
            if isinstance(error, EmulatorError) and error.kind == "limit" and failed:
                runtime.refused = error
                return refusals.code_of(error, launch=name == "_cudaLaunchKernelEx")
            runtime.error = error
            return failed
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * count)(call)


def _patch(runtime: Runtime) -> None:
    import cutlass._mlir.execution_engine as engines
    import cutlass.base_dsl.jit_executor as jit
    import cutlass.cutlass_dsl.cuda_jit_executor as cuda_jit

    callbacks = {
        name: _callback(runtime, name, *of) for name, of in runtime.runtime_functions().items()
    }

    class Engine(engines.ExecutionEngine):
        """The DSL's engine, the runtime functions replaced (registered later they crash). What it
        makes machine code of is the host's part alone, which is not worth being optimised.
        """

        def __init__(self, *args: Any, **kwargs: Any):
            if "opt_level" in kwargs:
                kwargs["opt_level"] = 0
            super().__init__(*args, **kwargs)
            self.callbacks = callbacks
            for name, function in callbacks.items():
                self.raw_register_runtime(name, ctypes.cast(function, ctypes.c_void_p))

        def lookup(self, name: str):
            function = super().lookup(name)

            def check(result, _function, _args):
                runtime.raise_error()
                return result

            function.errcheck = check
            return function

    engines.ExecutionEngine = Engine
    load = cuda_jit.CudaDialectJitCompiledFunction._load_cuda_library

    def load_with_ptx(self):
        runtime.loading = self.__ptx__
        try:
            return load(self)
        except Exception:
            runtime.raise_error()
            raise
        finally:
            runtime.loading = None

    cuda_jit.CudaDialectJitCompiledFunction._load_cuda_library = load_with_ptx
    patched: Any = cuda_jit.CudaDialectJitCompiledFunction
    patched.num_devices = property(lambda self: 1)
    run, refused_type = jit.JitExecutor.run_compiled_program, _refused_type()

    def run_unwrapped(self, exe_args: list):
        try:
            result = run(self, exe_args)
        except Exception as error:
            runtime.raise_refused(refused_type)
            cause = getattr(error, "cause", None) or error.__cause__
            if isinstance(cause, EmulatorError):
                raise cause from None
            raise
        runtime.raise_refused(refused_type)
        return result

    jit.JitExecutor.run_compiled_program = run_unwrapped


def _patch_unloading(runtime: Runtime) -> None:
    """A compiled function that is collected gives back a handle of ours, which no driver knows."""
    import cutlass.cutlass_dsl.cuda_jit_executor as cuda_jit

    def unload(self) -> None:
        while self.cuda_library:
            runtime.unload(int(self.cuda_library.pop()))
        self._unloaded = True

    for name in ("CudaDialectJitModule", "CudaDialectJitCompiledFunction"):
        owner = getattr(cuda_jit, name, None)
        if hasattr(owner, "unload"):
            replace(owner, "unload", lambda _: unload)


def _refused_type() -> Callable[[EmulatorError], EmulatorError]:
    """What is raised where CUDA refuses a launch: the DSL's own error, with its number for programs
    that expect it, and the reason as `str()`.
    """
    from cutlass.base_dsl.common import DSLCudaRuntimeError

    class RefusedLaunch(EmulatorError, DSLCudaRuntimeError):
        def __init__(self, refused: EmulatorError):
            code = refusals.code_of(refused, launch=True)
            DSLCudaRuntimeError.__init__(self, code, refusals.NAMES[code][0])
            EmulatorError.__init__(self, "limit", str(refused))

        def __str__(self) -> str:
            return str(self.args[0])

        def __reduce__(self):
            return EmulatorError.__reduce__(self)

    return RefusedLaunch
