"""Which line of rates.py an instruction is: (issue slots, latency of the result), in clk.

PTX is not SASS: register moves and address conversions vanish, parameters are operands.
"""

from __future__ import annotations

from b200.clock.rates import rate
from b200.program.module import Imm, Instr, Reg, Special

FREE = ("mov", "cvta", "mapa", "pragma")
NO_COST_LOAD = ("param", "param::entry", "const")
SPECIAL_FUNCTION = ("lg2", "rcp", "rsqrt", "sqrt", "tanh", "sin", "cos")
FLOAT_ADD = ("add", "sub", "mul", "fma", "min", "max", "neg", "abs")
WIDE = ("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor")
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


def pure_cost(ins: Instr) -> tuple[float, float]:
    """(slots, latency) of an instruction without state."""
    name = ins.mods[0]
    if name in FREE:
        special = len(ins.operands) > 1 and isinstance(ins.operands[1], Special)
        return rate("special register" if special else "nothing")
    if name == "ld" or ins.opcode in ("not.pred", "mov.pred"):
        return rate("nothing")
    if name == "ex2" or name in SPECIAL_FUNCTION:
        return _special_function(ins)
    if name in ("div", "rem"):
        return rate("divide approximately" if ins.has("approx") else "divide")
    if ins.has("f64"):
        return rate("f64")
    if name == "cvt":
        return _conversion(ins)
    if name == "createpolicy":  # constants, or a few uniform instructions
        return rate("uniform integer")
    if name in FLOAT_ADD and ins.has("f32"):
        return rate("float")
    if name in FLOAT_ADD and ins.has("f16", "f16x2", "bf16", "bf16x2"):
        return rate("half")
    if name in WIDE and ins.has("u64", "s64", "b64"):
        return rate("integer 64")
    if name == "setp" or ins.mods[-1] == "pred":
        return rate("predicate")
    return rate("integer")


def _special_function(ins: Instr) -> tuple[float, float]:
    """Two halves at once cost as one of them, but never less than the quickest function."""
    slots, latency = rate("ex2" if ins.mods[0] == "ex2" else "special function")
    return (max(slots / 2, rate("ex2")[0]) if ins.has("f16x2") else slots), latency


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


def uniform_cost(ins: Instr) -> tuple[float, float]:
    """As pure_cost, of uniform operands: integers go to the uniform datapath."""
    slots, latency = pure_cost(ins)
    if ins.mods[0] in INTEGER and not any(
        m in ("f32", "f64", "f16", "bf16", "f16x2", "f32x2") for m in ins.mods
    ):
        slots = min(slots, rate("uniform integer")[0])
    return slots, latency


def _conversion(ins: Instr) -> tuple[float, float]:
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


def stateful_cost(ins: Instr) -> tuple[float, float]:
    """(slots, latency of the result) of an instruction with state, but for its unit's part."""
    return rate(STATEFUL.get(ins.mods[0], "issue"))


def is_copy(ins: Instr) -> bool:
    """A move between registers, which costs nothing and hands on when its source is ready."""
    return (
        ins.mods[0] == "mov"
        and len(ins.operands) == 2
        and all(isinstance(o, Reg) for o in ins.operands)
    )


def is_constant(ins: Instr) -> bool:
    return ins.mods[0] == "mov" and len(ins.operands) == 2 and isinstance(ins.operands[1], Imm)


def result_is_late(ins: Instr) -> bool:
    """Whether a register written by it is waited for where it is used: loads and atomics."""
    if ins.mods[0] in ("ld", "ldu"):
        return not ins.has(*NO_COST_LOAD)
    return ins.mods[0] in ("atom", "ldmatrix")
