"""A GPU that runs PTX: modules, their variables, launches and the reports of the launches.

gpu = Gpu()
gpu.launch(ptx, "kernel", grid=(8, 1, 1), block=(128, 1, 1), args=[tensor, 4096])
gpu.launches[-1]
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import struct
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, cast

import numpy as np

from b200 import sparse
from b200.chip.abreast.order import SideBySide
from b200.chip.child_grids import LATER
from b200.chip.global_memory import GlobalMemory
from b200.chip.launch import Dim3, Launch, Shape
from b200.chip.machine import Machine
from b200.chip.repeated import Repeated
from b200.chip.tensors import LiveTensors
from b200.errors import EmulatorError, Unsupported
from b200.program.module import Kernel, Program, Variable
from b200.program.names import readable
from b200.program.parse import parse
from b200.program.translate import translate
from b200.program.translated import Translated

ONE_LAUNCH = threading.RLock()  # a program's threads launch one after the other
# What prints, allocates, or depends on other grids.
_NOT_REPEATABLE = (
    "call.vprintf",
    "call.malloc",
    "call.free",
    "call.b200_child_grid",
    "griddepcontrol",
)


class Gpu:
    """A B200 in software. `machine` executes kernels: a Machine or one that also checks or times.

    launches: a report for each finished launch, in order. memory: global memory; an address is
    legal while a live CPU tensor of this process, or a variable of a module, holds it. attributes:
    launch attributes that the DSL's host code set for its last launch, by number
    (cudaLaunchAttributeID). real: whether a GPU of this machine runs what is launched.
    """

    real = False

    def __init__(self) -> None:
        self.tensors = LiveTensors()
        self.memory = GlobalMemory(self.tensors.find)
        self.machine = Machine(self.memory, SideBySide())
        self.launches: list[Launch] = []
        self.attributes: dict[int, bytes] = {}
        self.repeated = Repeated(self.memory)
        self._modules: dict[str, Program] = {}
        self._variables: dict[int, tuple[Program, dict[str, int], list[np.ndarray]]] = {}
        self._grid = (ctypes.c_uint32 * 2)()

    def load(self, text: str) -> Program:
        """The module of a PTX text, parsed once. Raises EmulatorError for what is not modelled."""
        text = text.rstrip("\0")  # a compiler's text may end as a string of C does
        if text not in self._modules:
            try:
                self._modules[text] = parse(text)
            except Unsupported as error:
                raise EmulatorError("unsupported", str(error)) from None
        return self._modules[text]

    @property
    def programs(self) -> list[Program]:
        """The modules that were loaded, in order."""
        return list(self._modules.values())

    def launch(
        self,
        ptx: str | Program,
        kernel: str | None,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        args: Sequence[Any] | bytes = (),
        dependent: bool = False,
        cooperative: bool = False,
    ) -> Launch:
        """Run a kernel of a PTX module to its end; return its report and add it to `launches`.

        kernel: its name, or None for the only one. grid, cluster: in CTAs; block: in threads. smem:
        bytes of dynamic shared memory of a CTA. args: for each parameter a tensor or an array of
        numpy (its address), an int, a float, a scalar of numpy, or the parameter's bytes; or one
        bytes object with all parameters as they lie in memory. dependent: the launch may start
        before the previous one has ended (programmatic dependent launch). cooperative: its CTAs may
        wait for one another by CUDA's grid.sync(). Raises EmulatorError (fault, deadlock, limit,
        unsupported), and TypeError or ValueError for arguments that do not fit the kernel.
        """
        program = self.load(ptx) if isinstance(ptx, str) else ptx
        found = _kernel(program, kernel)
        params = args if isinstance(args, bytes) else pack(found, args)
        if not isinstance(args, bytes):
            self.tensors.make_legal(self.memory, args)
        with ONE_LAUNCH:
            workspace = ctypes.addressof(self._grid) if cooperative else 0
            shape = Shape(grid, block, cluster, smem, dependent, workspace)
            launch = self.execute(program, found, shape, params)
            launch.ptx = program.text
            if program.looks is not None:
                program.looks(launch)
            children = self.machine.grids.take()
            launch.incomplete += [LATER] if children else []
            self.launches.append(launch)
            for child in children:
                sizes = child.grid, child.block, (1, 1, 1), child.smem
                self.launch(program, child.kernel, *sizes, child.parameters.tobytes())
        return launch

    def execute(self, program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        """As `launch`, with its arguments resolved. A GPU of another kind overrides this method."""
        code = self._translate(program, kernel)
        self.tensors.refresh(self.memory)
        self.machine.symbols = self.variables(program)
        if shape.workspace:
            self._begin_workspace(shape.workspace)

        def carry_out() -> Launch:
            start = time.perf_counter()
            with _no_collector():
                launch = self.machine.launch(code, shape, params)
            launch.seconds = time.perf_counter() - start
            return launch

        opcodes = (getattr(item, "opcode", "") for item in kernel.body)
        repeatable = all(watcher.repeatable for watcher in self.machine.watchers)
        apart = any(opcode.startswith(_NOT_REPEATABLE) for opcode in opcodes)
        if shape.dependent or not repeatable or apart:
            return carry_out()
        key = (self.machine, id(code), shape, params)
        return self.repeated.run(key, carry_out)

    def _begin_workspace(self, address: int) -> None:
        """Global memory for a cooperative launch: its size in bytes, and the count of grid.sync().
        Legal from now on.
        """
        ctypes.memset(self._grid, 0, ctypes.sizeof(self._grid))
        self._grid[0] = ctypes.sizeof(self._grid)
        self.memory.register(address, ctypes.sizeof(self._grid), "the workspace of grid.sync()")

    def variables(self, program: Program) -> dict[str, int]:
        """Make a module's `.global` and `.const` variables, which live as long as the process,
        legal global memory. Addresses by name, of its functions, too, which are none of memory.
        Two modules may use the same names.
        """
        if id(program) not in self._variables:
            self._variables[id(program)] = program, *_place(program)
        _, addresses, _ = self._variables[id(program)]
        for name, address in addresses.items():
            if (found := program.variables.get(name)) is not None:
                nbytes, constant = max(found.size, 1), found.space == "const"
                self.memory.register(address, nbytes, f"variable {name}", constant=constant)
        return addresses

    def _translate(self, program: Program, kernel: Kernel) -> Translated:
        try:
            return translate(program, kernel, self.machine.writer_type)
        except Unsupported as error:
            raise EmulatorError(
                "unsupported", f"{error}\n  kernel {readable(kernel.name)}"
            ) from None


@contextlib.contextmanager
def _no_collector() -> Generator[None]:
    """In here no garbage is collected. Of a launch's objects nearly all live to its end or die of
    themselves, and the collector would take 3 to 15 % of its time to look at them again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _place(program: Program) -> tuple[dict[str, int], list[np.ndarray]]:
    """Addresses of a module's variables and functions, and the memory of the variables, uint8."""
    memory = {
        variable.name: sparse.aligned(max(variable.size, 1), max(variable.align, 16))
        for variable in program.variables.values()
        if variable.space in ("global", "const")
    }
    addresses = {name: data.ctypes.data for name, data in memory.items()}
    functions = {name: 16 * (i + 1) for i, name in enumerate(program.functions)}
    for name, data in memory.items():
        variable = program.variables[name]
        _write(data, 0, variable.init or b"")
        for pointer in variable.pointers:
            target = addresses.get(pointer.name)
            if target is None:
                target = functions.setdefault(pointer.name, 16 * (len(functions) + 1))
            _write(data, pointer.at, pointer.value(target))
    return functions | addresses, list(memory.values())


def _write(data: np.ndarray, at: int, value: bytes) -> None:
    data[at : at + len(value)] = np.frombuffer(value, np.uint8)


def _kernel(program: Program, name: str | None) -> Kernel:
    if name is None and len(program.kernels) == 1:
        return next(iter(program.kernels.values()))
    if name not in program.kernels:
        raise ValueError(
            f"kernel {name!r} is not one of the module's: {', '.join(program.kernels)}"
        )
    return program.kernels[name]


def pack(kernel: Kernel, args: Sequence[Any]) -> bytes:
    """Arguments as the bytes of a kernel's parameters (see Gpu.launch)."""
    if len(args) != len(kernel.params):
        raise TypeError(
            f"kernel {readable(kernel.name)} has {len(kernel.params)} parameters, got {len(args)}"
            " arguments"
        )
    data = bytearray(kernel.param_bytes)
    for i, (parameter, value) in enumerate(zip(kernel.params, args, strict=True)):
        data[parameter.offset : parameter.offset + parameter.size] = _bytes(i, parameter, value)
    return bytes(data)


def _plain(given: Any, size: int) -> Any:
    """An argument as a number or as its bytes."""
    if isinstance(given, np.ndarray):
        return given.ctypes.data
    if isinstance(given, np.generic):
        number = cast("np.generic[Any]", given)
        return number.tobytes() if number.itemsize == size else number.item()
    return given.data_ptr() if hasattr(given, "data_ptr") else given


def _bytes(index: int, parameter: Variable, given: Any) -> bytes:
    """One argument in a parameter's size; ints wrap as in C."""
    size = parameter.size
    value = _plain(given, size)
    if isinstance(value, float) and size in (4, 8):
        return struct.pack("<f" if size == 4 else "<d", value)
    if isinstance(value, int) and size <= 16:
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if isinstance(value, (bytes, bytearray)) and len(value) == size:
        return bytes(value)
    got = f"{len(value)} bytes" if isinstance(value, (bytes, bytearray)) else repr(value)
    raise TypeError(
        f"argument {index}: expected {size} bytes, a tensor, an array or a number, got {got}"
    )
