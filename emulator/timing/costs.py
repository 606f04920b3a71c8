"""What an instruction costs its warp and its sub-core: (issue slots, latency of the result), in
clk.

PTX is not SASS: register moves and address conversions vanish, parameters are operands. Rates are
those of section 4 of the facts (thread-instructions an SM and clk / 128 lanes of four sub-cores).
Sources: QRC (B300), AS.
"""

from __future__ import annotations

from ..program import Imm, Instr, Reg, Special

FREE = ("mov", "cvta", "mapa", "pragma")
NO_COST_LOAD = ("param", "param::entry", "const")
QUARTER = 32 / 16  # slots of an instruction that runs at 64 lanes a clk and SM
F2FP_PACK = 4.0
SPECIAL_FUNCTION = {
    "ex2": 4.0,
    "lg2": 8.0,
    "rcp": 8.0,
    "rsqrt": 8.0,
    "sqrt": 8.0,
    "tanh": 8.0,
    "sin": 8.0,
    "cos": 8.0,
}
FLOAT_ADD = ("add", "sub", "mul", "fma", "min", "max", "neg", "abs")
# Fixed costs of stateful instructions that wait for nothing, by leading words of the opcode:
# (slots, latency).
STATEFUL = {
    ("elect",): (2.0, 2.0),  # SA main loop: 8 elected MMAs in 242 clk
    ("shfl",): (4.0, 24.0),
    ("vote",): (2.0, 12.0),
    ("match",): (4.0, 24.0),
    ("redux",): (4.0, 24.0),
    ("activemask",): (1.0, 8.0),
    ("nanosleep",): (40.0, 0.0),
    ("griddepcontrol",): (4.0, 0.0),
    ("prefetch",): (4.0, 0.0),
    ("movmatrix",): (4.0, 24.0),
}


def pure_cost(ins: Instr) -> tuple[float, float]:
    """(slots, latency) of an instruction without state."""
    name = ins.mods[0]
    if name in FREE:
        special = len(ins.operands) > 1 and isinstance(ins.operands[1], Special)
        return (1.0, 12.0) if special else (0.0, 0.0)
    if name == "ld" or ins.opcode in ("not.pred", "mov.pred"):
        return 0.0, 0.0
    if name in SPECIAL_FUNCTION:
        slots = SPECIAL_FUNCTION[name] / (2 if ins.has("f16x2") else 1)
        return max(slots, 4.0), 17.0
    if name == "div":
        return (20.0, 60.0) if not ins.has("approx") else (10.0, 24.0)
    if ins.has("f64"):
        return 64.0, 64.0
    if name == "cvt":
        return _conversion(ins)
    if name in FLOAT_ADD and ins.has("f32"):
        return 1.0, 4.0
    if name in ("rem",):
        return 20.0, 60.0
    if ins.has("u64", "s64", "b64") and name in (
        "add",
        "sub",
        "mul",
        "mad",
        "shl",
        "shr",
        "and",
        "or",
        "xor",
    ):
        return 2 * QUARTER, 6.0
    if name == "setp" or ins.mods[-1] == "pred":
        return QUARTER, 6.0
    return QUARTER, 4.0


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
    """As pure_cost, for operands that are the same in all lanes: integers go to the uniform
    datapath.
    """
    slots, latency = pure_cost(ins)
    if ins.mods[0] in INTEGER and not any(
        m in ("f32", "f64", "f16", "bf16", "f16x2", "f32x2") for m in ins.mods
    ):
        slots = min(slots, 1.0)
    return slots, latency


def _conversion(ins: Instr) -> tuple[float, float]:
    kinds = [
        m
        for m in ins.mods[1:]
        if m[0] in "fbesu" and m[1:2].isdigit() or m.startswith(("bf16", "ue", "tf32"))
    ]
    narrow = [k for k in kinds if k.startswith(("e", "ue"))]
    if narrow:  # fp4 and fp8: unpacking 64 lanes a clk, packing 32
        return (QUARTER, 4.0) if kinds and kinds[-1] in narrow else (F2FP_PACK, 4.0)
    if (
        len(kinds) == 2
        and kinds[0][0] in "sub"
        and kinds[1][0] in "sub"
        and "f" not in kinds[0] + kinds[1]
    ):
        return (0.0, 0.0) if kinds[0][1:] == kinds[1][1:] else (1.0, 4.0)
    if ins.has("f16x2", "bf16x2"):
        return F2FP_PACK, 4.0
    return 8.0, 8.0


def stateful_cost(ins: Instr) -> tuple[float, float]:
    """(slots, latency of the result) of an instruction with state, apart from what its unit makes
    it wait.
    """
    for words, cost in STATEFUL.items():
        if ins.mods[: len(words)] == words:
            return cost
    return 2.0, 0.0


def is_copy(ins: Instr) -> bool:
    """A move of one register to another, which costs nothing and hands on when its source is
    ready.
    """
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
