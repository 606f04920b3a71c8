"""Finds the line of rates.py that says what an instruction costs.

PTX is not SASS: in SASS, register moves and address conversions vanish, and parameters are
operands of other instructions.
"""

from __future__ import annotations

from b200.clock.rates import Rate, rate
from b200.program.module import Imm, Instr, Reg, Special

FREE = ("mov", "cvta", "mapa", "pragma")
NO_COST_LOAD = ("param", "param::entry", "const")
SPECIAL_FUNCTION = ("lg2", "rcp", "rsqrt", "sqrt", "tanh", "sin", "cos")
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2")
FLOAT_ADD = ("add", "sub", "mul", "fma", "neg", "abs")
ADD = ("add", "sub", "shl")
MULTIPLY = ("mul", "mad")
WIDE = (*ADD, *MULTIPLY, "shr", "and", "or", "xor")
# Stateful instructions that wait for nothing, by the first word of the opcode.
STATEFUL = {
    "elect": "elect",
    "shfl": "shuffle",
    "vote": "vote",
    "match": "shuffle",
    "redux": "shuffle",
    "activemask": "active mask",
    "nanosleep": "sleep",
    "griddepcontrol": "hint",
    "prefetch": "hint",
    "movmatrix": "shuffle",
}


def pure_cost(ins: Instr) -> Rate:
    """The cost of an instruction without state."""
    name = ins.mods[0]
    if name in FREE:
        special = len(ins.operands) > 1 and isinstance(ins.operands[1], Special)
        return rate("special register" if special else "nothing")
    if name == "ld" or ins.opcode in ("not.pred", "mov.pred"):
        return rate("nothing")
    if name == "ex2" or name in SPECIAL_FUNCTION:  # two halves at once cost as the quickest
        return rate("ex2" if name == "ex2" or ins.has("f16x2") else "special function")
    if name in ("div", "rem"):
        return rate("divide approximately" if ins.has("approx") else "divide")
    if ins.has("f64"):
        return rate("f64")
    if name == "cvt":
        return _conversion(ins)
    if name == "createpolicy":  # constants, or a few uniform instructions
        return rate("uniform integer")
    if name in FLOAT_ADD and ins.has(*FLOATS):
        packed = "packed float" if ins.has("f32x2") else "half"
        return rate("float" if ins.has("f32") else packed)
    if name == "setp" or ins.mods[-1] == "pred":
        return rate("predicate")
    return rate(_integer(ins))


def _integer(ins: Instr) -> str:
    name = ins.mods[0]
    if name in WIDE and ins.has("u64", "s64", "b64"):
        return "add 64" if name in ADD else "multiply 64" if name in MULTIPLY else "integer 64"
    if name in MULTIPLY:
        return "multiply high" if ins.has("hi") else "multiply"
    return "add" if name in ADD else "integer"


INTEGER = (
    "add",
    "sub",
    "mul",
    "mad",
    "shl",
    "shr",
    "and",
    "or",
    "xor",
    "not",
    "selp",
    "setp",
    "min",
    "max",
    "prmt",
    "bfe",
    "bfi",
    "lop3",
    "neg",
    "abs",
    "shf",
)


def uniform_cost(ins: Instr) -> Rate:
    """The cost of an instruction with uniform operands: integers go to the uniform datapath."""
    found = pure_cost(ins)
    if found.issues and ins.mods[0] in INTEGER and not ins.has("f64", *FLOATS):
        return rate("uniform integer")
    return found


def _conversion(ins: Instr) -> Rate:
    kinds = [
        m
        for m in ins.mods[1:]
        if m[0] in "fbesu" and m[1:2].isdigit() or m.startswith(("bf16", "ue", "tf32"))
    ]
    narrow = [k for k in kinds if k.startswith(("e", "ue"))]
    if narrow:  # fp4 and fp8: unpacking 64 lanes a clk, packing 32
        return rate("unpack" if kinds[-1] in narrow else "pack")
    if (
        len(kinds) == 2
        and kinds[0][0] in "sub"
        and kinds[1][0] in "sub"
        and "f" not in kinds[0] + kinds[1]
    ):
        return rate("nothing" if kinds[0][1:] == kinds[1][1:] else "widen")
    to, source = kinds[0], kinds[-1]
    if to.startswith(("f16", "bf16", "tf32")):  # F2FP.F16.F32.PACK_AB, of one value, too
        return rate("pack" if source[0] == "f" else "integer to float")
    if source.startswith("bf16"):  # a shift
        return rate("integer")
    if source.startswith("f16"):
        return rate("half to float" if to[0] == "f" else "float to integer")
    if source[0] == "f":
        return rate("integer" if to[0] == "f" else "float to integer")
    return rate("integer to float")


def stateful_cost(ins: Instr) -> Rate:
    """The cost of an instruction with state, without the time that its unit takes."""
    return rate(STATEFUL.get(ins.mods[0], "issue"))


def is_copy(ins: Instr) -> bool:
    """Whether an instruction moves a register to another. That costs nothing, and the result is
    ready when the source is.
    """
    return (
        ins.mods[0] == "mov"
        and len(ins.operands) == 2
        and all(isinstance(o, Reg) for o in ins.operands)
    )


def is_constant(ins: Instr) -> bool:
    return ins.mods[0] == "mov" and len(ins.operands) == 2 and isinstance(ins.operands[1], Imm)


def result_is_late(ins: Instr) -> bool:
    """Whether later instructions wait for the result where they use it: loads and atomics."""
    if ins.mods[0] in ("ld", "ldu"):
        return not ins.has(*NO_COST_LOAD)
    return ins.mods[0] in ("atom", "ldmatrix")
