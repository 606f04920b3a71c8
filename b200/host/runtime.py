"""The CUDA runtime and driver functions that the DSL's host code calls, over a GPU in software.

CPU tensors are global memory: a device pointer is a host address.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from b200.checker.checked import Checker
from b200.checker.finding import Finding
from b200.checker.launches.other_queues import Beside
from b200.chip.gpu import ONE_LAUNCH, Gpu
from b200.chip.launch import Shape
from b200.errors import EmulatorError
from b200.host.captures import Capture, KernelWork, Work
from b200.host.device_attributes import device_attribute
from b200.host.poke import parameters_at, peek, poke, text_at
from b200.host.queues import HOST, Queues
from b200.host.refusals import ASSERT, NAMES, check_cooperative, lasting_code, unsupported
from b200.host.tensor_map import tensor_map_encode_tiled
from b200.host.works import Works
from b200.program.module import Program

_ATTRIBUTE_COOPERATIVE = 2  # cudaLaunchAttributeCooperative
_ATTRIBUTE_CLUSTER = 4  # cudaLaunchAttributeClusterDimension
_ATTRIBUTE_DEPENDENT = 6  # cudaLaunchAttributeProgrammaticStreamSerialization
_ATTRIBUTE_BYTES = 72  # sizeof(cudaLaunchAttribute)
# cudaLaunchConfig_t: grid, block, dynamic bytes, queue, address and number of attributes
_CONFIG = "<6I3QI"
ANOTHER_QUEUE = (
    "what it polls may be written by work of another queue, which begins here only when this launch"
    " has ended; if none writes it, it is a deadlock:"
)


class Runtime:
    """Handles of modules and kernels, and the way from a launch's arguments to `gpu.launch`.

    error: what a callback could not raise, since an exception cannot cross machine code. refused:
    the call that CUDA has refused with a number, which the DSL's host code is about to meet.
    loading: PTX of the compiled function whose library is being loaded. recording: the CUDA graph
    that is under capture. mismatched: what is wrong with the arguments of the compiled function
    that is called (host/dsl/arguments.py). queues: who waits for what was launched. works: what
    else is put into queues. unasked: launches that were refused with a number at which the program
    has not looked, a line each. told: called where a launch that has ended gets a finding more.
    """

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.error: BaseException | None = None
        self.refused: EmulatorError | None = None
        self.loading: str | None = None
        self.recording: Capture | None = None
        self.mismatched: list[Finding] = []
        self.unasked: list[str] = []
        self.queues = Queues()
        self.works = Works(self)
        self.told: Callable[[], None] = lambda: None
        self.queues.follows = self._follows
        self.queues.records = self._records
        self._programs: dict[int, Program] = {}
        self._kernels: dict[int, tuple[Program, str]] = {}
        self._handles = 0x10000

    def begin(self) -> None:
        """Forget what launches have left to those after them: their order, and a capture."""
        self.recording = None
        self.queues.begin()
        self.works.begin()
        if (checker := self.checker) is not None:
            checker.in_flight.clear()

    def runtime_functions(self) -> dict[str, tuple[int, Callable[..., None]]]:
        """The CUDA functions that the DSL's host code calls: by name, how many arguments one has,
        and what takes its place.
        """
        return {
            "_cudaLibraryLoadData": (8, self.library_load_data),
            "_cudaLibraryGetKernel": (3, self.library_get_kernel),
            "_cudaDeviceGetAttribute": (3, self.device_get_attribute),
            "_cuKernelGetAttribute": (4, self.is_zero),
            "_cudaKernelSetAttributeForDevice": (4, self.accept),
            "_cudaFuncSetAttribute": (3, self.accept),
            "_cudaGetDevice": (1, self.is_zero),
            "_cudaSetDevice": (1, self.accept),
            "_cuTensorMapEncodeTiled": (12, tensor_map_encode_tiled),
            "_cudaLaunchKernelEx": (3, self.launch_kernel),
        }

    def _handle(self) -> int:
        self._handles += 16
        return self._handles

    def library_load_data(self, out: int, code: int, *_: Any) -> None:
        if self.loading is None:
            raise unsupported(
                "a kernel was compiled before b200.install(): its PTX is not at hand; "
                "call b200.install() before the first cute.compile or @cute.jit call"
            )
        handle = self._handle()
        self._programs[handle] = self.gpu.load(self.loading)
        poke(out, "<Q", handle)

    def unload(self, library: int) -> bool:
        """Forget a library that the DSL has loaded; whether it is one."""
        return self._programs.pop(library, None) is not None

    def library_get_kernel(self, out: int, library: int, name: int) -> None:
        handle = self._handle()
        self._kernels[handle] = (self._programs[library], text_at(name))
        poke(out, "<Q", handle)

    def device_get_attribute(self, out: int, attribute: int, _device: int) -> None:
        poke(out, "<i", device_attribute(attribute & 0xFFFFFFFF))

    def is_zero(self, out: int, *_: Any) -> None:
        poke(out, "<i", 0)

    def accept(self, *_: Any) -> None:
        """Attributes of a kernel (carve-out, non-portable clusters) have no effect here."""

    def launch_kernel(self, config: int, kernel: int, args: int) -> None:
        *sizes, dynamic, queue, first, count = peek(config, _CONFIG)
        grid, block = tuple(sizes[:3]), tuple(sizes[3:])
        attributes = self.gpu.attributes = _attributes(first, count)
        cluster = (1, 1, 1)
        if _ATTRIBUTE_CLUSTER in attributes:
            cluster = struct.unpack_from("<3I", attributes[_ATTRIBUTE_CLUSTER])
        dependent = any(attributes.get(_ATTRIBUTE_DEPENDENT, b"")[:4])
        program, name = self._kernels[kernel]
        function = program.kernels[name]
        cooperative = any(attributes.get(_ATTRIBUTE_COOPERATIVE, b"")[:4])
        if cooperative:
            smem = dynamic + program.static_smem(function)
            check_cooperative(name, prod(grid), prod(block), smem)
        shape = Shape(grid, block, cluster, dynamic, dependent)
        params = parameters_at(function, peek(args, f"<{len(function.params)}Q"))
        self.launch(KernelWork(program, name, shape, params, cooperative), queue)

    def _follows(self, queue: int, other: int, event: int | None) -> None:
        if self.recording is not None and queue != HOST:
            self.recording.waits(queue, other, event)

    def _records(self, event: int, queue: int) -> None:
        if self.recording is not None:
            self.recording.recorded(event, queue)

    def launch(self, launch: KernelWork, queue: int | None) -> None:
        """Carry out a launch, or record it where a graph is under capture. queue: None where it is
        not known.
        """
        if (capture := self.capture_of(queue)) is not None:
            capture.take(launch, queue)
            return
        with ONE_LAUNCH:
            if queue is not None:
                self.queues.launched(queue, launch.kernel)
            try:
                done = self._carry_out(launch, queue)
            except EmulatorError as error:
                _say_assert(error)
                if self.queues.several and is_poll_of_global_memory(error):
                    raise EmulatorError("unsupported", f"{ANOTHER_QUEUE}\n{error}") from None
                raise
            if self.recording is not None and queue is not None:
                self.recording.missed(done, queue)
            mismatched, self.mismatched = self.mismatched, []
            if done.findings is not None and mismatched:
                done.findings.extend(mismatched)
                self.told()

    def _carry_out(self, launch: KernelWork, queue: int | None):
        """A launch, checked against those of other queues that it is not ordered after."""
        checker = self.checker
        if checker is None or queue is None:
            return launch.carry_out(self.gpu)
        checker.queue = self.queues.number(queue)
        if launch.shape.dependent and not self._overlaps(queue):
            launch = replace(launch, shape=replace(launch.shape, dependent=False))
        if not (self.works.pinned or self.queues.several):
            return launch.carry_out(self.gpu)
        beside = checker.beside = Beside(
            queue, self.queues.unordered(queue), functools.partial(self.queues.missed, queue)
        )
        try:
            done = launch.carry_out(self.gpu)
            beside.footprint, done.footprint = done.footprint or beside.footprint, None
            return done
        finally:
            checker.beside = None
            if beside.footprint is not None:
                self.queues.keep(queue, beside.footprint)

    def _overlaps(self, queue: int) -> bool:
        """Whether a dependent launch may start before the launch before it in its queue has ended:
        the host has not waited for that, and nothing lies between the two.
        """
        if self.queues.waited(queue):
            self.ends(queue)
        checker = self.checker
        return checker is not None and self.queues.number(queue) in checker.in_flight

    def ends(self, queue: int) -> None:
        """All launches of a queue end before what comes next there starts: that is no launch, or
        the host has waited for them (CUDA programming guide, "Programmatic Dependent Launch").
        """
        if self.recording is None and (checker := self.checker) is not None:
            checker.in_flight.pop(self.queues.number(queue), None)

    @property
    def checker(self) -> Checker | None:
        """What checks the launches; None if nothing does."""
        machine = getattr(self.gpu, "machine", None)
        return machine.watcher(Checker) if machine is not None else None

    def put(self, work: Work, queue: int) -> None:
        """Put what a graph does into a queue: carry it out, or record it as part of another."""
        if isinstance(work, KernelWork):
            self.launch(work, queue)
        elif not self.records(work, queue):
            work()

    def capture_of(self, queue: int | None) -> Capture | None:
        """The graph under capture into which work of a queue goes; None without one."""
        capture = self.recording
        return capture if capture is not None and capture.takes(queue) else None

    def records(self, work: Callable[[], None], queue: int) -> bool:
        """Whether what the host does in a queue becomes part of the graph under capture."""
        if (capture := self.capture_of(queue)) is not None:
            capture.take(work, queue)
        return capture is not None

    def raise_error(self) -> None:
        """Raise what a callback could not: an exception cannot cross the JIT's machine code."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def raise_refused(self, raised: Callable[[EmulatorError], EmulatorError]) -> None:
        """Raise what the DSL does where CUDA has refused a call. raised: makes it of the reason."""
        if self.refused is not None:
            refused, self.refused = self.refused, None
            raise raised(refused) from None


def is_poll_of_global_memory(error: EmulatorError) -> bool:
    """Whether a launch hangs as a warp of it polls global memory (chip/hang.py)."""
    return error.kind == "deadlock" and "polls global memory" in str(error)


def _say_assert(error: EmulatorError) -> None:
    """An assertion of a kernel is printed, as by CUDA's driver, and its error has CUDA's words."""
    if lasting_code(error) == ASSERT:
        print(str(error).partition("\n")[0], file=sys.stderr, flush=True)
        error.args = (f"{error}\nCUDA error: {NAMES[ASSERT][2]}",)


def _attributes(first: int, count: int) -> dict[int, bytes]:
    """The attributes of a launch, that many from this address on: value by number."""
    places = range(first, first + count * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES)
    found = [ctypes.string_at(place, _ATTRIBUTE_BYTES) for place in places]
    return {struct.unpack_from("<I", attribute)[0]: attribute[8:] for attribute in found}
