"""Rule: a result must not depend on memory, or a register, that nobody has written.

A launch may read such memory without harm: rows after a matrix's edge and the padding of scale
factors are loaded and then not used. So the checker remembers reads of memory that still holds the
pattern of unwritten memory (chip/unwritten.py). If there were any, it carries the launch out again
with other values there, in the same order and without the rules. Then it compares the results: if
they differ, or if the launch does not come to its end, the read values reach a result. Finally it
puts memory back to the launch's own results.

Loads of shared and tensor memory that nobody has written are judged in the same way (checked.py),
with other values there. So are registers that some way from the kernel's beginning reads first: the
values may not take that way, or drop what is read.

Two replacements are tried: zeros, which differ from the pattern (NaN) in all arithmetic, and a
number above 1 in all floating-point formats, for kernels that take a maximum or compare. If neither
changes a result (a product of integers with nothing but zeros), the rule says that the read values
reach no result.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, NOTE
from b200.chip import operations as ops
from b200.chip import unwritten
from b200.chip.contents import Contents
from b200.chip.describe import mnemonic
from b200.chip.global_memory import GlobalMemory, Region
from b200.chip.tensors import LiveTensors
from b200.errors import EmulatorError, Fault
from b200.program.module import TYPE_BITS, Instr
from b200.program.translated import Translated
from b200.registry import FULL

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.copies.tma import TensorBoxes

UNIT = unwritten.UNIT
REPLACEMENTS = (0x0000, 0x4B4B)  # values of a unit. 0x4B4B: f16 14.6, f32 and bf16 1.3e7, e4m3 5.5
LEFT_OUT = "whether a result depends on unwritten memory that the launch reads was not looked at"


class UnwrittenRead(NamedTuple):
    """The first read of an allocation by an instruction. units: the unwritten ones it has read."""

    agent: Agent
    ins: Instr
    region: Region
    units: np.ndarray


class Unwritten:
    """The rule for one launch.

    whole: first byte -> allocation in which nothing is unwritten; kept from launch to launch.
    reads: (instruction, allocation) -> first read. units: allocation -> which of its units were
    read unwritten. before: allocation -> its contents before the launch wrote there. readers: the
    allocations that it reads, with the first instruction that does.
    """

    def __init__(self, observer: Observer, memory: GlobalMemory, whole: dict[int, Region]):
        self.observer, self.memory, self.whole = observer, memory, whole
        self.reads: dict[tuple[int, int], UnwrittenRead] = {}
        self.units: dict[int, np.ndarray] = {}
        self.before: dict[int, tuple[Region, np.ndarray]] = {}
        self.readers: dict[int, tuple[Region, Instr]] = {}
        self.holes: dict[int, np.ndarray] = {}  # units unwritten at its first read
        self.told, self.unknown = False, ""
        # [first, last) byte of the allocation seen last, or of what is given of it
        self._near = self._near_written = 0, 0

    # --- what the launch does -------------------------------------------------------------------
    def issued(self, agent: Agent, operation: ops.Operation, ins: Instr) -> None:
        """An asynchronous operation is about to take effect."""
        if isinstance(operation, ops.TmaLoad):
            self.box(agent, operation.access, ins)
        elif isinstance(operation, ops.BulkLoad) and operation.nbytes:
            self.span(agent, operation.source, operation.nbytes, ins)
        elif isinstance(operation, ops.CpAsync) and operation.nbytes:
            self.lanes(agent, operation.sources, operation.nbytes, ins)
        elif isinstance(operation, (ops.TmaStore, ops.TmaReduce)):
            self.writes_to(operation.access.region)
            if isinstance(operation, ops.TmaReduce):
                self.box(agent, operation.access, ins)
        elif isinstance(operation, (ops.BulkStore, ops.BulkReduce)):
            self.writes_to(self.memory.region(operation.destination, operation.nbytes))
            if isinstance(operation, ops.BulkReduce):
                self.span(agent, operation.destination, operation.nbytes, ins)

    def lanes(self, agent: Agent, addresses: np.ndarray, nbytes: int, ins: Instr) -> None:
        """`nbytes` are read at each of the addresses, int64."""
        if self._within(self._near, addresses):
            return
        try:
            parts = list(self.observer.globals.shadow.regions(addresses, nbytes))
        except Fault:
            return  # whoever reads says so
        for region, at in parts:
            self.observer.given.look(agent, region, at, nbytes, ins, "reads")
            self.readers.setdefault(region.base, (region, ins))
            if not self._is_whole(region):
                count = (int(at[0]) % UNIT + nbytes + UNIT - 1) // UNIT
                self._look(agent, region, ((at // UNIT)[:, None] + np.arange(count)).ravel(), ins)

    def span(self, agent: Agent, address: int, nbytes: int, ins: Instr) -> None:
        """Contiguous bytes are read."""
        region = self.memory.region(address, nbytes)
        at = address - region.base
        self.readers.setdefault(region.base, (region, ins))
        if region.base not in self.observer.given.whole:
            self.observer.given.look(agent, region, np.array([at]), nbytes, ins, "reads")
        if not region.behind and not self._is_whole(region):
            self._look(agent, region, np.arange(at // UNIT, -(-(at + nbytes) // UNIT)), ins)

    def box(self, agent: Agent, access: TensorBoxes, ins: Instr) -> None:
        """The boxes of a tensor copy are read."""
        self.readers.setdefault(access.region.base, (access.region, ins))
        if not self._is_whole(access.region):
            for rows, nbytes in access.spans():
                first = (rows - access.region.base) // UNIT
                units = (first[:, None] + np.arange(-(-nbytes // UNIT))).ravel()
                self._look(agent, access.region, units, ins)

    def is_known(self, region: Region) -> bool:
        """Whether a further read of an allocation tells nothing."""
        base = region.base
        known = self.whole.get(base) is region and base in self.readers
        return known and base in self.observer.given.whole

    def writes(self, addresses: np.ndarray, nbytes: int) -> None:
        """Lanes are about to write `nbytes` at each of the addresses, int64."""
        while addresses.size and not self._within(self._near_written, addresses):
            try:
                region = self.memory.region(int(addresses[0]), nbytes)
            except Fault:
                return  # whoever writes says so
            self.writes_to(region)
            self._near_written = low, high = region.base, region.base + region.size
            addresses = addresses[(addresses < low) | (addresses >= high)]

    def writes_to(self, region: Region) -> None:
        """An allocation is about to be written: keep its present contents."""
        if region.base in self.before:
            return
        if region.size > unwritten.LIMIT:
            self.unknown = f"{LEFT_OUT}: it writes {region.name}, which is too large to be kept"
        else:
            self.before[region.base] = region, region.u8.copy()

    @staticmethod
    def _within(span: tuple[int, int], addresses: np.ndarray) -> bool:
        low, high = span
        if addresses.size == 1:
            return low <= addresses[0] < high
        return low <= addresses.min() and addresses.max() < high

    def _is_whole(self, region: Region) -> bool:
        if self.whole.get(region.base) is not region:
            if region.base in self.holes:
                return False
            holes = unwritten.find(region.u8)
            if holes is not None:
                self.holes[region.base] = holes
                return False
            self.whole[region.base] = region
        self._near = self.observer.given.span(region)
        return True

    def _look(self, agent: Agent, region: Region, units: np.ndarray, ins: Instr) -> None:
        """An instruction reads units of an allocation: note those that are still unwritten."""
        holes = self.holes[region.base]
        units = units[units < holes.size]
        units = units[holes[units]]
        units = units[region.u16[units] == unwritten.pattern_at(units)]
        if units.size:
            if region.base not in self.units:
                self.units[region.base] = np.zeros(holes.size, bool)
            self.units[region.base][units] = True
            self.reads.setdefault((id(ins), region.base), UnwrittenRead(agent, ins, region, units))

    # --- does it reach a result -----------------------------------------------------------------
    def reaches(self, again: Callable[[int], object], shared: bool = False) -> str:
        """The place where a result differs if the launch reads other values in unwritten memory, in
        words; "" if none does.

        again: carries the launch out once more, with each byte of the CTAs' memory set to its
        argument. shared: replace the values in that memory, not those in global memory.
        """
        allocations = self.memory.allocations()  # the other values may lead to any of them
        after = Contents(r for r in allocations if r.size <= unwritten.LIMIT)
        written = [(region, old, region.u8.copy()) for region, old in self.before.values()]
        written.sort(key=lambda entry: entry[0].base in self.units)  # other results are told first
        read = {read.region.base: read.region for read in self.reads.values()}
        try:
            for value in REPLACEMENTS:
                after.put_back()
                for region, old, _ in written:
                    region.u8[:] = old
                for base, units in () if shared else self.units.items():
                    read[base].u16[: units.size][units] = value
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        again(value & 0xFF if shared else 0xFF)
                except EmulatorError as error:
                    return f"with other values there the launch ends in a {error.kind}"
                for region, _, result in written:
                    if self.memory.heap.freed_at(region.base):
                        continue
                    if found := self._difference(region, result, value):
                        return found
        finally:
            after.put_back()
        return ""

    def wrote_any(self, values: tuple[int, ...]) -> bool:
        """Whether the launch has written one of these numbers of 16 bits."""
        for region, old in self.before.values():
            new = region.u16[
                np.flatnonzero(region.u16 != old[: 2 * region.u16.size].view(np.uint16))
            ]
            if any((new == value).any() for value in values):
                return True
        return False

    def _difference(self, region: Region, result: np.ndarray, value: int) -> str:
        differs = region.u8 != result
        read = self.units.get(region.base)
        if read is not None:  # a replacement that is still there is no result
            units = np.flatnonzero(read)
            left = region.u16[units] == value
            left &= result[: 2 * read.size].view(np.uint16)[units] == unwritten.pattern_at(units)
            differs[: 2 * read.size].reshape(-1, 2)[units[left]] = False
        if not differs.any():
            return ""
        return f"a result that depends on it: {self._place(region, int(np.argmax(differs)))}"

    # --- words ----------------------------------------------------------------------------------
    def tell(self, reached: str | None) -> None:
        """Report the reads. reached: the result that depends on them, "" if none does, None if that
        is unknown.
        """
        if self.told:
            return
        self.told = True
        if self.reads and reached is None and not self.unknown:
            self.unknown = f"{LEFT_OUT}: another launch overlaps"
        for read in self.reads.values():
            self._tell(read, reached)

    def _tell(self, read: UnwrittenRead, reached: str | None) -> None:
        diagnosis = f"{mnemonic(read.ins)} reads global memory that nobody has written"
        if reached == "":
            diagnosis += ", on which no result of the launch depends"
        elif reached is None:
            diagnosis += f"; {LEFT_OUT}"
        name = self.observer.operand(read.region.base)
        at = UNIT * int(read.units[0])
        details = [
            f"this access: {words.line(read.ins)}, by {words.name(read.agent)}",
            f"in {name}: {self._place(read.region, at)}; {UNIT * read.units.size} bytes in this "
            f"access, {UNIT * int(self.units[read.region.base].sum())} there in the launch",
            f"missing: a write of {name} before the launch (torch.zeros for torch.empty, a memset "
            "after cudaMalloc), or a guard for what it does not have",
        ]
        if reached:
            details.append(reached)
        severity = ERROR if reached else NOTE
        self.observer.found(
            "unwritten",
            diagnosis,
            *details,
            at=read.ins,
            severity=severity,
        )

    def _place(self, region: Region, at: int) -> str:
        """A byte of an allocation in words: an element of the program's tensor, if there is one."""
        for name, tensor in LiveTensors.held(region.base, region.size):
            left = (region.base + at - tensor.data_ptr()) // tensor.element_size()
            index = [0] * tensor.dim()
            for d in sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d)):
                if tensor.stride(d) > 0:
                    index[d], left = divmod(left, tensor.stride(d))
            inside = all(0 <= i < n for i, n in zip(index, tensor.shape))
            if left == 0 and inside and index:
                return f"{name}[{', '.join(map(str, index))}]"
        return f"byte {at:,} of {self.observer.operand(region.base)}"


# --- registers ------------------------------------------------------------------------------------


def registers_read_first(code: Translated) -> list[str]:
    """The registers that some way from a kernel's beginning reads before it writes them."""
    return [name for i, name in enumerate(code.kernel.registers) if code.live[0] >> i & 1]


def with_registers(code: Translated, byte: int) -> Translated:
    """The kernel with each byte of these registers set, where its warps begin."""
    initial = list(code.initial)
    for i, register in enumerate(code.kernel.registers.values()):
        if code.live[0] >> i & 1:
            initial[i] = _set(initial[i], register.type, byte)
    return replace(code, initial=initial)


def _set(value: Any, kind: str, byte: int) -> Any:
    if kind == "pred":
        return FULL if byte else 0
    if isinstance(value, np.ndarray):
        return np.full(value.nbytes, byte, np.uint8).view(value.dtype)
    return int.from_bytes(bytes([byte]) * (TYPE_BITS[kind] // 8), "little")


def tell_of_registers(observer: Observer, code: Translated, reached: str) -> None:
    """Report what reads them first. reached: a result that depends on one of them, in words."""
    names = registers_read_first(code)
    hits = observer.machine.hits
    executed = (op for block in code.structure if hits[block.index] for op in block.ops)
    first = next(op.ins for op in executed if {r.name for r in op.srcs} & {*names})
    observer.found(
        "uninitialised",
        "a register is read that nothing has written",
        f"this access: {words.line(first)}",
        f"read before they are written, on some way: {', '.join(names[:8])}",
        reached,
        "missing: a value for the variable on each way that leads to its use",
        at=first,
    )
