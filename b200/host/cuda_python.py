"""The functions of cuda.bindings (cuda-python) that ask about the GPU, keep time, move memory and
record graphs, over a B200 in software.

Functions return (status, value ...), as there. What is not here raises EmulatorError with its name,
where cuda.bindings would say that there is no driver. Modules and kernels of cuda.bindings belong
to raw CUDA.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import torch

from b200 import hardware
from b200.errors import EmulatorError
from b200.host.device_attributes import device_attribute
from b200.host.runtime import Runtime
from b200.host.torch_cuda import Clock, missing

CONTEXT = 1  # handle of the one context
VERSION = 13_000  # of the driver: CUDA 13.0


def patch(runtime: Runtime) -> None:
    """Put the functions into cuda.bindings.driver and cuda.bindings.runtime, if installed."""
    try:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]
        from cuda.bindings import runtime as cudart  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return
    _refuse_nvrtc()
    state = _State(runtime)
    for module, functions, prefix in (
        (driver, _Driver(driver, state).functions(), "cu"),
        (cudart, _CudaRuntime(cudart, state).functions(), "cuda"),
    ):
        for name in dir(module):
            if name.startswith(prefix) and name[len(prefix) :][:1].isupper():
                if type(getattr(module, name)).__name__ in _FUNCTION_TYPES:
                    new = functions.get(name) or missing(f"{module.__name__}.{name}")
                    setattr(module, name, new)


def _refuse_nvrtc() -> None:
    """Say no where a program begins to compile, before a library is missing or a module loads."""
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return

    def nvrtcCreateProgram(*_args, **_kwargs):  # noqa: N802  a function of NVRTC
        raise EmulatorError(
            "unsupported",
            "NVRTC through cuda-python (nvrtcCreateProgram) is not in the software B200, which"
            " compiles raw CUDA of torch.utils.cpp_extension (load_inline, load)",
        )

    nvrtc.nvrtcCreateProgram = nvrtcCreateProgram


_FUNCTION_TYPES = ("cython_function_or_method", "builtin_function_or_method", "function")


class _State:
    """Handles of memory, events, queues and graphs, shared by both modules."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.clock = Clock(runtime)
        self.memory: dict[int, torch.Tensor] = {}
        self.events: dict[int, tuple[float, int] | None] = {}
        self.graphs: dict[int, list[tuple]] = {}
        self._handles = itertools.count(0x2000, 0x10)

    def handle(self) -> int:
        return next(self._handles)

    def allocate(self, size: int) -> int:
        block = torch.empty(int(size), dtype=torch.uint8)
        self.memory[block.data_ptr()] = block
        return block.data_ptr()

    def free(self, address: int) -> None:
        if address and self.memory.pop(address, None) is None:
            raise EmulatorError("fault", f"{address:#x} was freed, but never allocated")

    def elapsed(self, start: int, end: int) -> float:
        first, last = self.events.get(start), self.events.get(end)
        if first is None or last is None:
            raise EmulatorError("limit", "a time was asked for between events not yet recorded")
        return self.clock.milliseconds(first, last)

    def end_capture(self) -> int:
        launches, self.runtime.recording = self.runtime.recording, None
        if launches is None:
            raise EmulatorError("limit", "a capture ended that was never begun")
        graph = self.handle()
        self.graphs[graph] = launches
        return graph

    def begin_capture(self) -> None:
        self.runtime.recording = []

    def replay(self, graph: int) -> None:
        for launch in self.graphs[graph]:
            self.runtime.gpu.launch(*launch)


def _move(to: Any, source: Any, size: int) -> None:
    ctypes.memmove(_address(to), _address(source), int(size))


def _address(pointer: Any) -> int:
    """Of an int, a handle, or a buffer."""
    if isinstance(pointer, (bytes, bytearray, memoryview)) or hasattr(
        pointer, "__array_interface__"
    ):
        view = memoryview(pointer).cast("B")
        if view.readonly:
            return ctypes.cast(ctypes.c_char_p(bytes(view)), ctypes.c_void_p).value or 0
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    return int(pointer)


def _fill(address: Any, value: int, count: int, width: int) -> None:
    pattern = int(value).to_bytes(4, "little", signed=value < 0)[:width]
    if len(set(pattern)) == 1:
        ctypes.memset(int(address), pattern[0], int(count) * width)
    else:
        ctypes.memmove(int(address), pattern * int(count), int(count) * width)


class _Module:
    """What the driver's and the runtime's functions have in common: statuses and handles."""

    def __init__(self, module: Any, state: _State, success: Any):
        self.module, self.state, self.success = module, state, success

    def nothing(self, *_args, **_kwargs):
        return (self.success,)

    def gives(self, *values):
        return lambda *_args, **_kwargs: (self.success, *values)

    def does(self, action):
        """`action` without a result."""

        def call(*args, **kwargs):
            action(*args, **kwargs)
            return (self.success,)

        return call

    def makes(self, action):
        """`action` with one result."""
        return lambda *args, **kwargs: (self.success, action(*args, **kwargs))

    def attribute(self, attribute, _device) -> int:
        return device_attribute(int(attribute))

    def event(self, kind):
        def create(*_flags):
            handle = self.state.handle()
            self.state.events[handle] = None
            return kind(handle)

        return create

    def record(self, event, _queue=0) -> None:
        self.state.events[int(event)] = self.state.clock.now()

    def elapsed(self, start, end) -> float:
        return self.state.elapsed(int(start), int(end))


class _Driver(_Module):
    """cuda.bindings.driver."""

    def __init__(self, driver: Any, state: _State):
        super().__init__(driver, state, driver.CUresult.CUDA_SUCCESS)

    def functions(self) -> dict[str, Any]:
        d, state, nothing = self.module, self.state, self.nothing
        context, device = d.CUcontext(CONTEXT), d.CUdevice(0)
        names = {
            "cuInit": nothing,
            "cuDriverGetVersion": self.gives(VERSION),
            "cuDeviceGetCount": self.gives(1),
            "cuDeviceGet": self.gives(device),
            "cuDeviceGetName": self.gives(hardware.NAME.encode()),
            "cuDeviceGetAttribute": self.makes(self.attribute),
            "cuDeviceComputeCapability": self.gives(*hardware.COMPUTE_CAPABILITY),
            "cuDeviceTotalMem": self.gives(hardware.MEMORY_BYTES),
            "cuMemGetInfo": self.gives(hardware.MEMORY_BYTES, hardware.MEMORY_BYTES),
            "cuGetErrorName": self.makes(lambda error: d.CUresult(error).name.encode()),
            "cuGetErrorString": self.makes(lambda error: d.CUresult(error).name.encode()),
            "cuEventCreate": self.makes(self.event(d.CUevent)),
            "cuEventRecord": self.does(self.record),
            "cuEventElapsedTime": self.makes(self.elapsed),
            "cuEventDestroy": self.does(lambda event: state.events.pop(int(event), None)),
            "cuMemAlloc": self.makes(lambda size: d.CUdeviceptr(state.allocate(size))),
            "cuMemFree": self.does(lambda pointer: state.free(int(pointer))),
        }
        for name in ("cuCtxGetCurrent", "cuCtxCreate", "cuDevicePrimaryCtxRetain"):
            names[name] = self.gives(context)
        names |= {"cuCtxPopCurrent": self.gives(context), "cuCtxGetDevice": self.gives(device)}
        names |= dict.fromkeys(
            ("cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxSynchronize", "cuCtxDestroy"), nothing
        )
        names |= dict.fromkeys(("cuDevicePrimaryCtxRelease", "cuEventSynchronize"), nothing)
        names |= dict.fromkeys(("cuStreamSynchronize", "cuStreamDestroy"), nothing)
        names |= dict.fromkeys(("cuStreamQuery", "cuStreamWaitEvent", "cuEventQuery"), nothing)
        for name in ("cuStreamCreate", "cuStreamCreateWithPriority"):
            names[name] = self.makes(lambda *_flags: d.CUstream(state.handle()))
        for width, bits in ((1, 8), (2, 16), (4, 32)):
            fill = self.does(lambda to, value, n, *_queue, w=width: _fill(to, value, n, w))
            names[f"cuMemsetD{bits}"] = names[f"cuMemsetD{bits}Async"] = fill
        for way in ("HtoD", "DtoH", "DtoD"):
            move = self.does(lambda to, source, size, *_queue: _move(to, source, size))
            names[f"cuMemcpy{way}"] = names[f"cuMemcpy{way}Async"] = move
        return names


class _CudaRuntime(_Module):
    """cuda.bindings.runtime."""

    def __init__(self, cudart: Any, state: _State):
        super().__init__(cudart, state, cudart.cudaError_t.cudaSuccess)

    def functions(self) -> dict[str, Any]:
        r, state, nothing = self.module, self.state, self.nothing
        names = {
            "cudaGetDevice": self.gives(0),
            "cudaGetDeviceCount": self.gives(1),
            "cudaDriverGetVersion": self.gives(VERSION),
            "cudaRuntimeGetVersion": self.gives(VERSION),
            "cudaDeviceGetAttribute": self.makes(self.attribute),
            "cudaMemGetInfo": self.gives(hardware.MEMORY_BYTES, hardware.MEMORY_BYTES),
            "cudaGetErrorName": self.makes(lambda error: r.cudaError_t(error).name.encode()),
            "cudaGetErrorString": self.makes(lambda error: r.cudaError_t(error).name.encode()),
            "cudaEventCreate": self.makes(self.event(r.cudaEvent_t)),
            "cudaEventCreateWithFlags": self.makes(self.event(r.cudaEvent_t)),
            "cudaEventRecord": self.does(self.record),
            "cudaEventElapsedTime": self.makes(self.elapsed),
            "cudaEventDestroy": self.does(lambda event: state.events.pop(int(event), None)),
            "cudaMalloc": self.makes(state.allocate),
            "cudaFree": self.does(lambda pointer: state.free(int(pointer))),
            "cudaStreamBeginCapture": self.does(lambda *_: state.begin_capture()),
            "cudaStreamEndCapture": self.makes(lambda _: r.cudaGraph_t(state.end_capture())),
            "cudaGraphGetNodes": self._nodes,
            "cudaGraphInstantiate": self.makes(lambda graph, *_: r.cudaGraphExec_t(int(graph))),
            "cudaGraphLaunch": self.does(lambda graph, _queue: state.replay(int(graph))),
        }
        names |= dict.fromkeys(
            ("cudaSetDevice", "cudaDeviceSynchronize", "cudaGetLastError"), nothing
        )
        names |= dict.fromkeys(("cudaStreamSynchronize", "cudaStreamDestroy"), nothing)
        names |= dict.fromkeys(("cudaStreamQuery", "cudaStreamWaitEvent"), nothing)
        names |= dict.fromkeys(("cudaEventSynchronize", "cudaEventQuery"), nothing)
        names |= dict.fromkeys(("cudaGraphDestroy", "cudaGraphExecDestroy"), nothing)
        for name in ("", "WithFlags", "WithPriority"):
            names[f"cudaStreamCreate{name}"] = self.makes(
                lambda *_flags: r.cudaStream_t(state.handle())
            )
        for suffix in ("", "Async"):
            names[f"cudaMemset{suffix}"] = self.does(
                lambda to, value, n, *_queue: _fill(to, value & 0xFF, n, 1)
            )
            names[f"cudaMemcpy{suffix}"] = self.does(
                lambda to, source, size, *_kind: _move(to, source, size)
            )
        return names

    def _nodes(self, graph, _count=0):
        launches = self.state.graphs[int(graph)]
        return (
            self.success,
            [self.module.cudaGraphNode_t(i + 1) for i in range(len(launches))],
            len(launches),
        )
