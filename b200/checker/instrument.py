"""Wraps the observer around run functions: `wrap(ins, run)` returns a function of the same form.

The translator's checked writer puts these functions in place of the plain ones. A launch without
the checker never executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from b200 import effects as e
from b200.checker.barriers import (
    fences,  # noqa: F401  each of these has rules (steps.rule)
    synchronisation,
)
from b200.checker.dependents import unheeded
from b200.checker.memory import generic, tensormaps  # noqa: F401
from b200.checker.products.overflows import watched
from b200.checker.steps import WRAPPERS, every_operand, look_of, named, plain
from b200.checker.tensor import pairs, tensor_accesses
from b200.checker.tensor.tensor_accesses import first_reads
from b200.program.analysis import Block
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.program.writer import Writer
from b200.registry import Run

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment
    from b200.program.analysis import Op

# Wrappers of looks whose answer decides nothing
UNHEEDED = {e.WaitsForPhase: synchronisation.unheeded_look, e.Loads: generic.unheeded_load}


class CheckedWriter(Writer):
    """Translates a kernel with the observer around every instruction that has state."""

    def write(self) -> None:
        self.first_reads = first_reads(self.out.structure)
        self.unheeded = unheeded(self.out.structure)
        self.out.without_rule = without_rule(self.out.structure)
        self.out.groups = pairs.groups_of(self.out.kernel)
        super().write()

    def _stays(self, op: Op) -> bool:
        return id(op.ins) in self.first_reads or super()._stays(op)

    def _kind(self, op: Op) -> Hashable | None:
        return None if id(op.ins) in self.first_reads else super()._kind(op)

    def _vector(self, group: list[Op], args: list[str], mask: str) -> str:
        made = group[0].made
        if made.narrows is None:
            return super()._vector(group, args, mask)
        function = self._constant(watched([op.ins for op in group], made))
        return f"{function}(w, {mask}, {', '.join(args)})"

    def _op(self, op: Op) -> None:
        if (loads := self.first_reads.get(id(op.ins))) is not None:
            told = self._constant(tensor_accesses.registers_read)
            which = self._constant(loads)
            self._line(f"{told}(w, {which})", op.ins)
        if op.entry is not None and op.entry.style != "pure" and op.made is not None:
            if op.ins.key in self.unheeded:
                op = replace(op, made=_stepping(op.ins, op.made, UNHEEDED[type(op.ins.effect)]))
            else:
                op = replace(op, made=wrap(op.ins, op.made, op.entry.style))
        super()._op(op)


def wrap(ins: Instr, run: Run, style: str) -> Run:
    """The run function of an instruction, observed. style: "lane" or "warp"."""
    kind = type(ins.effect)
    if kind not in WRAPPERS:
        return run
    make = WRAPPERS[kind]
    return partial(_noted, ins, run, style == "lane") if make is None else _stepping(ins, run, make)


def _stepping(ins: Instr, run: Run, make: Callable):
    """The wrapper's run function, with the instruction's step taken before it. A cluster that
    follows executes the plain run function instead (following.py).
    """
    observed = make(ins, ins.effect, run)
    look = look_of(make, ins)
    if observed is run or make is synchronisation.meets:
        return observed
    if look is None:
        return named(ins, observed)
    every = look is every_operand

    def step(warp: CheckedFragment, who: int, *args: Any):
        observer = warp.observer
        observer.ins, trail = ins, observer.trail
        if trail is not None:
            if every:
                operands = tuple([x if type(x) is int else plain(x) for x in args])
                trail.take(ins, warp, who, operands)
            else:
                trail.look(ins, warp, who, look(warp, who, args))
            if trail.follows:
                return run(warp, who, *args)
        return observed(warp, who, *args)

    return step


def without_rule(blocks: Sequence[Block]) -> list[tuple[int, Instr]]:
    """(block, instruction) that no rule is for: a launch that executes one is incomplete."""
    return [
        (block.index, op.ins)
        for block in blocks
        for op in block.ops
        if op.entry is not None
        and op.entry.style != "pure"
        and type(op.ins.effect) not in WRAPPERS
        and not op.ins.effect.properties.silent
    ]


def can_be_followed(code: Translated) -> bool:
    """Whether the checker knows the steps of each instruction of a kernel (following.py)."""
    ops = (op.ins for block in code.structure for op in block.ops if op.entry is not None)
    return all(map(_has_steps, ops))


def _has_steps(ins: Instr) -> bool:
    effect = ins.effect
    if isinstance(effect, (e.CallsSystem, e.RequestsWork, e.ReadsRequest)):
        return False  # what the device has printed, or cancelled, stays so
    make = WRAPPERS.get(type(effect))
    if make is None or make is synchronisation.meets:
        return True
    unseen = isinstance(effect, (e.Loads, e.Stores)) and effect.private
    return unseen or look_of(make, ins) is not None


def _noted(ins: Instr, run: Run, one: bool, warp: CheckedFragment, who: int, *args: Any) -> Any:
    """Execute an instruction that issues an asynchronous operation. `issue` sees what the operation
    does; here the observer is told which instruction issues it, and which lane, if it is one.
    """
    observer = warp.observer
    single = who if one else who.bit_length() - 1 if who & (who - 1) == 0 else None
    observer.ins, observer.lane = ins, single
    return run(warp, who, *args)
