"""Finds the line of rates.py that says what an instruction costs.

PTX is not SASS: in SASS, register moves and address conversions vanish, and parameters are
operands of other instructions. Each instruction states its pipe (b200/effects).
"""

from __future__ import annotations

from b200.clock.rates import Rate, rate
from b200.effects import Computes, Loads, Moves
from b200.program.module import Instr


def cost(ins: Instr) -> Rate:
    """The cost of an instruction, without the time that its unit takes."""
    return rate(ins.effect.pipe)


def uniform_cost(ins: Instr) -> Rate:
    """The cost of an instruction with uniform operands: integers go to the uniform datapath."""
    uniform = isinstance(ins.effect, Computes) and ins.effect.uniform
    return rate("uniform integer") if uniform else cost(ins)


def is_copy(ins: Instr) -> bool:
    """Whether an instruction moves a register to another. That costs nothing, and the result is
    ready when the source is.
    """
    return isinstance(ins.effect, Moves) and ins.effect.source == "register"


def is_constant(ins: Instr) -> bool:
    return isinstance(ins.effect, Moves) and ins.effect.source == "constant"


def is_parameter(ins: Instr) -> bool:
    """Whether an instruction loads what is an operand of others in SASS."""
    return isinstance(ins.effect, Loads) and ins.effect.in_constant_bank


def result_is_late(ins: Instr) -> bool:
    """Whether later instructions wait for the result where they use it: loads and atomics."""
    asked = ins.effect.properties
    return asked.lanes and asked.gives and not is_parameter(ins)


def has_slow_path(ins: Instr) -> bool:
    """Whether SASS branches in it, to a routine for the numbers that are hard: a division,
    reciprocal or root of floats that is rounded exactly, and a 64-bit integer division. Seen in
    SASS of ptxas 13.0 for sm_100a; those that are `approx` or `full`, or of 32-bit integers, have
    none.
    """
    name, kind = ins.mods[0], ins.mods[-1]
    if name not in ("div", "rem", "rcp", "sqrt"):
        return False
    if kind.startswith("f"):
        return not (ins.has("approx") or ins.has("full"))
    return kind.endswith("64")
