"""The Python side of the CUDA runtime and driver of compiled programs: each call of shim/*.cpp.

A method of `Driver` gets the words of its call: numbers, and addresses to read from or write to.
What a B200 refuses becomes the number that the call's function returns (refusals.py). Any other
exception is kept and leaves the C++ side as a C++ exception with the same text.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from typing import Any

from b200.chip.heap import DEFAULT_LIMIT
from b200.errors import EmulatorError
from b200.hardware import MEMORY_BYTES
from b200.host import refusals
from b200.host.cuda import fatbin
from b200.host.cuda.copies import check_copy, check_fill
from b200.host.cuda.facts import Facts
from b200.host.cuda.graph_nodes import COPY, FILL, RECORD, HostWork, line_of
from b200.host.cuda.graphs import Graphs
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda.modules import Modules, check_image, refuse_launch_attribute, text_of
from b200.host.cuda.registration import Registration
from b200.host.cuda.virtual_memory import VirtualMemory
from b200.host.device_attributes import device_attribute
from b200.host.event_clock import Events
from b200.host.poke import peek, poke, text_at
from b200.host.queues import DEFAULT, HOST
from b200.host.refusals import Refused, invalid, unsupported
from b200.host.tensor_map import tensor_map_encode_tiled
from b200.program.linking import linked, undefined

# A function of C that takes a call: its name, its words and their number.
CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int
)

# cudaLimit -> bytes, by default: stack, what printf writes, malloc (CUDA programming guide), and
# what is set aside of L2
_HEAP_LIMIT = 2
_LIMITS = {0: 1024, 1: 1 << 20, _HEAP_LIMIT: DEFAULT_LIMIT, 6: 0}

# Calls that answer after a kernel has failed, too.
_ALWAYS = (
    *("note_error", "take_last_error", "driver_code", "error_text", "runtime_name", "driver_name"),
    *("device_reset", "recording", "forget_event", "missing", "make_queue", "current_queue"),
    *("register_module", "register_kernel", "register_variable", "register_managed", "in_queue"),
)


# What a missing function belongs to, by words of its name.
_KINDS = (
    (("Texture", "Surface", "ChannelDesc", "Array", "Mipmapped"), "textures, surfaces and arrays"),
    (("External", "Ipc", "Peer"), "memory of other devices and processes"),
)


class Driver:
    """Calls of the CUDA runtime and driver in compiled programs, answered by `modules`.

    groups: what answers the calls whose names begin so. error: the exception that is on its way
    through C++. last_error: what cudaGetLastError gives, a number of refusals.py. refused: why, for
    the last call of each number. lock: of the thread that is answered.
    """

    def __init__(self, modules: Modules):
        self.modules = modules
        self.runtime, self.gpu = modules.runtime, modules.gpu
        self.registration = Registration(modules)
        graphs = Graphs(modules, self._event_of_graph)
        self.graph_memory = graphs.memory
        self.groups: dict[str, Any] = {
            "register": self.registration,
            "graph": graphs,
            "graphmemory": graphs.memory,
            "virtual": VirtualMemory(modules),
            "facts": Facts(modules),
        }
        self.events, queues = Events(self.runtime), self.runtime.queues
        # calls that others answer as they are
        self.wait, self.queue_waits = queues.finished, queues.waits  # work is done when launched
        self.record_event = self.events.record
        self.host_register, self.host_unregister = modules.register, modules.unregister
        self.lock = threading.RLock()
        self.error: BaseException | None = None
        self.last_error = 0
        self.refused: dict[int, str] = {}
        self._limits = dict(_LIMITS)
        self._text = b""

    # --- the one way in
    def answer(self, name: bytes, words, count: int) -> int:
        """A call of the C++ side: its name and words. A number above 0: what CUDA returns. -1:
        `error` says what went wrong. Threads of the program take turns.
        """
        with self.lock:
            return self._answer(name.decode(), words[:count])

    def _answer(self, call: str, words: Sequence[int]) -> int:
        try:
            if self.modules.failed is not None and call not in _ALWAYS:
                raise self.modules.failed
            group, _, name = call.partition("_")
            owner = self.groups.get(group)
            with self.modules.answering():
                getattr(self, call)(*words) if owner is None else getattr(owner, name)(*words)
        except BaseException as error:  # noqa: BLE001  must not unwind through machine code
            loading = self.registration.loading
            if loading is not None and loading.error is None:
                loading.error = error
            if isinstance(error, EmulatorError) and error.kind == "limit":
                code = refusals.code_of(error, launch=call == "launch")
                self.refused[code] = str(error)
                return code
            self.error = error
            self._text = str(error).encode() + b"\0"
            return -1
        return 0

    def failed_outside(self, error: EmulatorError) -> None:
        """Host code has done, between calls of CUDA, what ends its program."""
        self.error = error

    def unasked(self) -> EmulatorError | None:
        """The error that the program has not asked for when its function returns: on a GPU
        PyTorch's next kernel raises it.
        """
        code, self.last_error = self.last_error, 0
        if not code:
            return None
        return Refused(code, self.refused.get(code, refusals.NAMES[code][2]))

    def exception_text(self) -> int:
        self._buffer = ctypes.create_string_buffer(self._text)
        return ctypes.addressof(self._buffer)

    # --- errors
    def note_error(self, code: int) -> None:
        self.last_error = code

    def take_last_error(self, out: int, take: int) -> None:
        failed = self.modules.failed
        poke(out, "<Q", self.last_error if failed is None else failed.code)
        if take:
            self.last_error = 0

    def driver_code(self, code: int, out: int) -> None:
        poke(out, "<Q", refusals.driver_code(code))

    def error_text(self, code: int, out: int, size: int) -> None:
        """CUDA's text, and in brackets why."""
        text = refusals.text(code)
        reason = self.refused.get(code, "").replace("\n", " ")
        _write_text(out, size, f"{text} ({reason})" if code and reason else text)

    def refused_text(self, code: int, out: int, size: int) -> None:
        _write_text(out, size, self.refused.get(code, ""))

    def runtime_name(self, code: int, out: int, size: int) -> None:
        _write_text(out, size, refusals.NAMES.get(code, ("unrecognized error code",))[0])

    def driver_name(self, code: int, out: int, size: int) -> None:
        _write_text(out, size, refusals.NAMES.get(code, ("", ""))[1] or "CUDA_ERROR_UNKNOWN")

    # --- queues and events: what a program has waited for
    def make_queue(self, flags: int, out: int) -> None:
        """flags: 1 is cudaStreamNonBlocking."""
        queue = self.modules.handle()
        self.runtime.queues.made(queue, non_blocking=bool(flags & 1))
        poke(out, "<Q", queue)

    def wait_for_queue(self, queue: int) -> None:
        self.runtime.queues.joins(HOST, queue)

    def wait_for_event(self, event: int) -> None:
        self.runtime.queues.waits(HOST, event)

    def current_queue(self, out: int) -> None:
        current = getattr(sys.modules.get("torch"), "cuda", None)
        poke(out, "<Q", current.current_stream().cuda_stream if current is not None else DEFAULT)

    def set_current_queue(self, queue: int) -> None:
        torch = sys.modules["torch"]
        torch.cuda.set_stream(torch.cuda.ExternalStream(queue))

    def device_reset(self) -> None:
        self.modules.failed, self.last_error = None, 0

    # --- modules
    def link_ptx(self, texts: int, names: int, count: int, out: int) -> None:
        """Write the address of the PTX of `count` modules as one. texts, names: of each."""
        if not count:
            raise invalid("cuLinkComplete: nothing was added")
        modules, called = ([*map(text_at, peek(at, f"<{count}Q"))] for at in (texts, names))
        text = linked(modules)
        for name in undefined(text):
            named = zip(called, modules, strict=True)
            user = next(module for module, its in named if name in undefined(its))
            said = f"error   : Undefined reference to '{name}' in '{user}'"  # nvlink's words
            raise Refused(refusals.INVALID_PTX, said)
        self._linked = ctypes.create_string_buffer(text.encode())
        poke(out, "<Q", ctypes.addressof(self._linked))

    def use_module(self, _module: int) -> None:
        """The host is about to touch a managed variable, which is in place since it is known."""

    def load_ptx(self, image: int, out: int) -> None:
        head = ctypes.string_at(image, 4)
        if head in fatbin.HEADS:
            found = fatbin.image_of(image)
            handle = self.modules.load(linked(found.texts), found.registers)
        else:
            check_image(head)
            handle = self.modules.load(text_of(ctypes.string_at(image)))
        poke(out, "<Q", handle)

    def find_kernel(self, module: int, name: int, out: int) -> None:
        poke(out, "<Q", self.modules.kernel(module, text_at(name)))

    def find_variable(self, module: int, name: int, address: int, size: int) -> None:
        found = self.modules.variable(module, text_at(name))
        for out, value in zip((address, size), found, strict=True):
            if out:
                poke(out, "<Q", value)

    # --- kernels
    def launch(self, handle: int, at: int) -> None:
        self.modules.launch(handle, LaunchWords.from_address(at))

    def unknown_launch_attribute(self, number: int) -> None:
        refuse_launch_attribute(number)

    def set_kernel_attribute(self, handle: int, attribute: int, value: int) -> None:
        signed = value - (1 << 64) if value >> 63 else value
        self.modules.set_attribute(handle, attribute, signed)

    def kernel_facts(self, handle: int, out: int) -> None:
        function = self.modules.function(handle)
        facts = (function.registers, function.static_smem, function.constant_bytes)
        facts += (function.local_bytes, function.most_threads, function.dynamic_smem_limit)
        poke(out, "<6q", *facts)

    def occupancy(self, handle: int, threads: int, dynamic_smem: int, out: int) -> None:
        poke(out, "<i", self.modules.resident(handle, threads, dynamic_smem))

    def occupancy_clusters(self, handle: int, at: int, out: int) -> None:
        words = LaunchWords.from_address(at)
        poke(out, "<i", self.modules.resident_clusters(handle, words))

    def largest_cluster(self, handle: int, out: int) -> None:
        poke(out, "<i", self.modules.largest_cluster(handle))

    # --- memory
    def allocate(self, nbytes: int, out: int, by: int) -> None:
        """by: the name of the function that reserves memory."""
        poke(out, "<Q", self.modules.reserve(nbytes, text_at(by)))

    def release(self, address: int, by: int) -> None:
        """cudaFree waits for the device. by: the name of the function."""
        self.runtime.queues.finished()
        self.modules.release(address, text_at(by))

    def allocate_in_queue(self, nbytes: int, out: int, queue: int) -> None:
        """cudaMallocAsync: now, or a node of the graph under capture."""
        if (capture := self.runtime.capture_of(queue)) is not None:
            capture.take(self.graph_memory.allocates(nbytes, out), queue)
        else:
            address = self.modules.reserve(nbytes)
            self.runtime.works.of_allocator("cudaMallocAsync", address, queue)
            poke(out, "<Q", address)

    def release_in_queue(self, address: int, queue: int) -> None:
        """cudaFreeAsync, in the same way."""
        if (capture := self.runtime.capture_of(queue)) is not None:
            capture.take(self.graph_memory.frees(address), queue)
        else:
            self.runtime.works.of_allocator("cudaFreeAsync", address, queue)
            self.modules.release(address, "cudaFreeAsync")

    def copy(self, to: int, source: int, nbytes: int, kind: int, queue: int) -> None:
        """kind: a cudaMemcpyKind."""
        _check_pointers(nbytes, to, source)

        def work() -> None:
            ctypes.memmove(self.modules.own(to), self.modules.own(source), nbytes)

        def later() -> None:  # memory of a graph is there when the graph runs
            check_copy(self.modules, to, source, nbytes, kind)
            work()

        if self.runtime.records(HostWork(COPY, later, line_of(to, source, nbytes)), queue):
            return
        check_copy(self.modules, to, source, nbytes, kind)
        # the host waits for a copy to memory of its own that is not pinned
        waits = self.modules.region_at(to) is None and self.gpu.memory.find(to, nbytes) is None
        self.runtime.works.copied(to, source, nbytes, queue, waits)
        work()

    def fill(self, to: int, value: int, nbytes: int, queue: int) -> None:
        _check_pointers(nbytes, to)

        def work() -> None:
            check_fill(self.modules, to, nbytes)
            ctypes.memset(self.modules.own(to), value & 0xFF, nbytes)

        words = (to, value & 0xFF, 1, nbytes, 1, nbytes)
        if not self.runtime.records(HostWork(FILL, work, words), queue):
            check_fill(self.modules, to, nbytes)
            self.runtime.works.moved("cudaMemset", ((to, nbytes, True),), queue)
            work()

    def in_queue(self, begins: int) -> None:
        """A function of the host that a queue has come to begins, or has ended."""
        if self.modules.view is not None:
            self.modules.view.in_queue(bool(begins))

    def symbol(self, host: int, address: int, size: int, needed: int) -> None:
        module, name = self.registration.symbol(host)
        at, nbytes = self.modules.variable(module, name)
        if needed > nbytes:
            raise invalid(f"copy of {needed} bytes with the variable {name} of {nbytes} bytes")
        poke(address, "<Q", at)
        poke(size, "<Q", nbytes)

    def memory_info(self, free: int, total: int) -> None:
        poke(free, "<Q", MEMORY_BYTES - self.modules.used)
        poke(total, "<Q", MEMORY_BYTES)

    # --- device, tensormaps, time
    def device_attribute(self, attribute: int, out: int) -> None:
        poke(out, "<i", device_attribute(attribute))

    def device_name(self, out: int, length: int) -> None:
        name = b"NVIDIA B200 (software)"[: length - 1] + b"\0"
        ctypes.memmove(out, name, len(name))

    def set_limit(self, limit: int, value: int) -> None:
        """limit: a cudaLimit. That of malloc in kernels is kept; the others are no bounds here."""
        if limit == _HEAP_LIMIT:
            self.gpu.memory.heap.limit = value
        self._limits[limit] = value

    def limit(self, limit: int, out: int) -> None:
        if limit not in self._limits:
            raise invalid(f"cudaLimit {limit} is not known")
        poke(out, "<Q", self._limits[limit])

    def set_device(self, device: int) -> None:
        if device not in (0, (1 << 64) - 1):
            said = f"cudaSetDevice({device}): there is one device, number 0"
            raise Refused(refusals.INVALID_DEVICE, said)

    tensor_map_encode_tiled = staticmethod(tensor_map_encode_tiled)

    def recording(self, out: int) -> None:
        poke(out, "<Q", self.runtime.recording is not None)

    def event_without_time(self, event: int) -> None:
        """Made with cudaEventDisableTiming: no time is asked of it."""
        self.events.without_time.add(event)

    def _event_of_graph(self, kind: int, event: int) -> None:
        """A node of a graph records an event, or waits for one."""
        if kind == RECORD:
            self.record_event(event, DEFAULT)
        else:
            self.queue_waits(DEFAULT, event)

    def forget_event(self, event: int) -> None:
        self.events.forget(event)
        self.runtime.queues.forget_event(event)

    def elapsed(self, start: int, end: int, out: int) -> None:
        """Write the milliseconds between two events to `out`."""
        poke(out, "<f", self.events.milliseconds(start, end))

    def missing(self, name: int) -> None:
        text = text_at(name)
        kind = next((what for words, what in _KINDS if any(w in text for w in words)), "")
        said = f"{text} is not in the software B200's CUDA"
        raise unsupported(f"{said}: {kind}" if kind else said)


def pointer_to(callback: Any) -> int | None:
    """Where a function for C lies."""
    return ctypes.cast(callback, ctypes.c_void_p).value


def _check_pointers(nbytes: int, *pointers: int) -> None:
    if nbytes and not all(pointers):
        raise invalid(f"a copy or fill of {nbytes} bytes at a null pointer")


def _write_text(out: int, size: int, text: str) -> None:
    encoded = text.encode()[: size - 1] + b"\0"
    ctypes.memmove(out, encoded, len(encoded))
