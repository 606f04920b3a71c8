"""Which pipe carries out arithmetic: the effects of instructions without state (b200/effects).

PTX is not SASS: in SASS, register moves and address conversions vanish. The names of pipes are the
lines of clock/rates.py, which has the sources.
"""

from __future__ import annotations

from b200.effects import Computes, Converts, Moves
from b200.program.module import Imm, Instr, Reg, Special

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2")
WIDE = ("u64", "s64", "b64")
ADD = ("add", "sub", "shl")
MULTIPLY = ("mul", "mad")
FLOAT_PIPE = ("add", "sub", "mul", "fma", "neg", "abs")

INTEGER = Computes(pipe="integer")  # of the varying datapath alone
EITHER = Computes(pipe="integer", uniform=True)


def _f64(ins: Instr) -> bool:
    return ins.has("f64")


def arithmetic(ins: Instr) -> Computes:
    """add, sub, mul, mad, fma, neg, abs, min, max of integers and floats."""
    name, floats = ins.mods[0], ins.has(*FLOATS)
    if _f64(ins):
        return Computes(pipe="f64")
    if floats and name in FLOAT_PIPE:
        packed = "packed float" if ins.has("f32x2") else "half"
        return Computes(pipe="float" if ins.has("f32") else packed)
    return Computes(pipe=_integers(name, ins), uniform=not floats)


def _integers(name: str, ins: Instr) -> str:
    if ins.has(*WIDE) and name in (*ADD, *MULTIPLY):
        return "add 64" if name in ADD else "multiply 64"
    if name in MULTIPLY:
        return "multiply high" if ins.has("hi") else "multiply"
    return "add" if name in ADD else "integer"


def carrying(ins: Instr) -> Computes:
    """add.cc and the like; addc, subc and madc, which take the carry."""
    carries = ins.mods[0].endswith("c")
    return INTEGER if carries else arithmetic(ins)


def division(ins: Instr) -> Computes:
    """div, rem."""
    return Computes(pipe="divide approximately" if ins.has("approx") else "divide")


def special(ins: Instr) -> Computes:
    """rcp, sqrt, ex2 and the like. Two halves at once cost as the quickest."""
    quick = ins.mods[0] == "ex2" or ins.has("f16x2")
    return Computes(pipe="ex2" if quick else "special function")


def logic(ins: Instr) -> Computes:
    """and, or, xor, shl, shr."""
    if ins.mods[-1] == "pred":
        return Computes(pipe="predicate", uniform=True)
    if ins.mods[0] in ADD:
        return arithmetic(ins)
    return Computes(pipe="integer 64" if ins.has(*WIDE) else "integer", uniform=True)


def inversion(ins: Instr) -> Computes:
    """not: of a predicate, whoever reads it inverts it."""
    return Computes(pipe="nothing") if ins.mods[-1] == "pred" else EITHER


def comparison(ins: Instr) -> Computes:
    """setp."""
    if _f64(ins):
        return Computes(pipe="f64")
    return Computes(pipe="predicate", uniform=not ins.has(*FLOATS))


def selection(ins: Instr) -> Computes:
    """selp."""
    if _f64(ins):
        return Computes(pipe="f64")
    pipe = "predicate" if ins.mods[-1] == "pred" else "integer"
    return Computes(pipe=pipe, uniform=not ins.has(*FLOATS))


def other(ins: Instr) -> Computes:
    """set, slct, copysign, testp: integer instructions, but of f64."""
    return Computes(pipe="f64") if _f64(ins) else INTEGER


def move(ins: Instr) -> Moves:
    """mov, cvta, mapa: nothing, but from a special register."""
    if len(ins.operands) < 2:
        return Moves(pipe="nothing")
    value = ins.operands[1]
    if isinstance(value, Special):
        return Moves(pipe="special register")
    if ins.mods[0] != "mov" or len(ins.operands) != 2:
        return Moves(pipe="nothing")
    if isinstance(value, Imm):
        return Moves(pipe="nothing", source="constant")
    copies = isinstance(value, Reg) and isinstance(ins.operands[0], Reg)
    return Moves(pipe="nothing", source="register" if copies else "other")


def conversion(ins: Instr) -> Converts:
    """cvt. Formats are told without the number of values: "e2m1" of e2m1x2."""
    kinds = [m for m in ins.mods[1:] if _is_format(m)]
    target = kinds[0].split("x")[0]
    return Converts(pipe="f64" if _f64(ins) else _conversion(kinds), target=target)


def _is_format(mod: str) -> bool:
    numbered = mod[0] in "fbesu" and mod[1:2].isdigit()
    return numbered or mod.startswith(("bf16", "ue", "tf32"))


def _conversion(kinds: list[str]) -> str:
    narrow = [k for k in kinds if k.startswith(("e", "ue"))]
    if narrow:  # fp4 and fp8: unpacking 64 lanes a clk, packing 32
        return "unpack" if kinds[-1] in narrow else "pack"
    to, source = kinds[0], kinds[-1]
    if len(kinds) == 2 and all(k[0] in "sub" and "f" not in k for k in kinds):
        return "nothing" if to[1:] == source[1:] else "widen"
    if to.startswith(("f16", "bf16", "tf32")):  # F2FP.F16.F32.PACK_AB, of one value, too
        return "pack" if source[0] == "f" else "integer to float"
    if source.startswith("bf16"):  # a shift
        return "integer"
    if source.startswith("f16"):
        return "half to float" if to[0] == "f" else "float to integer"
    if source[0] == "f":
        return "integer" if to[0] == "f" else "float to integer"
    return "integer to float"
