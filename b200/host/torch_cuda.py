"""torch.cuda of a torch that has no GPU, over a B200 in software.

One device, cuda:0. Work is done when it is launched, so queues and synchronisation have nothing to
wait for. What torch.cuda has and this does not raises EmulatorError with its name.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from b200 import hardware
from b200.errors import EmulatorError
from b200.host import scaled_mm, torch_callbacks, torch_devices, torch_tools
from b200.host.queues import HOST, Queues
from b200.host.runtime import Runtime
from b200.host.torch_devices import DEVICE, allocations, names_cuda


def has_own_cuda() -> bool:
    """Whether this torch has a GPU of its own, which is then left alone."""
    return not getattr(torch.cuda.is_available, "emulated", False) and torch.cuda.is_available()


def patch(runtime: Runtime) -> None:
    """Put the B200 in the place of torch's GPU."""
    torch_devices.patch()
    torch_callbacks.patch()
    torch_tools.patch()
    scaled_mm.patch()
    torch.Generator = _generator_type()
    provided = _functions(runtime)
    for name in torch.cuda.__all__:
        if name not in provided and isinstance(getattr(torch.cuda, name), types.FunctionType):
            provided[name] = missing(f"torch.cuda.{name}")
    for name, value in provided.items():
        value = _own(name, value)
        before = getattr(torch.cuda, name, None)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if module is torch.cuda or (before is not None and getattr(module, name, 0) is before):
                setattr(module, name, value)
    torch.cuda.nvtx._nvtx = _Nvtx()


def _own(name: str, value: Any) -> Any:
    """A function under this name only: torch._dynamo keeps a rule for each function of torch.cuda,
    and takes one object under two names, or a generator's method, for a conflict.
    """
    if isinstance(value, type) or not callable(value):
        return value

    @functools.wraps(value)
    def function(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _check_device(device: Any) -> None:
    """RuntimeError for a GPU that is not there, ValueError for what is no GPU. What names no
    device, a queue for example, means the current one (torch.cuda._utils._get_device_index).
    """
    if not isinstance(device, (int, str, torch.device)) or isinstance(device, int) and device < 0:
        return
    if not names_cuda(device):
        raise ValueError(f"Expected a cuda device, but got: {device}")


def missing(name: str):
    """A function that raises EmulatorError with its name."""

    def refuse(*_args, **_kwargs):
        raise EmulatorError("unsupported", f"{name} is not in the software B200")

    refuse.__name__ = name.rsplit(".", 1)[1]
    return refuse


@dataclass(frozen=True)
class Properties:
    """torch.cuda.get_device_properties of a B200."""

    name: str = hardware.NAME
    major: int = hardware.COMPUTE_CAPABILITY[0]
    minor: int = hardware.COMPUTE_CAPABILITY[1]
    total_memory: int = hardware.MEMORY_BYTES
    multi_processor_count: int = hardware.SM_COUNT
    L2_cache_size: int = hardware.L2_BYTES
    warp_size: int = 32
    regs_per_multiprocessor: int = hardware.SM_REGISTERS
    max_threads_per_block: int = hardware.MAX_THREADS
    max_threads_per_multi_processor: int = hardware.SM_THREADS
    shared_memory_per_block: int = hardware.SMEM_DEFAULT
    shared_memory_per_block_optin: int = hardware.SMEM_OPT_IN
    shared_memory_per_multiprocessor: int = hardware.SMEM_BYTES
    clock_rate: int = hardware.CLOCK_KHZ
    memory_clock_rate: int = hardware.MEMORY_CLOCK_KHZ
    memory_bus_width: int = hardware.MEMORY_BUS_BITS
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"


class Stream:
    """A queue. Launches of all queues run one after the other, in the order of their calls; who
    waits for which is kept in `queues`.
    """

    _handles = 0x1000
    queues: Queues | None = None  # of the runtime

    def __init__(self, device: Any = None, priority: int = 0, stream_ptr: int | None = None, **_):
        _check_device(device)
        if stream_ptr is None:
            Stream._handles += 0x10
            stream_ptr = Stream._handles
            if self.queues is not None:
                self.queues.made(stream_ptr, non_blocking=True)  # as PyTorch makes them
        self.cuda_stream = self.stream_id = stream_ptr
        self.device, self.priority = DEVICE, priority
        self.device_index, self.device_type = 0, 1

    def __eq__(self, other) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={DEVICE} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self.queues is not None:
            self.queues.joins(HOST, self.cuda_stream)

    def wait_event(self, event) -> None:
        event.wait(self)

    def wait_stream(self, stream) -> None:
        if self.queues is not None:
            self.queues.joins(self.cuda_stream, stream.cuda_stream)

    def record_event(self, event=None):
        event = event or torch.cuda.Event()
        event.record(self)  # pyright: ignore[reportArgumentType]  a queue of this GPU
        return event

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5


DEFAULT = Stream(stream_ptr=0)


class ExternalStream(Stream):
    """A queue that somebody else made."""

    def __init__(self, stream_ptr: int, device: Any = None, **_):
        super().__init__(device, stream_ptr=stream_ptr)


class _CurrentQueue:
    """The current queue."""

    def __init__(self) -> None:
        self.current = DEFAULT

    def set(self, stream) -> None:
        if stream is not None:
            self.current = stream


def _queue_context(queues: _CurrentQueue) -> type:
    """torch.cuda.StreamContext over `queues`."""

    class StreamContext:
        """Inside, another queue is the current one."""

        def __init__(self, stream):
            self.stream = stream
            self.before: list = []

        def __enter__(self) -> None:
            self.before.append(queues.current)
            queues.set(self.stream)

        def __exit__(self, *_exception) -> None:
            queues.set(self.before.pop())

    return StreamContext


class Clock:
    """What lies between two events: modelled time where launches take some, else the wall clock of
    the emulation, which says nothing of a B200; stderr says once which.
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._said = False

    def now(self) -> tuple[float, int]:
        return time.perf_counter(), len(self._runtime.gpu.launches)

    def milliseconds(self, start: tuple[float, int], end: tuple[float, int]) -> float:
        launches = self._runtime.gpu.launches[start[1] : end[1]]
        timed = [launch for launch in launches if getattr(launch, "time", None) is not None]
        if len(timed) < len(launches) or not self._timed():
            self._say("the wall clock of the emulation")
            return (end[0] - start[0]) * 1e3
        self._say("modelled")
        if not timed:
            return 0.0
        from b200.clock.call_time import reported

        return reported(timed, 1).time_us / 1e3

    def _timed(self) -> bool:
        from b200.clock import TimedMachine

        return isinstance(getattr(self._runtime.gpu, "machine", None), TimedMachine)

    def _say(self, what: str) -> None:
        if not self._said:
            print(f"b200: times between CUDA events are {what}", file=sys.stderr)
            self._said = True


def event_type(clock: Clock, waits: Queues, current: Callable[[], Any]) -> type:
    """torch.cuda.Event over `clock`. current: the queue that a call means which names none."""

    class Event:
        """A point in the order of launches."""

        def __init__(self, enable_timing=False, blocking=False, interprocess=False, **_):
            self.enable_timing = enable_timing
            self.recorded: tuple[float, int] | None = None
            self.device, self.cuda_event = DEVICE, id(self)

        def record(self, stream=None) -> None:
            self.recorded = clock.now()
            waits.recorded(id(self), (stream or current()).cuda_stream)

        def wait(self, stream=None) -> None:
            waits.waits((stream or current()).cuda_stream, id(self))

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            waits.waits(HOST, id(self))

        def elapsed_time(self, end_event) -> float:
            """Milliseconds; see Clock."""
            for event in (self, end_event):
                if not event.enable_timing:
                    raise ValueError(
                        "Both events must be created with argument 'enable_timing=True'."
                    )
                if event.recorded is None:
                    raise ValueError(
                        "Both events must be recorded before calculating elapsed time."
                    )
            start, end = self.recorded, end_event.recorded
            assert start is not None and end is not None
            return clock.milliseconds(start, end)

    return Event


class _Nvtx:
    """Marks for a profiler that is not there."""

    def __getattr__(self, name: str):
        return lambda *_args, **_kwargs: 0


def _generator_type() -> type:
    original = torch._C.Generator

    class Kind(type(original)):
        def __instancecheck__(cls, thing) -> bool:
            return isinstance(thing, original)

    class CudaGenerator(original):
        """A generator of the CPU's numbers that says it is on cuda:0."""

        device = property(lambda self: DEVICE)  # pyright: ignore[reportAssignmentType]

        def __new__(cls):
            return original.__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]

        def __init__(self):
            super().__init__()

    class Generator(original, metaclass=Kind):
        """torch.Generator; "cuda" is understood."""

        def __new__(cls, device="cpu"):
            return CudaGenerator() if names_cuda(device) else original(device)

    return Generator


class _DeviceGuard:
    """torch.cuda.device and device_of: there is one device."""

    def __init__(self, device: Any):
        if not isinstance(device, torch.Tensor):
            _check_device(device)
        self.idx = 0

    def __enter__(self):
        return self

    def __exit__(self, *_exception) -> bool:
        return False


def _about_device(value):
    """A function of an optional device that gives `value`."""

    def query(device=None):
        _check_device(device)
        return value

    return query


def _memory() -> dict[str, Any]:
    """The functions about memory: what the live CudaTensors of the program hold."""

    def stats(device=None) -> dict[str, int]:
        _check_device(device)
        return {
            f"{kind}_bytes.all.{when}": value
            for kind in ("allocated", "reserved", "active")
            for when, value in (("current", allocations.bytes), ("peak", allocations.peak))
        }

    def reset(device=None) -> None:
        allocations.peak = allocations.bytes

    def info(device=None) -> tuple[int, int]:
        _check_device(device)
        return hardware.MEMORY_BYTES - allocations.bytes, hardware.MEMORY_BYTES

    def current(device=None) -> int:
        return allocations.bytes

    def peak(device=None) -> int:
        return allocations.peak

    nothing = _about_device(None)
    names = {name: current for name in ("memory_allocated", "memory_reserved", "memory_cached")}
    names |= {f"max_{name}": peak for name in names}
    names |= {f"reset_{name}": reset for name in ("peak_memory_stats", "max_memory_allocated")}
    names |= {"reset_max_memory_cached": reset, "memory_stats": stats, "mem_get_info": info}
    names |= {"device_memory_used": current, "reset_accumulated_memory_stats": nothing}
    return names | {"empty_cache": nothing, "ipc_collect": nothing}


def _random() -> dict[str, Any]:
    """The functions about random numbers: the GPU draws from the CPU's generator."""
    generator = torch.default_generator

    def state(device=None):
        return generator.get_state()

    def set_state(new, device=None):
        generator.set_state(new)

    return {
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state()],
        "set_rng_state": set_state,
        "set_rng_state_all": lambda states: set_state(states[0]),
        "default_generators": (generator,),
    }


def _queues(runtime: Runtime) -> dict[str, Any]:
    """The functions about queues and events."""
    queues = _CurrentQueue()
    context = _queue_context(queues)
    Stream.queues = runtime.queues

    def current(device=None):
        _check_device(device)
        return queues.current

    def synchronize(device=None):
        _check_device(device)
        runtime.queues.finished()

    def capturing() -> bool:
        capture = runtime.recording
        return capture is not None and capture.takes(queues.current.cuda_stream)

    return {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": event_type(Clock(runtime), runtime.queues, lambda: queues.current),
        "current_stream": current,
        "default_stream": _about_device(DEFAULT),
        "set_stream": queues.set,
        "stream": lambda stream: context(stream),
        "StreamContext": context,
        "get_stream_from_external": ExternalStream,
        "is_current_stream_capturing": capturing,
        "synchronize": synchronize,
        "_sleep": lambda cycles: None,
    }


def _functions(runtime: Runtime) -> dict[str, Any]:
    """Everything that takes a place in torch.cuda, by name."""

    def is_available() -> bool:
        return True

    is_available.emulated = True  # type: ignore[attr-defined]
    properties = Properties()
    nothing = _about_device(None)
    device = {
        "is_available": is_available,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "device": _DeviceGuard,
        "device_of": _DeviceGuard,
        "get_device_properties": _about_device(properties),
        "get_device_name": _about_device(properties.name),
        "get_device_capability": _about_device(hardware.COMPUTE_CAPABILITY),
        "get_arch_list": lambda: ["sm_100"],
        "get_gencode_flags": lambda: "-gencode compute=compute_100,code=sm_100",
        "can_device_access_peer": lambda device, peer: False,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "clock_rate": _about_device(hardware.CLOCK_KHZ // 1000),
        "get_sync_debug_mode": lambda: 0,
    }
    return device | _queues(runtime) | _memory() | _random()
