"""What a CUDA program has on the device: modules with kernels and variables, memory, launches.

Two callers: the C++ side of compiled programs (driver.py), and cuda-python
(../cuda_python/kernels.py).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

import numpy as np

from b200 import occupancy, sparse
from b200.chip.launch import Shape
from b200.chip.unwritten import fill
from b200.errors import EmulatorError
from b200.hardware import MAX_CLUSTER, MEMORY_BYTES, SM_COUNT, SMEM_OPT_IN
from b200.host import refusals
from b200.host.captures import KernelWork
from b200.host.cuda import fatbin
from b200.host.cuda.host_lines import HostLines
from b200.host.cuda.host_view import HostView
from b200.host.cuda.launching import Function, LaunchWords, Module, check, cluster_of, parameters
from b200.host.refusals import Refused, invalid, unsupported
from b200.host.runtime import Runtime
from b200.program.module import Program
from b200.program.names import readable

_KEPT = 4096  # allocations that are known after they have been given back
# functions that reserve memory
DEVICE, MAPPED, MANAGED = "cudaMalloc", "cuMemMap", "cudaMallocManaged"
OF_GRAPHS = "cudaGraphAddMemAllocNode"
OF_THE_GPU = (DEVICE, MAPPED, OF_GRAPHS)

MAX_DYNAMIC_SMEM, NON_PORTABLE_CLUSTER = 8, 14  # cudaFuncAttribute and CUfunction_attribute


@dataclass
class Reserved:
    """Memory that a function of CUDA has reserved. made, freed: calls, as HostLines has them."""

    first: int
    size: int
    by: str
    pages: mmap.mmap | None
    made: tuple[int, ...] = ()
    freed: tuple[int, ...] | None = None

    def holds(self, address: int) -> bool:
        return self.first <= address < self.first + self.size


class Modules:
    """Modules, kernels, variables and memory of the CUDA programs of this process, by handle.

    failed: what every call is refused with since a kernel has failed; None before. late: each may
    register the kernel that the host code calls so, where it is not yet known. view: what the host
    code of a program with a `main` may touch; lines: its lines. None of other programs.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.gpu = runtime.gpu
        self.failed: Refused | None = None
        self.late: list[Callable[[int], None]] = []
        self._modules: dict[int, Module] = {}
        self._functions: dict[int, Function] = {}
        self._memory: dict[int, Reserved] = {}  # by address
        self._freed: dict[int, Reserved] = {}  # the latest ones
        # memory of the host: first byte -> size, and what it is
        self._registered: dict[int, tuple[int, str]] = {}
        self.view: HostView | None = None
        self.lines: HostLines | None = None
        runtime.gpu.memory.also_tell(self.freed_at)
        self._handles = 0x7000_0000_0000

    def handle(self) -> int:
        self._handles += 16
        return self._handles

    def answering(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self.view is None else self.view

    # --- modules
    def load(self, ptx: str, registers: dict[str, int] | None = None) -> int:
        """Handle of the module of a PTX text. EmulatorError if a B200 does not run it."""
        program = self.gpu.load(ptx)
        if fatbin.rank(program.target) is None:
            said = f"PTX for {program.target}, a B200 is sm_100a"
            raise Refused(refusals.NO_KERNEL_IMAGE, f"no kernel image for this device: {said}")
        handle = self.handle()
        self._modules[handle] = Module(program, registers or {})
        return handle

    def unload(self, module: int) -> None:
        if self.runtime.unload(module):
            return
        self.module(module)
        del self._modules[module]

    def module(self, handle: int) -> Module:
        if handle not in self._modules:
            raise Refused(refusals.INVALID_HANDLE, f"no module has the handle {handle:#x}")
        return self._modules[handle]

    def handle_of(self, module: Module) -> int:
        return next(handle for handle, known in self._modules.items() if known is module)

    def kernel(self, module: int, name: str, handle: int | None = None) -> int:
        """Handle of a module's kernel: a new one, or the one that the host code has for it."""
        found = self.module(module)
        if name not in found.program.kernels:
            names = ", ".join(found.program.kernels) or "none"
            said = f"no kernel {name!r} in the module; its kernels: {names}"
            raise Refused(refusals.NOT_FOUND, said)
        handle = self.handle() if handle is None else handle
        self._functions[handle] = Function(found, found.program.kernels[name])
        return handle

    def kernels(self, module: int, most: int) -> list[int]:
        """Handles of a module's kernels, of at most so many."""
        return [self.kernel(module, name) for name in [*self.module(module).program.kernels][:most]]

    def forget_kernel(self, handle: int) -> None:
        self._functions.pop(handle, None)

    def variable(self, module: int, name: str) -> tuple[int, int]:
        """Address and bytes of a module's variable."""
        program = self.module(module).program
        if name not in program.variables:
            raise Refused(refusals.NOT_FOUND, f"no variable {name!r} in the module")
        return self.gpu.variables(program)[name], program.variables[name].size

    # --- kernels
    def function(self, handle: int) -> Function:
        if handle not in self._functions:
            for register in self.late:
                register(handle)
        if handle not in self._functions:
            raise Refused(
                refusals.INVALID_KERNEL,
                f"launch of a kernel that is not registered ({handle:#x}): was it compiled for"
                " sm_100a, in this extension?",
            )
        return self._functions[handle]

    def launch(self, handle: int, words: LaunchWords) -> None:
        launch = self.prepared(handle, words)
        try:
            self.runtime.launch(launch, words.queue)
        except EmulatorError as error:
            self.note_failure(error)
            raise

    def prepared(self, handle: int, words: LaunchWords) -> KernelWork:
        """A launch with the kernel's parameters copied. Refused as the launch is."""
        function = self.function(handle)
        cluster = cluster_of(function.kernel, words)
        check(function, words, cluster)
        grid, block, dependent = tuple(words.grid), tuple(words.block), bool(words.dependent)
        return KernelWork(
            function.module.program,
            function.kernel.name,
            Shape(grid, block, cluster, words.dynamic_smem, dependent),
            parameters(function.kernel, words),
            bool(words.cooperative),
        )

    def handle_of_kernel(self, program: Program, name: str) -> tuple[int, Function]:
        """A handle of a kernel that was prepared, and the kernel; Refused for one that is gone."""
        for handle, known in self._functions.items():
            if known.module.program is program and known.kernel.name == name:
                return handle, known
        said = f"no module has the kernel {readable(name)} any more"
        raise Refused(refusals.INVALID_HANDLE, said)

    def note_failure(self, error: EmulatorError) -> None:
        """A launch has ended with an error: as on a GPU, one of a kernel stays."""
        code = refusals.lasting_code(error)
        if code is not None:
            first = str(error).partition("\n")[0]
            said = f"every CUDA call fails after a launch that has failed: {first}"
            self.failed = Refused(code, said)

    def set_attribute(self, handle: int, attribute: int, value: int) -> None:
        """attribute: its number as cudaFuncAttribute or CUfunction_attribute."""
        function = self.function(handle)
        if attribute == MAX_DYNAMIC_SMEM:
            static = function.static_smem
            if not 0 <= value <= SMEM_OPT_IN - static:
                raise invalid(
                    f"kernel {readable(function.kernel.name)}:"
                    f" cudaFuncAttributeMaxDynamicSharedMemorySize {value} is more than a B200 has:"
                    f" {SMEM_OPT_IN} bytes a CTA, of which {static} are static"
                )
            function.dynamic_smem = value
        elif attribute == NON_PORTABLE_CLUSTER:
            function.non_portable_cluster = bool(value)
        elif not 9 <= attribute <= 15:
            raise invalid(f"function attribute {attribute} cannot be set")

    def resident(self, handle: int, threads: int, dynamic_smem: int) -> int:
        """CTAs of a kernel that an SM holds."""
        function = self.function(handle)
        smem = function.static_smem + dynamic_smem
        return occupancy.ctas_per_sm(threads, smem, function.registers)

    def resident_clusters(self, handle: int, words: LaunchWords) -> int:
        cluster = cluster_of(self.function(handle).kernel, words)
        ctas = SM_COUNT * self.resident(handle, prod(words.block), words.dynamic_smem)
        return ctas // prod(cluster)

    def largest_cluster(self, handle: int) -> int:
        allowed = self.function(handle).non_portable_cluster
        return MAX_CLUSTER if allowed else occupancy.PORTABLE_CLUSTER

    # --- memory
    def reserve(self, nbytes: int, by: str = DEVICE) -> int:
        """Address of memory that nobody has written (chip/unwritten.py); above its limit pages that
        take no room until they are touched, and are zero then. by: the function that reserves it.
        Memory that the host shares is fresh pages of its operating system, zero.
        """
        used = self.used
        if used + nbytes > MEMORY_BYTES:
            said = f"{by} of {nbytes} bytes, {used} of {MEMORY_BYTES} are in use"
            raise Refused(refusals.OUT_OF_MEMORY, f"out of memory: {said}")
        if self.view is not None:
            mapped = self.view.reserve(nbytes, by != DEVICE)
            address, pages, data = mapped.first, None, mapped.bytes
            self.runtime.works.pinned |= by != DEVICE
        else:
            pages = sparse.pages(nbytes)
            data = np.frombuffer(pages, np.uint8)
            address = data.ctypes.data
        made = self.lines.calls() if self.lines is not None else ()
        self._memory[address] = Reserved(address, max(nbytes, 1), by, pages, made)
        if by == DEVICE:
            fill(data)
        return address

    def set_aside(self, nbytes: int) -> Reserved:
        """Memory of a graph, which nobody may use before `take`."""
        if self.view is not None:
            said = "memory nodes of graphs are not in `b200 run`"
            raise unsupported(f"{said}: compile with nvcc under `b200 exec`")
        pages = sparse.pages(nbytes)
        address = np.frombuffer(pages, np.uint8).ctypes.data
        memory = self._freed[address] = Reserved(address, max(nbytes, 1), OF_GRAPHS, pages)
        return memory

    def take(self, memory: Reserved) -> None:
        """Memory that was set aside is allocated: nobody has written it."""
        if memory.first in self._memory:
            said = f"{memory.size} bytes of a graph are allocated again before they were freed"
            raise invalid(said)
        self._freed.pop(memory.first, None)
        self._memory[memory.first] = memory
        assert memory.pages is not None
        fill(np.frombuffer(memory.pages, np.uint8))

    def release(self, address: int, by: str = "cudaFree") -> None:
        if not address:
            return
        memory = self._memory.pop(address, None)
        if memory is None:
            said = self.freed_at(address)
            wrong = f": it lies in {said}" if said else ", which cudaMalloc has not returned"
            raise invalid(f"{by} of {address:#x}{wrong}")
        if self.view is not None:
            self.view.release(address)
        elif memory.pages is not None:
            memory.pages.madvise(mmap.MADV_DONTNEED)  # its addresses are not given out again
        memory.freed = self.lines.calls() if self.lines is not None else ()
        self._freed[address] = memory
        if len(self._freed) > _KEPT:
            del self._freed[next(iter(self._freed))]
        self.gpu.memory.retain(lambda region: region.base != address)

    def mapped(self, first: int, nbytes: int) -> None:
        """Memory of the GPU at addresses of the program's choice. It is one allocation with what
        is mapped beside it.
        """
        end = first + nbytes
        for address in (first - 1, end):
            beside = self.reserved_at(address)
            if beside is not None and beside.by == MAPPED:
                first, end = min(first, beside.first), max(end, beside.first + beside.size)
                del self._memory[beside.first]
        self._memory[first] = Reserved(first, end - first, MAPPED, None)

    def unmapped(self, first: int, nbytes: int) -> None:
        """What is mapped there is no longer legal for kernels."""
        end = first + nbytes
        for memory in [m for m in self._memory.values() if m.by == MAPPED]:
            if memory.first < end and first < memory.first + memory.size:
                del self._memory[memory.first]
                for a, b in ((memory.first, first), (end, memory.first + memory.size)):
                    if a < b:
                        self._memory[a] = Reserved(a, b - a, MAPPED, None)
        self.gpu.memory.retain(lambda r: r.base + r.size <= first or r.base >= end)

    def freed_at(self, address: int) -> str:
        """What is said of an address in memory that has been given back, else ""."""
        for memory in self._freed.values():
            if memory.holds(address):
                now = "which is not allocated" if memory.by == OF_GRAPHS else "which was freed"
                return f"{self._name(memory)}, {now}{self._at(memory.freed)}"
        return ""

    def reserved_at(self, address: int) -> Reserved | None:
        """The memory that holds an address and has not been given back."""
        return next((m for m in self._memory.values() if m.holds(address)), None)

    def name_at(self, address: int) -> str:
        """What an address lies in: an allocation or one that has been given back, else ""."""
        found = self.reserved_at(address)
        return self.freed_at(address) if found is None else self._name(found)

    def _name(self, memory: Reserved) -> str:
        return f"{memory.size} bytes of {memory.by}{self._at(memory.made)}"

    def _at(self, frames: tuple[int, ...] | None) -> str:
        return f" at {self.lines.line(frames)}" if self.lines is not None and frames else ""

    def own(self, address: int) -> int:
        """Where the bytes of an address of the program lie."""
        return address if self.view is None else self.view.own(address)

    def register(self, address: int, nbytes: int, what: str = "cudaHostRegister") -> None:
        """Memory of the host becomes legal for kernels."""
        if not address or not nbytes or address in self._registered:
            raise invalid(f"{nbytes} bytes at {address:#x} cannot be registered")
        self._registered[address] = nbytes, what

    def unregister(self, address: int) -> None:
        if self._registered.pop(address, None) is None:
            raise invalid(f"{address:#x} is not registered")
        self.gpu.memory.retain(lambda region: region.base != address)

    @property
    def used(self) -> int:
        return sum(memory.size for memory in self._memory.values())

    def region_at(self, address: int) -> tuple[int, int, str, bool] | None:
        """First byte, size and name of the allocation that holds an address, and whether the host
        shares it.
        """
        if (found := self.reserved_region_at(address)) is not None:
            return found
        for first, (size, what) in self._registered.items():
            if first <= address < first + size:
                return first, size, f"{size} bytes of {what}", True
        return None

    def reserved_region_at(self, address: int) -> tuple[int, int, str, bool] | None:
        """The same of one that the driver has made: no tensor's, unless a program makes a tensor
        of it.
        """
        memory = self.reserved_at(address)
        if memory is None:
            return None
        return memory.first, memory.size, self._name(memory), memory.by not in OF_THE_GPU

    def make_legal(self, found: tuple[int, int, str, bool] | None) -> None:
        """Kernels may use an allocation from now on. found: as of region_at."""
        if found is not None:
            first, size, name, shared = found
            data = self.view.bytes_at(first) if self.view is not None else None
            self.gpu.memory.register(first, size, name, shared=shared, data=data)

    def region_below(self, address: int) -> tuple[int, int, str, bool] | None:
        """The same of the allocation that ends last before an address that is in none."""
        below = (m for m in self._memory.values() if m.first + m.size <= address)
        nearest = max(below, key=lambda memory: memory.first, default=None)
        return None if nearest is None else self.region_at(nearest.first)


def refuse_launch_attribute(number: int) -> None:
    raise unsupported(f"launch attribute {number} (cudaLaunchAttributeID) is not modelled")


def check_image(head: bytes) -> None:
    """EmulatorError if a module's image, by its first bytes, is an ELF file or a fat binary."""
    if head[:4] in (fatbin.ELF, *fatbin.HEADS):
        raise unsupported("a module of machine code (cubin): the software B200 takes PTX")


def text_of(image: bytes) -> str:
    """The PTX of an image that is neither; EmulatorError for what is no text, as LTO-IR."""
    try:
        return image.decode()
    except UnicodeDecodeError:
        said = "a module that is no PTX, as LTO-IR is none: the software B200 takes PTX"
        raise unsupported(said) from None
