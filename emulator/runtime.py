"""Stands in for the CUDA runtime under the CuTe DSL's host code.

The DSL's JIT engine resolves a few runtime functions by name. `install` puts a subclass of its
execution engine in place that registers callbacks for them before anything is linked, so the DSL's
own host code packs tensormaps and kernel parameters and then launches into `Gpu.launch`. CPU
tensors are global memory: a device pointer is a host address. A process that never calls `install`
is untouched.

The PTX is the compiler's own dump (`keep_ptx`), with line information.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import struct
import tempfile
import time

from .calling import patch_host_code
from .checker import Checked
from .driver import tensor_map_encode_tiled
from .errors import EmulatorError, Unsupported
from .graphs import patch_torch
from .hardware import COMPUTE_CAPABILITY, SMEM_OPT_IN
from .launch import Launch
from .machine import Machine
from .program import Program
from .ptx import parse
from .schedules import Schedule, Scheduled
from .schedules import parse as parse_schedule
from .state import GlobalMemory
from .tensors import LiveTensors
from .translate import Translated, translate
from .variables import ModuleVariables

_ARCH = "sm_100a"
_ATTRIBUTE_CLUSTER = 4  # cudaLaunchAttributeClusterDimension
_ATTRIBUTE_BYTES = 72  # sizeof(cudaLaunchAttribute)
_FAILED = 719  # cudaErrorLaunchFailure
_DEVICE_ATTRIBUTES = {  # cudaDeviceAttr -> value
    75: COMPUTE_CAPABILITY[0],
    76: COMPUTE_CAPABILITY[1],
    97: SMEM_OPT_IN,
}
# Name of a CUDA runtime or driver function that the DSL's host code calls -> number of arguments.
ARGUMENTS = {
    "_cudaLibraryLoadData": 8,
    "_cudaLibraryGetKernel": 3,
    "_cudaDeviceGetAttribute": 3,
    "_cuKernelGetAttribute": 4,
    "_cudaKernelSetAttributeForDevice": 4,
    "_cudaFuncSetAttribute": 3,
    "_cudaGetDevice": 1,
    "_cudaSetDevice": 1,
    "_cudaLaunchKernelEx": 3,
    "_cuTensorMapEncodeTiled": 12,
}
_ASSERTED = (
    "_cuTensorMapEncodeTiled",
)  # the DSL's host code ends the process when one of these fails


class Gpu:
    """The software B200 of this process. `launches`: a report for each finished launch, in
    order.
    """

    def __init__(self):
        self.tensors = LiveTensors()
        self.memory = GlobalMemory(self.tensors.find)
        self.machine = Machine(self.memory)
        self.launches: list[Launch] = []
        self.error: BaseException | None = None
        self.recording: list | None = None  # launches of a CUDA graph under capture (graphs.py)
        self.loading: str | None = (
            None  # PTX of the compiled function whose library is being loaded
        )
        self._programs: dict[int, Program] = {}
        self._kernels: dict[int, tuple[Program, str]] = {}
        self._translated: dict[tuple[int, str], Translated] = {}
        self._parsed: dict[str, Program] = {}
        self._handles = 0x10000
        self._variables = ModuleVariables()

    # --- what the runtime functions do
    # ----------------------------------------------------------------------
    def runtime_functions(self) -> dict:
        """What takes the place of the runtime functions, by name."""
        return {
            "_cudaLibraryLoadData": self.library_load_data,
            "_cudaLibraryGetKernel": self.library_get_kernel,
            "_cudaDeviceGetAttribute": self.device_get_attribute,
            "_cuKernelGetAttribute": self.kernel_get_attribute,
            "_cudaKernelSetAttributeForDevice": self.accept,
            "_cudaFuncSetAttribute": self.accept,
            "_cudaGetDevice": self.get_device,
            "_cudaSetDevice": self.accept,
            "_cuTensorMapEncodeTiled": tensor_map_encode_tiled,
            "_cudaLaunchKernelEx": self.launch_kernel,
        }

    def _handle(self) -> int:
        self._handles += 16
        return self._handles

    def library_load_data(self, out, code, *_):
        if self.loading is None:
            raise EmulatorError(
                "unsupported",
                "a kernel was compiled before emulator.install(): its PTX is not at hand; "
                "call emulator.install() before the first cute.compile or @cute.jit call",
            )
        if self.loading not in self._parsed:
            self._parsed[self.loading] = self._parse(self.loading)
        handle = self._handle()
        self._programs[handle] = self._parsed[self.loading]
        _poke(out, "<Q", handle)

    def _parse(self, text: str) -> Program:
        try:
            return parse(text)
        except Unsupported as error:
            raise EmulatorError("unsupported", str(error)) from None

    def library_get_kernel(self, out, library, name):
        handle = self._handle()
        self._kernels[handle] = (self._programs[library], ctypes.string_at(name).decode())
        _poke(out, "<Q", handle)

    def device_get_attribute(self, out, attribute, _device):
        _poke(out, "<i", _DEVICE_ATTRIBUTES.get(attribute & 0xFFFFFFFF, 0))

    def kernel_get_attribute(self, out, *_):
        _poke(out, "<i", 0)

    def get_device(self, out):
        _poke(out, "<i", 0)

    def accept(self, *_):
        """Attributes of a kernel (shared-memory carve-out, non-portable clusters): nothing to
        do.
        """

    def launch_kernel(self, config, kernel, args):
        *sizes, dynamic = struct.unpack("<6I", ctypes.string_at(config, 24)) + struct.unpack(
            "<Q", ctypes.string_at(config + 24, 8)
        )
        attributes, count = struct.unpack("<QI", ctypes.string_at(config + 40, 12))
        cluster = (1, 1, 1)
        for i in range(count):
            at = attributes + i * _ATTRIBUTE_BYTES
            if struct.unpack("<I", ctypes.string_at(at, 4))[0] == _ATTRIBUTE_CLUSTER:
                cluster = struct.unpack("<3I", ctypes.string_at(at + 8, 12))
        program, name = self._kernels[kernel]
        parameters = program.kernels[name].params
        params = bytearray(program.kernels[name].param_bytes)
        pointers = struct.unpack(
            f"<{len(parameters)}Q", ctypes.string_at(args, 8 * len(parameters))
        )
        for parameter, pointer in zip(parameters, pointers, strict=True):
            params[parameter.offset : parameter.offset + parameter.size] = ctypes.string_at(
                pointer, parameter.size
            )
        launch = (program, name, sizes[:3], sizes[3:], cluster, dynamic, bytes(params))
        if self.recording is not None:
            self.recording.append(launch)
        else:
            self.launch(*launch)

    def launch(
        self, program: Program, name: str, grid, block, cluster, dynamic_smem: int, params: bytes
    ) -> Launch:
        """Run one kernel of a parsed PTX module; returns and records its report."""
        key = (id(program), name, self.machine.writer_type)
        if key not in self._translated:
            try:
                self._translated[key] = translate(
                    program, program.kernels[name], self.machine.writer_type
                )
            except Unsupported as error:
                raise EmulatorError("unsupported", f"{error}\n  kernel {name}") from None
        self.tensors.refresh(self.memory)
        self.machine.symbols = self._variables.place(program, self.memory)
        start = time.perf_counter()
        launch = self.machine.launch(
            self._translated[key], grid, block, cluster, dynamic_smem, params
        )
        launch.seconds = time.perf_counter() - start
        self.launches.append(launch)
        return launch

    def use_checker(self, check: bool = True, schedule: Schedule | None = None):
        """From now on launches are checked (`launch.findings`), and run in the order of a
        schedule.
        """
        parts = (Checked,) if check else ()
        parts += (Scheduled,) if schedule is not None else ()
        machine = type("Machine", (*parts, Machine), {"schedule": schedule})(self.memory)
        self.machine = machine

    def use_timing(self, options=None):
        """From now on launches take simulated time, kept in `launch.time`; options:
        emulator.timing.Options.
        """
        from .timing import TimedMachine

        machine = TimedMachine(self.memory, options)
        self.machine = machine

    def raise_error(self):
        """Raise what a callback could not: an exception cannot cross the JIT's machine code."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def _poke(address: int, code: str, value: int):
    ctypes.memmove(address, struct.pack(code, value), struct.calcsize(code))


_gpu: Gpu | None = None


def install(
    check: bool = True, timing: bool = False, gpu: Gpu | None = None, schedule: str | None = None
) -> Gpu:
    """From now on every kernel this process compiles with the CuTe DSL and launches runs in the
    emulator.

    Call before the first compile. Returns the Gpu; calling again returns the same one. gpu: what
    launches kernels instead, a subclass of Gpu with a `launch` of its own. timing: True, or
    emulator.timing.Options: launches take simulated time. check: launches without a clock are
    checked for races and protocol errors (`launch.findings`). schedule: "early", "late" or
    "random:SEED", the order in which warps and completions take turns (schedules.py).
    """
    global _gpu
    if _gpu is None:
        _gpu = gpu or Gpu()
        _configure_dsl()
        _patch(_gpu)
        patch_torch(_gpu)
    if timing:
        _gpu.use_timing(None if timing is True else timing)
    else:
        _gpu.use_checker(check, parse_schedule(schedule) if schedule else None)
    return _gpu


def _configure_dsl():
    """Compile for sm_100a, keep the PTX with line information, into a directory of this process."""
    os.environ.setdefault("CUTE_DSL_ARCH", _ARCH)
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    from cutlass.cutlass_dsl import cutlass as dsls

    frontends = [getattr(dsls, n) for n in ("CuTeDSL", "CuteExperimentalDSL") if hasattr(dsls, n)]
    every = [frontend._get_dsl().envar for frontend in frontends]
    for settings in every:
        settings.arch = os.environ["CUTE_DSL_ARCH"]
        settings.keep_ptx = settings.lineinfo = True
        settings.disable_file_caching = True
        settings.enable_tvm_ffi = False
    patch_host_code()

    def fresh_directory():
        directory = tempfile.mkdtemp(prefix="emulator-ptx-")
        for settings in every:
            settings.dump_dir = directory
        atexit.register(shutil.rmtree, directory, ignore_errors=True)

    fresh_directory()
    os.register_at_fork(after_in_child=fresh_directory)


def _callback(gpu: Gpu, method, name: str):
    failed = 0 if name in _ASSERTED else _FAILED

    def call(*args):
        if gpu.error is not None:
            return failed
        try:
            method(*(a or 0 for a in args))
        except BaseException as error:  # noqa: BLE001  must not unwind through machine code
            gpu.error = error
            return failed
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * ARGUMENTS[name])(call)


def _patch(gpu: Gpu):
    import cutlass._mlir.execution_engine as engines
    import cutlass.base_dsl.jit_executor as jit
    import cutlass.cutlass_dsl.cuda_jit_executor as cuda_jit

    callbacks = {
        name: _callback(gpu, method, name) for name, method in gpu.runtime_functions().items()
    }

    class Engine(engines.ExecutionEngine):
        """The DSL's engine with the runtime functions replaced (registering later than here
        crashes).
        """

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.callbacks = callbacks
            for name, function in callbacks.items():
                self.raw_register_runtime(name, ctypes.cast(function, ctypes.c_void_p))

        def lookup(self, name):
            function = super().lookup(name)

            def check(result, _function, _args):
                gpu.raise_error()
                return result

            function.errcheck = check
            return function

    engines.ExecutionEngine = Engine
    load = cuda_jit.CudaDialectJitCompiledFunction._load_cuda_library

    def load_with_ptx(self):
        gpu.loading = self.__ptx__
        try:
            return load(self)
        except Exception:
            gpu.raise_error()
            raise
        finally:
            gpu.loading = None

    cuda_jit.CudaDialectJitCompiledFunction._load_cuda_library = load_with_ptx
    cuda_jit.CudaDialectJitCompiledFunction.num_devices = property(lambda self: 1)
    run = jit.JitExecutor.run_compiled_program

    def run_unwrapped(self, exe_args):
        try:
            return run(self, exe_args)
        except Exception as error:
            cause = getattr(error, "cause", None) or error.__cause__
            if isinstance(cause, EmulatorError):
                raise cause from None
            raise

    jit.JitExecutor.run_compiled_program = run_unwrapped
