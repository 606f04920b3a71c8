"""The Python side of the CUDA runtime and driver of compiled programs: each call of shim/*.cpp.

A method of `Driver` gets the words of its call: numbers, and addresses to read from or write to.
An exception is kept and leaves the C++ side as a C++ exception with the same text.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import time
from dataclasses import dataclass, field

from b200 import sparse
from b200.errors import EmulatorError
from b200.hardware import (
    MAX_CLUSTER,
    MAX_THREADS,
    MEMORY_BYTES,
    SM_COUNT,
    SMEM_DEFAULT,
    SMEM_OPT_IN,
)
from b200.host.cuda import occupancy
from b200.host.cuda.fatbin import ptx_of
from b200.host.cuda.launching import Attributes, LaunchWords, check, cluster_of, parameters
from b200.host.cuda.sources import Origin, relocate
from b200.host.device_attributes import device_attribute
from b200.host.runtime import Runtime
from b200.host.tensor_map import tensor_map_encode_tiled
from b200.program.module import Kernel, Program

_MAX_DYNAMIC_SMEM, _NON_PORTABLE_CLUSTER = 8, 14  # cudaFuncAttribute and CUfunction_attribute


@dataclass
class Module:
    """A module that a library registered, or a program loaded."""

    program: Program
    registers: dict[str, int] = field(default_factory=dict)


@dataclass
class Function:
    """A kernel as the host code knows it."""

    module: Module
    kernel: Kernel
    attributes: Attributes = field(default_factory=Attributes)

    @property
    def registers(self) -> int:
        """Registers a thread, as ptxas said; 0 if it did not run."""
        return self.module.registers.get(self.kernel.name, 0)

    @property
    def static_smem(self) -> int:
        """Bytes of static shared memory."""
        variables = [*self.kernel.variables.values(), *self.module.program.variables.values()]
        return sum(v.size for v in variables if v.space == "shared")


@dataclass
class Loading:
    """The library that is being loaded. error: the first thing that went wrong in it."""

    registers: dict[str, int]
    origins: dict[str, Origin]
    error: BaseException | None = None


class Driver:
    """Modules, kernels, variables and memory of the compiled CUDA programs of this process."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.gpu = runtime.gpu
        self.error: BaseException | None = None
        self.loading: Loading | None = None
        self._modules: dict[int, Module] = {}
        self._functions: dict[int, Function] = {}
        self._symbols: dict[int, tuple[Module, str, int]] = {}
        self._memory: dict[int, tuple[mmap.mmap, int]] = {}
        self._handles = 0x7000_0000_0000
        self._text = b""

    # --- the one way in
    def answer(self, name: bytes, words, count: int) -> int:
        """A call of the C++ side: its name and words. 1: `error` says what went wrong."""
        try:
            getattr(self, name.decode())(*words[:count])
        except BaseException as error:  # noqa: BLE001  must not unwind through machine code
            self.error = error
            self._text = str(error).encode() + b"\0"
            if self.loading is not None and self.loading.error is None:
                self.loading.error = error
            return 1
        return 0

    def error_text(self) -> int:
        """Address of the last error's text."""
        self._buffer = ctypes.create_string_buffer(self._text)
        return ctypes.addressof(self._buffer)

    # --- registration
    def _handle(self) -> int:
        self._handles += 16
        return self._handles

    def _add(self, ptx: str, loading: Loading | None) -> int:
        origins = loading.origins if loading else {}
        program = self.gpu.load(relocate(ptx, origins))
        handle = self._handle()
        self._modules[handle] = Module(program, loading.registers if loading else {})
        return handle

    def register_module(self, wrapper: int, out: int) -> None:
        ptx = ptx_of(wrapper)
        if ptx:
            _poke(out, "<Q", self._add(ptx, self.loading))

    def register_kernel(self, module: int, host: int, name: int) -> None:
        if module:
            self._functions[host] = self._function(module, _string(name))

    def register_variable(self, module: int, host: int, name: int, size: int) -> None:
        if module:
            self._symbols[host] = (self._modules[module], _string(name), size)

    def register_managed(self, module: int, host: int, name: int, size: int) -> None:
        self.register_variable(module, host, name, size)
        address = self.gpu.variables(self._modules[module].program)[_string(name)]
        _poke(host, "<Q", address)

    def _function(self, module: int, name: str) -> Function:
        if module not in self._modules:
            raise EmulatorError("limit", f"no module has the handle {module:#x}")
        found = self._modules[module]
        if name not in found.program.kernels:
            names = ", ".join(found.program.kernels) or "none"
            raise EmulatorError("limit", f"no kernel {name!r} in the module; its kernels: {names}")
        return Function(found, found.program.kernels[name])

    def load_ptx(self, image: int, out: int) -> None:
        head = ctypes.string_at(image, 4)
        if head[:4] == b"\x7fELF" or head == b"\xb1\x43\x62\x46":
            raise EmulatorError(
                "unsupported", "a module of machine code (cubin): the software B200 takes PTX"
            )
        _poke(out, "<Q", self._add(_string(image), None))

    def find_kernel(self, module: int, name: int, out: int) -> None:
        handle = self._handle()
        self._functions[handle] = self._function(module, _string(name))
        _poke(out, "<Q", handle)

    def find_variable(self, module: int, name: int, address: int, size: int) -> None:
        program = self._modules[module].program
        wanted = _string(name)
        if wanted not in program.variables:
            raise EmulatorError("limit", f"no variable {wanted!r} in the module")
        if address:
            _poke(address, "<Q", self.gpu.variables(program)[wanted])
        if size:
            _poke(size, "<Q", program.variables[wanted].size)

    # --- kernels
    def _find(self, handle: int) -> Function:
        if handle not in self._functions:
            raise EmulatorError(
                "limit",
                f"launch of a kernel that is not registered ({handle:#x}): was it compiled for"
                " sm_100a, in this extension?",
            )
        return self._functions[handle]

    def launch(self, handle: int, at: int) -> None:
        function = self._find(handle)
        words = LaunchWords.from_address(at)
        cluster = cluster_of(function.kernel, words)
        check(function, words, cluster)
        launch = (
            function.module.program,
            function.kernel.name,
            tuple(words.grid),
            tuple(words.block),
            cluster,
            words.dynamic_smem,
            parameters(function.kernel, words),
        )
        if self.runtime.recording is not None:
            self.runtime.recording.append(launch)
        else:
            self.gpu.launch(*launch)

    def unknown_launch_attribute(self, number: int) -> None:
        raise EmulatorError(
            "unsupported", f"launch attribute {number} (cudaLaunchAttributeID) is not modelled"
        )

    def set_kernel_attribute(self, handle: int, attribute: int, value: int) -> None:
        function = self._find(handle)
        value = value - (1 << 64) if value >> 63 else value
        if attribute == _MAX_DYNAMIC_SMEM:
            most = SMEM_OPT_IN - function.static_smem
            if not 0 <= value <= most:
                raise EmulatorError(
                    "limit",
                    f"kernel {function.kernel.name}: cudaFuncAttributeMaxDynamicSharedMemorySize"
                    f" {value} is more than a B200 has: {SMEM_OPT_IN} bytes a CTA, of which"
                    f" {function.static_smem} are static",
                )
            function.attributes.dynamic_smem = value
        elif attribute == _NON_PORTABLE_CLUSTER:
            function.attributes.non_portable_cluster = bool(value)
        elif not 9 <= attribute <= 15:
            raise EmulatorError("limit", f"function attribute {attribute} cannot be set")

    def kernel_facts(self, handle: int, out: int) -> None:
        function = self._find(handle)
        kernel = function.kernel
        threads = kernel.directives.get("maxntid") or kernel.directives.get("reqntid") or ()
        most = 1
        for size in threads:
            most *= size
        local = sum(v.size for v in kernel.variables.values() if v.space == "local")
        constant = sum(
            v.size for v in function.module.program.variables.values() if v.space == "const"
        )
        facts = (
            function.registers,
            function.static_smem,
            constant,
            local,
            most if threads else MAX_THREADS,
            function.attributes.dynamic_smem
            if function.attributes.dynamic_smem is not None
            else SMEM_DEFAULT - function.static_smem,
        )
        _poke(out, "<6q", *facts)

    def _resident(self, function: Function, threads: int, dynamic_smem: int) -> int:
        smem = function.static_smem + dynamic_smem
        return occupancy.ctas_per_sm(threads, smem, function.registers)

    def occupancy(self, handle: int, threads: int, dynamic_smem: int, out: int) -> None:
        _poke(out, "<i", self._resident(self._find(handle), threads, dynamic_smem))

    def occupancy_clusters(self, handle: int, at: int, out: int) -> None:
        function, words = self._find(handle), LaunchWords.from_address(at)
        x, y, z = cluster_of(function.kernel, words)
        threads = words.block[0] * words.block[1] * words.block[2]
        resident = self._resident(function, threads, words.dynamic_smem)
        _poke(out, "<i", SM_COUNT * resident // (x * y * z))

    def largest_cluster(self, handle: int, out: int) -> None:
        allowed = self._find(handle).attributes.non_portable_cluster
        _poke(out, "<i", MAX_CLUSTER if allowed else occupancy.PORTABLE_CLUSTER)

    # --- memory
    def allocate(self, nbytes: int, out: int) -> None:
        """Pages that take no room until they are touched, and are zero then."""
        used = sum(size for _, size in self._memory.values())
        if used + nbytes > MEMORY_BYTES:
            raise EmulatorError(
                "limit",
                f"out of memory: cudaMalloc of {nbytes} bytes, {used} of {MEMORY_BYTES} are in use",
            )
        pages = sparse.pages(nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._memory[address] = (pages, max(nbytes, 1))
        _poke(out, "<Q", address)

    def release(self, address: int) -> None:
        if address and self._memory.pop(address, None) is None:
            raise EmulatorError(
                "limit", f"cudaFree of {address:#x}, which cudaMalloc has not returned"
            )

    def region_at(self, address: int) -> tuple[int, int, str] | None:
        """First byte, size and name of the allocation that holds an address."""
        for first, (_, size) in self._memory.items():
            if first <= address < first + size:
                return first, size, f"{size} bytes of cudaMalloc"
        return None

    def check_copy(self, to: int, source: int, nbytes: int) -> None:
        if nbytes and not (to and source):
            raise EmulatorError("fault", f"a copy or fill of {nbytes} bytes at a null pointer")

    def symbol(self, host: int, address: int, size: int, needed: int) -> None:
        if host not in self._symbols:
            raise EmulatorError("limit", f"no __device__ or __constant__ variable at {host:#x}")
        module, name, nbytes = self._symbols[host]
        if needed > nbytes:
            raise EmulatorError(
                "limit", f"copy of {needed} bytes with the variable {name} of {nbytes} bytes"
            )
        _poke(address, "<Q", self.gpu.variables(module.program)[name])
        _poke(size, "<Q", nbytes)

    def memory_info(self, free: int, total: int) -> None:
        used = sum(size for _, size in self._memory.values())
        _poke(free, "<Q", MEMORY_BYTES - used)
        _poke(total, "<Q", MEMORY_BYTES)

    # --- device, tensormaps, time
    def device_attribute(self, attribute: int, out: int) -> None:
        _poke(out, "<i", device_attribute(attribute))

    def device_name(self, out: int, length: int) -> None:
        name = b"NVIDIA B200 (software)"[: length - 1] + b"\0"
        ctypes.memmove(out, name, len(name))

    def set_device(self, device: int) -> None:
        if device not in (0, (1 << 64) - 1):
            raise EmulatorError("limit", f"cudaSetDevice({device}): there is one device, number 0")

    def tensor_map_encode_tiled(self, *words: int) -> None:
        tensor_map_encode_tiled(*words)

    def recording(self, out: int) -> None:
        _poke(out, "<Q", self.runtime.recording is not None)

    def now(self, out: int) -> None:
        """Microseconds: modelled, of the launches so far, where they have a clock; else wall."""
        times = [getattr(launch, "time", None) for launch in self.gpu.launches]
        modelled = [t.time_us for t in times if t is not None]
        _poke(out, "<d", sum(modelled) if modelled else time.perf_counter() * 1e6)

    def missing(self, name: int) -> None:
        raise EmulatorError("unsupported", f"{_string(name)} is not in the software B200's CUDA")


def _poke(address: int, code: str, *values) -> None:
    ctypes.memmove(address, struct.pack(code, *values), struct.calcsize(code))


def _string(address: int) -> str:
    return ctypes.string_at(address).decode()
