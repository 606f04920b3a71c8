"""Functions that the driver provides to kernels, `vprintf`, `__assertfail`, `malloc` and `free`
(PTX Writer's Guide to Interoperability, "System Calls"); other calls and breakpoints, which are
refused.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from b200.chip.memory.places import spans
from b200.effects import CallsSystem
from b200.errors import Fault, Unsupported
from b200.program.module import Instr
from b200.program.names import readable
from b200.registry import DTYPES, LaneValues, Run, active, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

_MAX_TEXT = 1 << 16
_CONVERSION = re.compile(r"%([-+ #0]*)(\d*)(\.\d*)?(hh|h|ll|l|z|j|t|L)?([diouxXcsfFeEgGaAp%])")
_UNSIGNED = "ouxX"


def _bytes(warp: Fragment, lane: int, address: int, nbytes: int) -> bytes:
    """Bytes at a generic address of one lane."""
    out = bytearray()
    addresses = np.zeros(32, np.uint64)
    for i in range(nbytes):
        addresses[lane] = address + i
        for data, offsets, _ in spans(warp, "generic", addresses, [lane], 1):
            out.append(int(data[offsets[0]]))
    return bytes(out)


def _text(warp: Fragment, lane: int, address: int) -> str:
    """The string at a generic address."""
    out = bytearray()
    while len(out) < _MAX_TEXT and (byte := _bytes(warp, lane, address + len(out), 1)) != b"\0":
        out += byte
    return out.decode("utf-8", "replace")


class _Arguments:
    """The buffer of a printf call: each argument at a multiple of its size."""

    def __init__(self, warp: Fragment, lane: int, address: int):
        self.f, self.lane, self.address, self.at = warp, lane, address, 0

    def take(self, code: str):
        size = struct.calcsize(code)
        self.at = -(-self.at // size) * size
        raw = _bytes(self.f, self.lane, self.address + self.at, size)
        self.at += size
        return struct.unpack(f"<{code}", raw)[0]


def _convert(match: re.Match[str], arguments: _Arguments, f: Fragment, lane: int) -> str:
    flags, width, precision, length, kind = match.groups()
    if kind == "%":
        return "%"
    spec = f"%{flags}{width}{precision or ''}"
    if kind == "s":
        return (spec + "s") % _text(f, lane, arguments.take("Q"))
    if kind == "c":
        return (spec + "c") % chr(arguments.take("i") & 0xFF)
    if kind == "p":
        return f"%{flags}{width}s" % hex(arguments.take("Q"))
    if kind in "fFeEgG":
        return (spec + kind) % arguments.take("d")
    if kind in "aA":
        text = arguments.take("d").hex()
        return text.upper() if kind == "A" else text
    code = "q" if length in ("l", "ll", "z", "j", "t") else "i"
    value = arguments.take(code.upper() if kind in _UNSIGNED else code)
    return (spec + ("d" if kind in "iu" else kind)) % value


@warp("call.vprintf", states=CallsSystem(), out=1)
def vprintf(ins: Instr) -> Run:
    """call (retval), vprintf, (format, arguments): prints for each active lane, lowest first."""

    def run(warp: Fragment, mask: int, form: LaneValues, arguments: LaneValues):
        forms, buffers = lanes(form, np.uint64), lanes(arguments, np.uint64)
        counts = np.zeros(32, DTYPES[32])
        for lane in active(mask):
            text = _text(warp, lane, int(forms[lane]))
            taken = _Arguments(warp, lane, int(buffers[lane]))
            sys.stdout.write(
                _CONVERSION.sub(
                    lambda m, taken=taken, lane=lane: _convert(m, taken, warp, lane), text
                )
            )
            counts[lane] = sum(m.group(5) != "%" for m in _CONVERSION.finditer(text))
        return counts

    return run


@warp("call.__assertfail", states=CallsSystem())
def assertfail(ins: Instr) -> Run:
    """call __assertfail, (message, file, line, function, character size): ends the launch."""

    def run(
        warp: Fragment,
        mask: int,
        message: LaneValues,
        file: LaneValues,
        line: LaneValues,
        function: LaneValues,
        _size: LaneValues,
    ) -> NoReturn:
        lane = active(mask)[0]
        said, source, name = (
            _text(warp, lane, int(lanes(x, np.uint64)[lane])) for x in (message, file, function)
        )
        raise Fault(
            f"{source}:{int(lanes(line, np.uint32)[lane])}: {name}: assertion `{said}` failed"
        )

    return run


@warp("call.malloc", states=CallsSystem(), out=1)
def malloc(ins: Instr) -> Run:
    """call (address), malloc, (bytes): a block for each active lane; 0 where the heap is full."""

    def run(warp: Fragment, mask: int, sizes: LaneValues):
        nbytes, memory = lanes(sizes, np.uint64), warp.machine.memory
        found = np.zeros(32, np.uint64)
        for lane in active(mask):
            found[lane] = memory.heap.allocate(memory, int(nbytes[lane]))
        return found

    return run


@warp("call.free", states=CallsSystem())
def free(ins: Instr) -> Run:
    """call free, (address)."""

    def run(warp: Fragment, mask: int, addresses: LaneValues) -> None:
        blocks, memory = lanes(addresses, np.uint64), warp.machine.memory
        for lane in active(mask):
            memory.heap.free(memory, int(blocks[lane]))

    return run


@warp("call.b200_child_grid", states=CallsSystem(), out=1)
def child_grid(ins: Instr) -> Run:
    """call (address), b200_child_grid, (kernel, 3 sizes of the grid, 3 of a block, bytes of shared
    memory): where the parameters of a grid are to be written (program/device_runtime.py).
    """

    def run(warp: Fragment, mask: int, kernel: LaneValues, *sizes: Any):
        machine, found = warp.machine, np.zeros(32, np.uint64)
        names = {address: name for name, address in warp.symbols.items()}
        program, kernels = machine.code.program, lanes(kernel, np.uint64)
        each = [lanes(size, np.uint32) for size in sizes]
        for lane in active(mask):
            name = names.get(int(kernels[lane]), "")
            if name not in program.kernels:
                raise Fault(f"a launch by a kernel: no kernel is at {int(kernels[lane]):#x}")
            own = [int(size[lane]) for size in each]
            found[lane] = machine.grids.make(machine.memory, program, name, own)
        return found

    return run


@warp("call.b200_launch_child_grid", states=CallsSystem(), out=1)
def launch_child_grid(ins: Instr) -> Run:
    """call (code), b200_launch_child_grid, (address of the parameters)."""

    def run(warp: Fragment, mask: int, buffers: LaneValues):
        for lane in active(mask):
            warp.machine.grids.launch(int(lanes(buffers, np.uint64)[lane]))
        return np.zeros(32, np.uint32)

    return run


_WHAT = {
    "call": "a call through a pointer that leads to no function of its type in the PTX",
    "call.cudaGraphSetConditional": "conditional nodes of graphs (cudaGraphSetConditional)",
}


@warp("call", states=CallsSystem())
def other_call(ins: Instr) -> Run:
    """A call that is left: of a function that calls itself, or that is no part of the PTX."""
    name = readable(ins.opcode.removeprefix("call."))
    what = _WHAT.get(ins.opcode, f"the call of {name} (it calls itself, or is not in the PTX)")

    def run(warp: Fragment, mask: int) -> NoReturn:
        raise Unsupported(f"{what} is not in the software B200")

    return run


@warp("brkpt", states=CallsSystem())
def breakpoint_(ins: Instr) -> Run:
    """brkpt: stops for a debugger (PTX ISA 9.7.19.1). Libraries have it on paths never taken."""

    def run(warp: Fragment, mask: int) -> NoReturn:
        raise Unsupported("brkpt stops for a debugger, which is not in the software B200")

    return run
