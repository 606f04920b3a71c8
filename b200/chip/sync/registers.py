"""setmaxnreg: warps give registers back to their CTA and take them from it (PTX ISA 9.7.19.5).

ptxas decides how many registers a thread starts with. It carries setmaxnreg out only if the kernel
limits that number by .maxnreg, or by .minnctapersm and a number of threads. Else it says C7508 and
ignores the instruction, and so does this module. A thread starts with the limit, or with the
largest operand in the kernel if that is smaller (ptxas 13.0 for sm_100a, `-v`). In SASS .inc is a
loop around USETMAXREG.TRY_ALLOC.CTAPOOL: it waits until the CTA's other warps have given enough
back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from b200.effects import SetsRegisters
from b200.errors import Fault
from b200.hardware import SM_REGISTERS
from b200.program.module import Imm, Instr, Kernel
from b200.registry import Blocked, Run, Waitable, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.state import CTA

LEAST, MOST, STEP = 24, 256, 8  # of the operand
ALLOTTED_WARPS = 4  # a CTA gets registers for a multiple of so many


def registers_at_entry(kernel: Kernel, operands: list[int]) -> int | None:
    """Registers of a thread when a kernel starts that has setmaxnreg with these operands; None if
    ptxas ignores setmaxnreg.
    """
    given = kernel.directives
    threads = math.prod(given.get("reqntid") or given.get("maxntid") or (0,))
    if not operands:
        return None
    if "maxnreg" in given:
        limit = given["maxnreg"][0]
    elif "minnctapersm" in given and threads:
        warps = -(-threads // (32 * ALLOTTED_WARPS)) * ALLOTTED_WARPS
        limit = SM_REGISTERS // (32 * warps * given["minnctapersm"][0]) // STEP * STEP
    else:
        return None
    return min(limit, MOST, max(operands))


def operand_of(ins: Instr) -> int:
    """The operand of a setmaxnreg: registers a thread."""
    (count,) = ins.operands
    assert isinstance(count, Imm)
    return int(count.value)


class RegisterPool(Waitable):
    """The registers that a CTA's warps have given back (`free`), and the warps that wait for some.

    entry: registers a thread at the kernel's start. held: warp -> registers a thread, for each warp
    that has changed its number. wanted: the same for each warp that waits.
    """

    __slots__ = ("cta", "entry", "free", "held", "wanted")

    def __init__(self, cta: CTA, entry: int):
        super().__init__()
        self.cta, self.entry, self.free = cta, entry, 0
        self.held: dict[int, int] = {}
        self.wanted: dict[int, int] = {}

    def of(self, warp: int) -> int:
        return self.held.get(warp, self.entry)

    def give(self, warp: int, count: int) -> None:
        """A warp keeps `count` registers a thread and gives the others back."""
        if count < self.of(warp):
            self.touch()
            self.free += 32 * (self.of(warp) - count)
            self.held[warp] = count
            self.notify()

    def take(self, warp: int, count: int) -> None:
        """A warp gets `count` registers a thread. Raises Blocked while the pool has too few."""
        more = 32 * (count - self.of(warp))
        if more > self.free:
            self.wanted[warp] = count
            raise Blocked(self)
        self.wanted.pop(warp, None)
        if more > 0:
            self.free -= more
            self.held[warp] = count

    def describe(self) -> str:
        missing = sum(32 * (count - self.of(w)) for w, count in self.wanted.items())
        return (
            f"registers: {missing:,} for warps {', '.join(map(str, sorted(self.wanted)))} of CTA "
            f"{self.cta.index}; {self.free:,} are given back and not taken"
        )


@warp("setmaxnreg", states=lambda ins: SetsRegisters(count=operand_of(ins)), may_block=True)
def setmaxnreg(ins: Instr) -> Run:
    """setmaxnreg.{inc|dec}.sync.aligned.u32 n"""
    move = RegisterPool.take if ins.mods[1] == "inc" else RegisterPool.give

    def run(warp: Fragment, mask: int, n: int) -> None:
        if not LEAST <= n <= MOST or n % STEP:
            raise Fault(f"{ins.opcode} {n}: must be a multiple of {STEP} in {LEAST}..{MOST}")
        entry = warp.machine.budget.registers
        if entry is None:
            return
        if warp.cta.registers is None:
            warp.cta.registers = RegisterPool(warp.cta, entry)
        move(warp.cta.registers, warp.index, n)

    return run
