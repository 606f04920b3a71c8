"""Logic, shifts, selection and data movement between registers (PTX ISA 9.7.8, 9.7.9.1-9.7.9.7)."""

from __future__ import annotations

from typing import Any

import numpy as np

from b200.chip.alu import pipes
from b200.chip.alu.build import build, compiled, export, is_signed, ones, predicate_logic, width
from b200.errors import Unsupported
from b200.program.module import Imm, Instr, Vec
from b200.registry import DTYPES, FULL, LaneValues, Pure, as_bools, as_mask, pure

BITS = ("b16", "b32", "b64")
OPERATORS = {"and": "&", "or": "|", "xor": "^"}


@pure("and", "or", "xor", states=pipes.logic)
def binary(ins: Instr) -> Pure:
    """and, or, xor on bits and predicates: 9.7.8.1-9.7.8.3."""
    kind = ins.types[-1]
    source = f"({{0}} {OPERATORS[ins.mods[0]]} {{1}})"
    if kind == "pred":
        return predicate_logic((kind, kind), (kind,), source)
    return build((kind, kind), (kind,), expr=source, vexpr=source)


@pure("not", states=pipes.inversion)
def invert(ins: Instr) -> Pure:
    """not: 9.7.8.4."""
    kind = ins.types[-1]
    if kind == "pred":
        return predicate_logic((kind,), (kind,), "({0} ^ FULL)")
    return build((kind,), (kind,), expr=f"({{0}} ^ {ones(width(kind)):#x})", vexpr="~{0}")


@pure("cnot", states=pipes.INTEGER)
def cnot(ins: Instr) -> Pure:
    """cnot: 1 if the operand is 0, else 0 (9.7.8.5)."""
    kind = ins.types[-1]
    vexpr = f"({{0}} == 0).astype(np.uint{width(kind)})"
    return build((kind,), (kind,), expr="(1 if {0} == 0 else 0)", vexpr=vexpr)


def _lut_source(table: int, names: list[str]) -> str:
    """Source of the function with that truth table, by Shannon expansion; names[0] is the msb."""
    if not names:
        return "{full}" if table & 1 else "0"
    half = 1 << (len(names) - 1)
    low, high = table & ones(half), table >> half
    name, rest = names[0], names[1:]
    if low == high:
        return _lut_source(low, rest)
    if low == high ^ ones(half):
        inner = _lut_source(low, rest)
        return name if inner == "0" else f"({name} ^ {inner})"
    terms: list[str] = []
    if high:
        inner = _lut_source(high, rest)
        terms.append(name if high == ones(half) else f"({name} & {inner})")
    if low:
        inner = _lut_source(low, rest)
        inverse = f"({name} ^ {{full}})"
        terms.append(inverse if low == ones(half) else f"({inverse} & {inner})")
    return terms[0] if len(terms) == 1 else f"({terms[0]} | {terms[1]})"


@pure("lop3", states=pipes.EITHER)
def lop3(ins: Instr) -> Pure:
    """lop3{.or,.and}.b32 d{|p}, a, b, c, immLut{, q}: any function of three bits (9.7.8.6).

    With a predicate, p = (d != 0) or/and q.
    """
    combine = ins.one("or", "and")
    table = ins.operands[4]
    if not isinstance(table, Imm):
        raise Unsupported(f"{ins.opcode}: immLut is not an immediate")
    source = _lut_source(table.value & 0xFF, ["{0}", "{1}", "{2}"]).replace("{full}", "0xffffffff")
    kinds = ("b32", "b32", "b32", "u32")
    if not combine:
        # A function of fewer operands may come out as an int: the array form is built from arrays.
        function = compiled(source, 4)

        def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray, lut: np.ndarray) -> np.ndarray:
            result: LaneValues = function(a, b, c, lut)
            return result if isinstance(result, np.ndarray) else np.full(len(a), result, np.uint32)

        vexpr = source if all(f"{{{i}}}" in source for i in range(3)) else None
        return build(kinds, ("b32",), expr=source, vexpr=vexpr, vector=vector)
    return _lop3_predicate(source, combine, kinds)


def _lop3_predicate(source: str, combine: str, kinds: tuple[str, ...]) -> Pure:
    function = compiled(source, 3)

    def join(nonzero: int, q: int) -> int:
        return nonzero | q if combine == "or" else nonzero & q

    def scalar(a: int, b: int, c: int, lut: int, q: int):
        d = function(a, b, c)
        return d, join(FULL if d else 0, q)

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray, lut: np.ndarray, q: int):
        d = np.broadcast_to(np.asarray(function(a, b, c), np.uint32), a.shape)
        return d, join(as_mask(d != 0), q)

    return build((*kinds, "pred"), ("b32", "pred"), scalar=scalar, vector=vector)


@pure("shl", "shr", states=pipes.logic)
def shift(ins: Instr) -> Pure:
    """shl, shr by a u32 amount; one beyond the width shifts all out (9.7.8.8, 9.7.8.9)."""
    left = ins.mods[0] == "shl"
    kind = ins.types[-1]
    n, signed = width(kind), is_signed(kind)
    sign = 1 << (n - 1)
    if left:
        expr = f"({{0}} << {{1}} & {ones(n):#x} if {{1}} < {n} else 0)"
    elif signed:
        expr = f"((({{0}} ^ {sign:#x}) - {sign:#x}) >> {{1}} & {ones(n):#x})"
    else:
        expr = "({0} >> {1})"
    amount = ins.operands[2]
    fits = isinstance(amount, Imm) and 0 <= amount.value < n
    general = _long_shift_source(left, signed, n)
    vexpr = _shift_source(left, signed, n) if fits else general
    vector = compiled(general, 2)
    return build((kind, "u32"), (kind,), expr=expr, vexpr=vexpr, vector=vector)


def _shift_source(left: bool, signed: bool, n: int) -> str:
    """Array source of a shift by a constant below the width."""
    if signed:
        return f"(s{n}({{0}}) >> {{1}}).view(np.uint{n})"
    return f"({{0}} {'<<' if left else '>>'} {{1}})"


def _long_shift_source(left: bool, signed: bool, n: int) -> str:
    """The same by any amount: numpy shifts out everything when the amount is at least its width."""
    cast = f".astype(np.uint{n})"
    if signed:
        return f"np.right_shift(s{n}({{0}}), {{1}}, dtype=np.int64){cast}"
    function, word = ("left_shift" if left else "right_shift"), max(n, 32)
    return f"np.{function}({{0}}, {{1}}, dtype=np.uint{word})" + (cast if n == 16 else "")


@pure("shf", states=pipes.EITHER)
def funnel(ins: Instr) -> Pure:
    """shf.{l,r}.{wrap,clamp}.b32 d, a, b, c: half of {b, a}, 64 bits, shifted (9.7.8.7)."""
    left, wrap = ins.one("l", "r") == "l", ins.one("wrap", "clamp") == "wrap"
    amount = "({2} & 31)" if wrap else "min({2}, 32)"
    pair = "({1} << 32 | {0})"
    expr = f"({pair} {f'<< {amount} >> 32' if left else f'>> {amount}'} & 0xffffffff)"

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray):
        n = (c & 31 if wrap else np.minimum(c, 32)).astype(np.uint64)
        value = b.astype(np.uint64) << 32 | a
        return (value << n >> 32 if left else value >> n).astype(np.uint32)

    return build(("b32", "b32", "u32"), ("b32",), expr=expr, vector=vector)


def _permute_selectors(mode: str, c: int) -> list[int]:
    """Source byte of each result byte (0-3 of a, 4-7 of b); +8: its sign alone (9.7.9.7)."""
    if not mode:
        return [c >> (4 * i) & 15 for i in range(4)]
    s = c & 3
    if mode == "f4e":
        return [s + i for i in range(4)]
    if mode == "b4e":
        return [(s - i) % 8 for i in range(4)]
    if mode == "rc8":
        return [s] * 4
    if mode == "ecl":
        return [max(s, i) for i in range(4)]
    if mode == "ecr":
        return [min(s, i) for i in range(4)]
    return [2 * (s & 1) + (i & 1) for i in range(4)]  # rc16


@pure("prmt", states=pipes.EITHER)
def prmt(ins: Instr) -> Pure:
    """prmt.b32{.f4e,.b4e,.rc8,.ecl,.ecr,.rc16} d, a, b, c: bytes picked from {b, a}."""
    mode = ins.one("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")

    def scalar(a: int, b: int, c: int):
        pair, result = b << 32 | a, 0
        for i, s in enumerate(_permute_selectors(mode, c)):
            byte = pair >> 8 * (s & 7) & 0xFF
            if s & 8:
                byte = 0xFF if byte & 0x80 else 0
            result |= byte << 8 * i
        return result

    tables = np.array([_permute_selectors(mode, c) for c in range(4)]) if mode else None

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray):
        pair = np.stack((a, b), 1).view(np.uint8)
        if tables is not None:
            selectors = tables[c & 3]
        else:
            selectors = (c[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)).astype(np.int64) & 15
        picked = np.take_along_axis(pair, selectors & 7, 1)
        sign = (picked.view(np.int8) >> 7).view(np.uint8)
        return np.where(selectors & 8, sign, picked).view(np.uint32).reshape(-1)

    return build(("b32", "b32", "b32"), ("b32",), scalar=scalar, vector=vector)


@pure("selp", states=pipes.selection)
def selp(ins: Instr) -> Pure:
    """selp d, a, b, p: a where p, else b (9.7.6.3)."""
    kind = f"b{width(ins.types[-1])}"
    a, b = (f"arr{width(kind)}({{{i}}})" for i in (0, 1))
    vexpr = f"np.where(as_bools({{2}}), {a}, {b})"

    def vector(a: np.ndarray, b: np.ndarray, p: int):
        return np.where(as_bools(p, a.size), a, b)

    expr = "({0} if {2} else {1})"
    return build((kind, kind, "pred"), (kind,), expr=expr, vexpr=vexpr, vector=vector)


@pure("slct", states=pipes.other)
def slct(ins: Instr) -> Pure:
    """slct{.ftz}.dtype.{s32,f32} d, a, b, c: a where c >= 0, else b; NaN is not (9.7.6.4)."""
    condition = ins.types[-1]
    kind = f"b{width(ins.types[-2])}"
    least = -(2.0**-126) if ins.has("ftz") else 0.0  # a flushed subnormal is 0, and -0 >= 0

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray):
        value = c.view(np.int32 if condition == "s32" else np.float32)
        return np.where((value >= 0) | (value > least), a, b)

    expr = "({0} if {2} < 0x80000000 else {1})" if condition == "s32" else None
    return build((kind, kind, "b32"), (kind,), expr=expr, vector=vector)


# --- mov ------------------------------------------------------------------------------------------


@pure("mov", states=pipes.move)
def mov(ins: Instr) -> Pure:
    """mov; packs and unpacks vectors, first element lowest (PTX ISA 9.7.9.2, 9.7.9.3)."""
    kind = ins.types[-1]
    if kind == "pred":
        return predicate_logic((kind,), (kind,), "{0}")
    bits = 32 if kind.endswith("x2") else int(kind.lstrip("bfus"))
    kind = f"b{bits}"
    if isinstance(ins.operands[0], Vec):
        return _unpack(bits, len(ins.operands[0].items))
    if isinstance(ins.operands[1], Vec):
        return _pack(bits, len(ins.operands[1].items))
    return build((kind,), (kind,), expr="{0}", vexpr="{0}")


def _pack(bits: int, count: int) -> Pure:
    part = bits // count
    terms = [f"{{{i}}} << {part * i}" if i else "{0}" for i in range(count)]
    expr = f"({' | '.join(terms)})"
    parts, whole = (f"b{part}",) * count, (f"b{bits}",)
    if bits == 128:
        return build(parts, whole, expr=expr, vector=_pack_128)
    arguments = ", ".join(f"{{{i}}}" for i in range(count))
    return build(parts, whole, expr=expr, vexpr=f"pack{count}x{part}({arguments})")


def _interleave(bits: int, count: int):
    """Function of `count` arrays (or ints) that makes registers of `bits` bits of them."""

    def pack(*args: np.ndarray) -> np.ndarray:
        packed = np.empty((max(map(np.size, args)), count), DTYPES[bits // count])
        for i, a in enumerate(args):
            packed[:, i] = a
        return packed.view(DTYPES[bits]).reshape(-1)

    return pack


def _pack_128(*args: np.ndarray) -> np.ndarray:
    """A 128-bit value a lane: an array of Python ints, since numpy has no such type."""
    part = 128 // len(args)
    found: Any = sum(a.astype(object) << part * i for i, a in enumerate(args))
    return found


def _unpack(bits: int, count: int) -> Pure:
    part = bits // count
    mask = f"{ones(part):#x}"
    shifts = [f"({{0}} >> {part * i})" if i else "{0}" for i in range(count)]
    expr = f"({', '.join(f'{s} & {mask}' for s in shifts)})"
    if bits == 128:
        dtype = f"np.uint{part}"
        vexpr = f"({', '.join(f'({s} & {mask}).astype({dtype})' for s in shifts)})"
    else:
        vexpr = f"({', '.join(f'{s}.astype(np.uint{part})' for s in shifts)})"
    return build((f"b{bits}",), (f"b{part}",) * count, expr=expr, vexpr=vexpr)


for _bits, _count in ((16, 2), (32, 2), (32, 4), (64, 2), (64, 4)):
    export(**{f"pack{_count}x{_bits // _count}": _interleave(_bits, _count)})
