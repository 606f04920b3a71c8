"""Finds what a polling loop reads and what it compares, for the report of a hang.

One round of the loop is executed again. The variables of the generated functions show the registers
at the end of each block.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.chip.memory.loads_stores import space_of
from b200.chip.state import CTA
from b200.chip.tensors import LiveTensors
from b200.program.analysis import EXIT, Op
from b200.program.module import CLOCKS, TYPE_BITS, Addr, Imm, Instr, Not, Reg, Special, Sym, Vec
from b200.registry import Blocked, Waitable, active
from b200.spaces import SHARED_WINDOW, WINDOW_MASK

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.machine import Machine

Names = dict[str, str]  # register -> variable of the generated functions
ROUND = 4096  # blocks of a loop, at most
SIGNS = {
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"lo": "<", "ls": "<=", "hi": ">", "hs": ">="},
}


@dataclass(frozen=True)
class PolledRead:
    """A load or atomic in a loop, as one lane of a warp makes it. space: "global" or "shared";
    address: in that space; cta: the CTA whose shared memory is read; values: what the instruction
    returned. seen: the addresses and values of all its lanes.
    """

    ins: Instr
    space: str
    address: int
    cta: CTA | None
    values: tuple[int, ...]
    seen: tuple[Any, ...]

    @property
    def what(self) -> tuple[object, ...]:
        return id(self.ins), self.seen


class Poll(Waitable):
    """The thing that a warp in a polling loop waits for: another warp must change what it reads.

    ins: the read that the loop's condition depends on, as far as known. test: the comparison, in
    words. visited: the blocks of the loop.
    """

    def __init__(
        self, read: PolledRead | None, ins: Instr, test: str, visited: frozenset[int], place: str
    ):
        super().__init__()
        self.read, self.ins, self.test, self.visited, self.place = read, ins, test, visited, place

    def describe(self) -> str:
        if self.read is None:
            return f"nothing: it goes round in a loop that reads no memory{self.test}"
        return f"a change of {self.place}: {self.finds()}"

    def finds(self) -> str:
        """ "it reads 1, and 1 < 2 is true (...)"."""
        values = ", ".join(_number(self.read.ins, v) for v in self.read.values) if self.read else ""
        return f"it reads {values}{self.test}"


class Condition(NamedTuple):
    """What a loop reads and compares.

    read: the read that a comparison of the loop depends on, else any read; where lanes vote on it,
    that of a lane that holds the others. test: that comparison in words, "" without one. clocks:
    special registers of time that the loop reads.
    """

    read: PolledRead | None
    test: str
    clocks: set[str]


class Compared(NamedTuple):
    """A comparison of a loop: the instruction and its step, with the read that it depends on, and
    that one's step.
    """

    ins: Instr
    step: LoopStep
    read: Op
    read_in: LoopStep


@dataclass(frozen=True)
class LoopStep:
    """One block of a round of a loop: its number, its lanes, and the variables at its end."""

    pc: int
    mask: int
    variables: dict[str, Any]


def one_round(
    machine: Machine, warp: Fragment, follow: bool = False
) -> tuple[list[LoopStep], Fragment | None]:
    """Execute a fragment until it comes back to the block where it is now.

    Returns the steps and the fragment at that time. That is None if the fragment has ended; with
    `follow` it is then another fragment of its warp that can run.
    """
    start = warp.pc, warp.mask
    steps: list[LoopStep] = []
    filename = f"<{machine.code.kernel.name}>"
    done: dict[str, Any] = {}

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        if event == "return" and frame.f_code.co_filename == filename:
            done.clear()
            done.update(frame.f_locals)

    blocks, before = machine.code.blocks, sys.getprofile()
    for _ in range(ROUND):
        pc, mask = warp.pc, warp.mask
        machine.hits[pc] += 1
        sys.setprofile(profile)
        try:
            after = blocks[pc](warp, warp.register_file)
        except Blocked:  # it waits for lanes of its own warp
            if not follow:
                raise
            return steps, None
        finally:
            sys.setprofile(before)
        steps.append(LoopStep(pc, mask, dict(done)))
        if after == EXIT or after == warp.reconv:
            after = warp.arrive_or_exit(after)
        if after is not None:
            warp.pc = after
        else:
            others = [g for g in warp.state.fragments if g.waits_for is None] if follow else []
            if not others:
                return steps, None
            warp = others[0]
        if (warp.pc, warp.mask) == start:
            break
    return steps, warp


def reads_of(machine: Machine, warp: Fragment, steps: list[LoopStep]) -> list[PolledRead]:
    """The reads of a fragment in one round of its loop."""
    names = _names(machine)
    found: list[PolledRead] = []
    for step in steps:
        for op in machine.code.structure[step.pc].ops:
            if (read := _read(names, step, op, warp, _lowest(step.mask))) is not None:
                found.append(read)
    return found


def name_polls(machine: Machine) -> None:
    """Make each polling fragment wait for a Poll; fragments that poll alike share one object."""
    alike: dict[tuple[Instr, str], Poll] = {}
    for f in list(machine.order.queue):
        if f in f.state.fragments and f.waits_for is None:
            poll, f = _poll_of(machine, f)
            f.waits_for = alike.setdefault((poll.ins, poll.describe()), poll)


def _poll_of(machine: Machine, warp: Fragment) -> tuple[Poll, Fragment]:
    """The poll of a fragment that goes round, and what is the fragment after another round."""
    steps, now = one_round(machine, warp, follow=True)
    read, test, clocks = condition_of(machine, warp, steps)
    if read is None and clocks:
        test = f" but %{', %'.join(sorted(clocks))}, which stands still where no time is modelled"
    ins = read.ins if read is not None else machine.code.structure[warp.pc].ops[0].ins
    visited = frozenset(step.pc for step in steps)
    place = _place(machine, read) if read is not None else ""
    return Poll(read, ins, test, visited, place), now or warp


def condition_of(machine: Machine, warp: Fragment, steps: list[LoopStep]) -> Condition:
    """The condition of a loop, from the steps of one round."""
    names = _names(machine)
    tainted: dict[str, tuple[Op, LoopStep]] = {}
    read: PolledRead | None = None
    lane: int | None = None
    compared: Compared | None = None
    clocks: set[str] = set()
    for step in steps * 2:  # a value may come to its comparison in the next round
        for op in machine.code.structure[step.pc].ops:
            if (new := _read(names, step, op, warp, _lowest(step.mask))) is not None:
                tainted.update({r.name: (op, step) for r in op.dsts})
                read = read or new
                continue
            sources = [tainted[r.name] for r in op.srcs if r.name in tainted]
            tainted.update({r.name: sources[0] for r in op.dsts if sources})
            if op.ins.mods[0] == "vote" and sources:
                lane = _holding(names, step, op.ins)
            elif op.ins.mods[0] == "setp" and sources and (compared is None or lane is None):
                compared = Compared(op.ins, step, *sources[0])
            specials = (o.name for o in op.ins.operands if isinstance(o, Special))
            clocks.update(n for n in specials if n in CLOCKS)
    if compared is None:
        return Condition(read, "", clocks)
    lane = _lowest(compared.step.mask) if lane is None else lane
    read = _read(names, compared.read_in, compared.read, warp, lane)
    return Condition(read, _comparison(names, compared.step, compared.ins, lane), clocks)


def _holding(names: Names, step: LoopStep, ins: Instr) -> int | None:
    """A lane that makes a vote come out as it does: of `any` one that says yes, of `all` one that
    says no, else one of the fewer. None if all say the same.
    """
    operand = ins.operands[1]
    register = operand.reg if isinstance(operand, Not) else operand
    said = step.variables.get(names[register.name]) if isinstance(register, Reg) else None
    if not isinstance(said, int):
        return None
    yes, no = said & step.mask, ~said & step.mask
    if isinstance(operand, Not):
        yes, no = no, yes
    if ins.has("any", "all"):
        held = yes if ins.has("any") else no
    else:
        held = min(yes, no, key=int.bit_count)
    return _lowest(held) if yes and no else None


def _names(machine: Machine) -> Names:
    """Register -> variable of the generated functions."""
    return {name: f"r{i}" for i, name in enumerate(machine.code.kernel.registers)}


def _value(names: Names, step: LoopStep, operand: object, lane: int) -> int | None:
    """An operand as a lane has it, None where it is not known."""
    if isinstance(operand, Imm):
        return operand.value
    if not isinstance(operand, Reg):
        return None
    found = step.variables.get(names[operand.name])
    if isinstance(found, np.ndarray):
        return int(found[lane])
    if operand.type == "pred" and found is not None:
        return found >> lane & 1
    return found


def _all_lanes(names: Names, step: LoopStep, operand: object) -> Any:
    """An operand as the lanes of a step have it, to compare with."""
    found = step.variables.get(names[operand.name]) if isinstance(operand, Reg) else operand
    return found[active(step.mask)].tobytes() if isinstance(found, np.ndarray) else found


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _read(names: Names, step: LoopStep, op: Op, warp: Fragment, lane: int) -> PolledRead | None:
    """The read of memory that an instruction is, as a lane makes it."""
    ins = op.ins
    if ins.mods[0] not in ("ld", "ldu", "atom") or len(ins.operands) < 2:
        return None
    space, at = space_of(ins), ins.operands[1]
    if space in ("param", "local", "const") or not isinstance(at, Addr):
        return None
    if ins.pred is not None and _value(names, step, ins.pred, lane) == int(ins.negated):
        return None
    base = _value(names, step, at.base, lane)
    if isinstance(at.base, Sym):
        shared = at.base.name in warp.machine.code.symbols
        base = warp.machine.code.symbols[at.base.name] if shared else warp.symbols[at.base.name]
    if base is None:
        return None
    address = base + at.offset
    if space == "generic":
        shared = address & ~WINDOW_MASK == SHARED_WINDOW
        space = "shared::cluster" if shared else "global"  # with the CTA's rank
        address &= WINDOW_MASK
    target = ins.operands[0]
    targets = target.items if isinstance(target, Vec) else (target,)
    found = (_value(names, step, r, lane) for r in targets)
    values = tuple(v for v in found if v is not None)
    seen = tuple(_all_lanes(names, step, operand) for operand in (at.base, *targets))
    if not space.startswith("shared"):
        return PolledRead(ins, "global", address, None, values, seen)
    cta, offset = warp.cta.cluster.locate(address, 1)
    if address >> 24 == 0 and space != "shared::cluster":
        cta = warp.cta
    return PolledRead(ins, "shared", offset, cta, values, seen)


def _number(ins: Instr, value: int) -> str:
    """A value as the type of an instruction has it."""
    kind = ins.types[-1]
    bits = TYPE_BITS[kind]
    value &= (1 << bits) - 1
    if kind[0] == "f" and bits in (32, 64):
        return str(np.array([value], f"u{bits // 8}").view(f"f{bits // 8}")[0])
    return str(value - (1 << bits) if kind[0] == "s" and value >> bits - 1 else value)


def _comparison(names: Names, step: LoopStep, ins: Instr, lane: int) -> str:
    """ ", and 1 < 2 is true (setp.lt.s32 at file:line)"."""
    left, right = (_value(names, step, o, lane) for o in ins.operands[1:3])
    sign = next((sign for m in ins.mods if (sign := SIGNS.get(m.removesuffix("u")))), None)
    if left is None or right is None or sign is None:
        return f" ({ins.text})"
    target = ins.operands[0]
    result = _value(names, step, target.items[0] if isinstance(target, Vec) else target, lane)
    truth = "" if result is None else " is true" if result else " is false"
    where = f" at {ins.loc}" if ins.loc else ""
    values = f"{_number(ins, left)} {sign} {_number(ins, right)}"
    return f", and {values}{truth} ({ins.opcode}{where})"


def _place(machine: Machine, read: PolledRead) -> str:
    """Where a read reads, in words."""
    if read.cta is not None:
        return f"shared memory at {read.address:#x} of CTA {read.cta.index}"
    region = machine.memory.find(read.address, 1)
    if region is None:
        return f"global memory at {read.address:#x}"
    name = LiveTensors.variable(region.base, region.size) or region.name
    return f"global memory at {read.address:#x} ({name}, byte {read.address - region.base})"
