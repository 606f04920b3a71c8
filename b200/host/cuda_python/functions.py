"""The functions of cuda.bindings (cuda-python) that ask about the GPU, keep time, move memory and
record graphs, over a B200 in software.

Functions return (status, value ...), as there: what a B200 refuses has its status, and None in the
place of values; stderr says why. What is not here raises EmulatorError with its name, where
cuda.bindings would say that there is no driver. Modules, kernels and launches:
kernels.py; the compiler: nvrtc.py.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from b200 import hardware
from b200.errors import EmulatorError, Fault
from b200.host import refusals
from b200.host.cuda.graphs import Graphs
from b200.host.cuda.modules import MANAGED, Modules
from b200.host.cuda_python import core
from b200.host.cuda_python.graphs import GraphFunctions
from b200.host.cuda_python.host_memory import address_of
from b200.host.cuda_python.kernels import Kernels
from b200.host.device_attributes import device_attribute
from b200.host.event_clock import Events
from b200.host.imports import when_imported
from b200.host.queues import DEFAULT, HOST
from b200.host.refusals import Refused, invalid, missing

CONTEXT = 1  # handle of the one context
VERSION = 13_000  # of the driver: CUDA 13.0


def patch(modules: Modules) -> None:
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]
    from cuda.bindings import runtime as cudart  # pyright: ignore[reportAttributeAccessIssue]

    originals: dict[Any, dict[str, Any]] = {}
    state, kernels = _State(modules), Kernels(driver, modules)
    for part, more in (
        (_Driver(driver, state), kernels.driver_functions()),
        (_CudaRuntime(cudart, state), kernels.runtime_functions(cudart)),
    ):
        module, prefix, functions = part.module, part.prefix, part.functions() | part.all(more)
        for name, value in list(vars(module).items()):
            of_cuda = name.startswith(prefix) and name[len(prefix) :][:1].isupper()
            if of_cuda and callable(value) and not isinstance(value, type):
                new = functions.get(name) or missing(f"{module.__name__}.{name}")
                if module is driver:
                    originals.setdefault(module, {})[name] = value
                setattr(module, name, new)
    core.refuse_libraries()
    when_imported("cuda.core", lambda core_: core.take_over(core_, modules, originals))


_WAYS = ("HtoH", "HtoD", "DtoH", "DtoD", "")  # of a cudaMemcpyKind
_WITHOUT_TIME = 2  # CU_EVENT_DISABLE_TIMING
# Results after the status, where they are not one, by names without "cu" and "cuda".
_RESULTS = {
    **dict.fromkeys(("ModuleGetGlobal", "LibraryGetGlobal", "GraphGetNodes"), 2),
    **dict.fromkeys(("ModuleUnload", "LibraryUnload", "FuncLoad", "StreamBeginCapture"), 0),
    **dict.fromkeys(("FuncSetCacheConfig", "KernelSetCacheConfig", "FuncSetAttribute"), 0),
    **dict.fromkeys(("KernelSetAttribute", "KernelSetAttributeForDevice"), 0),
    **dict.fromkeys(("LaunchKernel", "LaunchCooperativeKernel", "LaunchKernelEx"), 0),
    **dict.fromkeys(("GraphLaunch", "GraphDestroy", "GraphExecDestroy"), 0),
}


def _ordinal(device: Any) -> int:
    if int(device):
        raise Refused(refusals.INVALID_DEVICE, f"there is one device, number 0, not {int(device)}")
    return 0


class _State:
    """Handles of memory, events, queues and graphs, shared by both modules."""

    def __init__(self, modules: Modules):
        self.modules, self.runtime = modules, modules.runtime
        self.queues, self.events = modules.runtime.queues, Events(modules.runtime)
        self.pinned: dict[int, ctypes.Array] = {}
        self.graphs = Graphs(modules)
        self.handle = partial(next, itertools.count(0x2000, 0x10))

    def allocate_host(self, size: int) -> int:
        """Pinned memory, which kernels may use by the same address (unified addressing)."""
        block = ctypes.create_string_buffer(max(int(size), 1))
        address = ctypes.addressof(block)
        self.modules.register(address, max(int(size), 1), "pinned host memory")
        self.pinned[address] = block
        return address

    def free_host(self, address: int) -> None:
        if address and self.pinned.pop(address, None) is None:
            raise invalid(f"{address:#x} was freed, which is no host allocation")
        if address:
            self.modules.unregister(address)

    def move(self, to: Any, source: Any, size: int, way: str = "") -> None:
        """way: as in cuMemcpyHtoD; "" where unified addresses tell."""
        if way.endswith("D"):
            self.on_device(to, size, "a copy to it")
        if way.startswith("D"):
            self.on_device(source, size, "a copy from it")
        ctypes.memmove(address_of(to), address_of(source), int(size))

    def copy(self, way: str, to: Any, source: Any, size: int, *queue: Any) -> None:
        """A copy for which the host waits where it has no queue, or goes to memory of the host that
        is not pinned.
        """
        at = int(queue[0]) if queue else DEFAULT
        pageable = way.endswith("H") and address_of(to) not in self.pinned
        places = address_of(to), address_of(source), int(size)
        self.runtime.works.copied(*places, at, waits=not queue or pageable)
        self.move(to, source, size, way)

    def fill(self, width: int, to: Any, value: int, count: int, *queue: Any) -> None:
        """`count` elements of `width` bytes."""
        at, nbytes = int(queue[0]) if queue else DEFAULT, int(count) * width
        self.runtime.works.moved("cudaMemset", ((int(to), nbytes, True),), at)
        pattern = (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        self.on_device(to, nbytes, "a fill of it")
        if len(set(pattern)) == 1:
            ctypes.memset(int(to), pattern[0], nbytes)
        else:
            ctypes.memmove(int(to), pattern * int(count), nbytes)

    def on_device(self, pointer: Any, size: int, what: str) -> None:
        """EmulatorError where [pointer, pointer + size) is in no allocation."""
        if not int(size):
            return
        try:
            self.runtime.gpu.memory.region(int(pointer), int(size))
        except Fault as error:
            raise EmulatorError("fault", f"{error}: {what} by the host") from None


class Answer(tuple):
    """What a refused call returns, (status, value ...): it tells whether anybody looks. unasked:
    reasons of such calls that nobody has looked at yet. Whoever unpacks, indexes, compares or
    prints the tuple has looked.
    """

    _unasked: list[str]
    _reason: str

    @classmethod
    def of(cls, values: tuple, reason: str, unasked: list[str]) -> Answer:
        """values: as the call returns them. reason: what to say if nobody looks."""
        answer = cls(values)
        answer._unasked, answer._reason = unasked, reason
        unasked.append(reason)
        return answer

    def _looked(self) -> None:
        """Reasons are told apart by identity: two calls may be refused with the same words."""
        self._unasked[:] = [reason for reason in self._unasked if reason is not self._reason]


def _looking(name: str) -> Any:
    method = getattr(tuple, name)

    @functools.wraps(method)
    def look(self: Answer, *others: Any) -> Any:
        self._looked()
        return method(self, *others)

    return look


for _name in ("getitem", "iter", "eq", "ne", "hash", "contains", "repr"):
    setattr(Answer, f"__{_name}__", _looking(f"__{_name}__"))


class _CudaFunctions:
    """What the driver's functions, "cu...", and the runtime's, "cuda...", have in common. status:
    the number of an error as the module has it.
    """

    def __init__(self, module: Any, prefix: str, state: _State, status: Callable[[int], Any]):
        self.module, self.prefix, self.state, self.status = module, prefix, state, status
        self.success = status(0)

    def nothing(self, *_args: Any, **_kwargs: Any):
        failed = self.state.modules.failed
        return (self.success if failed is None else self.status(failed.code),)

    def reset(self, *_args: Any):
        """A kernel's failure is forgotten."""
        self.state.modules.failed = None
        return (self.success,)

    def gives(self, *values: Any):
        return lambda *_args, **_kwargs: (self.success, *values)

    def does(self, action: Callable):
        def nothing(*args: Any, **kwargs: Any):
            action(*args, **kwargs)
            return ()

        return self._answering(nothing, 0)

    def makes(self, action: Callable):
        """`action` with one result."""
        return self._answering(lambda *args, **kwargs: (action(*args, **kwargs),), 1)

    def all(self, actions: dict[str, Callable[..., tuple]]) -> dict[str, Any]:
        """Actions that give a tuple of results."""
        return {
            name: self._answering(action, _RESULTS.get(name.removeprefix(self.prefix), 1), name)
            for name, action in actions.items()
        }

    def _answering(self, action: Callable[..., tuple], results: int, name: str = "a call"):
        """`action` after its status. results: how many there are."""

        def call(*args: Any, **kwargs: Any):
            modules = self.state.modules
            try:
                if modules.failed is not None:
                    raise modules.failed
                return (self.success, *action(*args, **kwargs))
            except EmulatorError as error:
                if error.kind != "limit":
                    raise
                status = self.status(refusals.code_of(error, launch="Launch" in name))
                print(f"b200: {name} returns {status.name}: {error}", file=sys.stderr)
                values = (status, *([None] * results))
                if "Launch" not in name or error is modules.failed:
                    return values
                reason = f"{name} returned {status.name}, at which nobody has looked: {error}"
                return Answer.of(values, reason, self.state.runtime.unasked)

        return call

    @staticmethod
    def text(error) -> bytes:
        """CUDA's words; the name of an error that the software B200 never has."""
        return refusals.text(int(error), getattr(error, "name", "unrecognized error code")).encode()

    def event(self, kind: type):
        def create(*flags: Any):
            handle = self.state.handle()
            if flags and int(flags[0]) & _WITHOUT_TIME:
                self.state.events.without_time.add(handle)
            return kind(handle)

        return create

    def queue(self, kind: type):
        """A function that makes a queue. Its flags: 1 is CU_STREAM_NON_BLOCKING."""

        def create(flags=0, *_priority: Any):
            handle = self.state.handle()
            self.state.queues.made(handle, non_blocking=bool(int(flags) & 1))
            return kind(handle)

        return create

    def in_both(self, error: Any, event: type, queue: type, *of_graphs: type) -> dict[str, Any]:
        """What the driver and the runtime have by one name. error, event, queue: the module's
        types. of_graphs: of a graph, a node, an executable graph.
        """
        state, nothing = self.state, self.nothing
        queues, events = state.queues, state.events
        new_queue = self.makes(self.queue(queue))
        names = {
            "DriverGetVersion": self.gives(VERSION),
            "DeviceGetAttribute": self.makes(lambda number, _device: device_attribute(int(number))),
            "MemGetInfo": self.gives(hardware.MEMORY_BYTES, hardware.MEMORY_BYTES),
            "GetErrorName": self.makes(lambda number: error(number).name.encode()),
            "GetErrorString": self.makes(self.text),
            "EventCreate": self.makes(self.event(event)),
            "EventRecord": self.does(lambda event, queue=0: events.record(int(event), int(queue))),
            "EventElapsedTime": self.makes(lambda a, b: events.milliseconds(int(a), int(b))),
            "EventDestroy": self.does(lambda event: events.forget(int(event))),
            "EventQuery": nothing,
            "EventSynchronize": self.does(lambda event: queues.waits(HOST, int(event))),
            "StreamCreate": new_queue,
            "StreamCreateWithPriority": new_queue,
            "StreamDestroy": nothing,
            "StreamQuery": nothing,
            "StreamSynchronize": self.does(lambda queue: queues.joins(HOST, int(queue))),
            "StreamWaitEvent": self.does(
                lambda queue, event, *_flags: queues.waits(int(queue), int(event))
            ),
        }
        graphs = GraphFunctions(state.graphs, of_graphs, state.move).named(self.prefix)
        return {self.prefix + name: of for name, of in names.items()} | self.all(graphs)

    def of_memory(self, pointer: Callable[[int], Any], *names: str) -> dict[str, Any]:
        """What allocates and frees. names: of the functions, in this order."""
        modules, state = self.state.modules, self.state
        allocate = self.makes(lambda size, *_: pointer(modules.reserve(int(size))))
        free = self.does(lambda address, *_: modules.release(int(address)))
        host = self.makes(lambda size, *_: state.allocate_host(size))
        functions = (
            *(allocate, allocate),
            self.makes(lambda size, *_: pointer(modules.reserve(int(size), MANAGED))),
            *(free, free, host, host),
            self.makes(lambda address, *_: pointer(address_of(address))),
            self.does(lambda address: state.free_host(int(address))),
        )
        return dict(zip(names, functions, strict=True))


class _Driver(_CudaFunctions):
    def __init__(self, driver: Any, state: _State):
        super().__init__(driver, "cu", state, lambda n: driver.CUresult(refusals.driver_code(n)))

    def functions(self) -> dict[str, Any]:
        d, state, nothing = self.module, self.state, self.nothing
        context = self.gives(d.CUcontext(CONTEXT))
        of_graphs = d.CUgraph, d.CUgraphNode, d.CUgraphExec
        names = self.in_both(d.CUresult, d.CUevent, d.CUstream, *of_graphs)
        names |= self.of_memory(
            d.CUdeviceptr,
            *("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged", "cuMemFree", "cuMemFreeAsync"),
            *("cuMemAllocHost", "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuMemFreeHost"),
        )
        names |= {
            "cuInit": nothing,
            "cuDevicePrimaryCtxReset": self.reset,
            "cuDeviceGetCount": self.gives(1),
            "cuDeviceGet": self.makes(lambda ordinal: d.CUdevice(_ordinal(ordinal))),
            "cuDeviceGetName": self.gives(hardware.NAME.encode()),
            "cuDeviceComputeCapability": self.gives(*hardware.COMPUTE_CAPABILITY),
            "cuDeviceTotalMem": self.gives(hardware.MEMORY_BYTES),
            "cuMemcpy": self.does(lambda to, source, size: state.copy("", to, source, size)),
            "cuCtxSynchronize": self.does(state.queues.finished),
            "cuCtxGetDevice": self.gives(d.CUdevice(0)),
        }
        for name in ("CtxGetCurrent", "CtxCreate", "CtxPopCurrent", "DevicePrimaryCtxRetain"):
            names[f"cu{name}"] = context
        for name in ("CtxSetCurrent", "CtxPushCurrent", "CtxDestroy", "DevicePrimaryCtxRelease"):
            names[f"cu{name}"] = nothing
        for width, bits in ((1, 8), (2, 16), (4, 32)):
            fill = self.does(partial(state.fill, width))
            names[f"cuMemsetD{bits}"] = names[f"cuMemsetD{bits}Async"] = fill
        for way in ("HtoD", "DtoH", "DtoD"):
            move = self.does(partial(state.copy, way))
            names[f"cuMemcpy{way}"] = names[f"cuMemcpy{way}Async"] = move
        return names


class _CudaRuntime(_CudaFunctions):
    def __init__(self, cudart: Any, state: _State):
        super().__init__(cudart, "cuda", state, cudart.cudaError_t)

    def functions(self) -> dict[str, Any]:
        r, state, nothing = self.module, self.state, self.nothing
        of_graphs = r.cudaGraph_t, r.cudaGraphNode_t, r.cudaGraphExec_t
        names = self.in_both(r.cudaError_t, r.cudaEvent_t, r.cudaStream_t, *of_graphs)
        names |= self.of_memory(
            int,
            *("cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaFree", "cudaFreeAsync"),
            *("cudaMallocHost", "cudaHostAlloc", "cudaHostGetDevicePointer", "cudaFreeHost"),
        )
        fill = self.does(partial(state.fill, 1))
        copy = self.does(
            lambda to, source, size, kind, *queue: state.copy(
                _WAYS[int(kind)], to, source, size, *queue
            )
        )
        return names | {
            "cudaGetDevice": self.gives(0),
            "cudaSetDevice": nothing,
            "cudaDeviceReset": self.reset,
            "cudaGetDeviceCount": self.gives(1),
            "cudaRuntimeGetVersion": self.gives(VERSION),
            "cudaGetLastError": nothing,
            "cudaEventCreateWithFlags": names["cudaEventCreate"],
            "cudaStreamCreateWithFlags": names["cudaStreamCreate"],
            "cudaDeviceSynchronize": self.does(state.queues.finished),
            **dict.fromkeys(("cudaMemset", "cudaMemsetAsync"), fill),
            **dict.fromkeys(("cudaMemcpy", "cudaMemcpyAsync"), copy),
        }
