"""torch.cuda over a B200 in software.

One device, cuda:0. Queues and events: queues.py. What torch.cuda has and this does not raises
EmulatorError with its name.
"""

# Methods of torch are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch

from b200 import hardware
from b200.host.refusals import missing
from b200.host.runtime import Runtime
from b200.host.takeover import replace
from b200.host.torch import factories, queues
from b200.host.torch.device_arguments import DEVICE, about_device, check_device, names_cuda
from b200.host.torch.devices import allocations

_ASKS_THE_DRIVER = re.compile(
    r"_cuda_(?!tunableop_|isInBadFork|getCompiledVersion|getArchFlags|.*(cudnn|Cublas|benchmark)).*"
)


def patch(runtime: Runtime) -> None:
    """Put the B200 in the place of torch's GPU, of a torch that has one or not."""
    factories.patch()
    torch.Generator = _generator_type()
    provided = _functions(runtime)
    for name, value in vars(torch.cuda).items():
        if name not in provided and not name.startswith("_"):
            if isinstance(value, types.FunctionType) and value.__module__.startswith("torch.cuda"):
                provided[name] = missing(f"torch.cuda.{name}")
    for name, value in provided.items():
        value = _own(name, value)
        before = getattr(torch.cuda, name, None)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if module is torch.cuda or (before is not None and getattr(module, name, 0) is before):
                setattr(module, name, value)
    for name in torch.cuda.nvtx.__all__:
        setattr(torch.cuda.nvtx, name, getattr(_Nvtx, name, _Nvtx.mark))
    _patch_below()


def _patch_below() -> None:
    """torch's own C++, where it is built for CUDA, would ask the driver: it has no device."""
    for name, value in list(vars(torch._C).items()):
        if _ASKS_THE_DRIVER.fullmatch(name) and not isinstance(value, type):
            setattr(torch._C, name, missing(f"torch._C.{name}"))
    torch._C._cuda_getCurrentRawStream = lambda device: torch.cuda.current_stream().cuda_stream
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        torch._C._cuda_getDeviceCount = lambda: 0


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


@dataclass(frozen=True)
class DeviceProperties:
    """torch.cuda.get_device_properties of a B200."""

    name: str = hardware.NAME
    gcnArchName: str = hardware.NAME  # noqa: N815  torch's name; on NVIDIA it has the device's
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


class _Nvtx:
    """Marks for a profiler that is not there (torch.cuda.nvtx)."""

    @staticmethod
    def mark(*_args: Any, **_kwargs: Any) -> int:
        return 0

    @staticmethod
    @contextlib.contextmanager
    def range(*_args: Any, **_kwargs: Any) -> Generator[None]:
        yield


class _DeviceGuard:
    """torch.cuda.device and device_of: there is one device."""

    def __init__(self, device: Any):
        if not isinstance(device, torch.Tensor):
            check_device(device)
        self.idx = 0

    def __enter__(self):
        return self

    def __exit__(self, *_exception: Any) -> bool:
        return False


def _memory() -> dict[str, Any]:
    """The functions about memory: what the live CudaTensors of the program hold."""

    def stats(device=None) -> dict[str, int]:
        check_device(device)
        return {
            f"{kind}_bytes.all.{when}": value
            for kind in ("allocated", "reserved", "active")
            for when, value in (("current", allocations.bytes), ("peak", allocations.peak))
        }

    def reset(device=None) -> None:
        allocations.peak = allocations.bytes

    def info(device=None) -> tuple[int, int]:
        check_device(device)
        return hardware.MEMORY_BYTES - allocations.bytes, hardware.MEMORY_BYTES

    current, peak = (lambda device=None: allocations.bytes), (lambda device=None: allocations.peak)
    kept = ("memory_allocated", "memory_reserved", "memory_cached")
    resets = ("peak_memory_stats", "max_memory_allocated", "max_memory_cached")
    without_effect = ("reset_accumulated_memory_stats", "empty_cache", "ipc_collect")
    return {
        **dict.fromkeys((*kept, "device_memory_used"), current),
        **{f"max_{name}": peak for name in kept},
        **{f"reset_{name}": reset for name in resets},
        **dict.fromkeys(without_effect, about_device(None)),
        **{"memory_stats": stats, "mem_get_info": info},
    }


def _functions(runtime: Runtime) -> dict[str, Any]:
    def is_available() -> bool:
        return True

    is_available.emulated = True  # type: ignore[attr-defined]
    properties = DeviceProperties()
    nothing = about_device(None)
    device = {
        "is_available": is_available,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "device": _DeviceGuard,
        "device_of": _DeviceGuard,
        "get_device_properties": about_device(properties),
        "get_device_name": about_device(properties.name),
        "get_device_capability": about_device(hardware.COMPUTE_CAPABILITY),
        "get_arch_list": lambda: ["sm_100"],
        "get_gencode_flags": lambda: "-gencode compute=compute_100,code=sm_100",
        "can_device_access_peer": lambda device, peer: False,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "clock_rate": about_device(hardware.CLOCK_KHZ // 1000),
        "get_sync_debug_mode": lambda: 0,
    }
    return device | queues.functions(runtime) | _memory() | _random_numbers()


# --- random numbers: the GPU draws from the CPU's generator


def _random_numbers() -> dict[str, Any]:
    generator = torch.default_generator

    def state(device=None):
        return generator.get_state()

    def set_state(new, device=None) -> None:
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


def _generator_type() -> type:
    original = torch.Generator

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
        def __new__(cls, device: str = "cpu"):
            return CudaGenerator() if names_cuda(device) else original(device)

    return Generator


# --- the profiler


def patch_profiler(_runtime: Runtime) -> None:
    """Let torch's profiler start for cuda: it watches the CPU, where the work is done."""
    replace(torch.autograd.profiler.profile, "__init__", _watching_the_cpu)


def _watching_the_cpu(make: Callable):
    @functools.wraps(make)
    def init(
        self,
        *args: Any,
        use_cuda: bool = False,
        use_device: str | None = None,
        use_cpu: bool = True,
        **kwargs: Any,
    ) -> None:
        if use_cuda or use_device == "cuda":
            use_cpu, use_device = True, None
        make(self, *args, use_device=use_device, use_cpu=use_cpu, **kwargs)

    return init
