"""Comparisons: setp, set (PTX ISA 9.7.6.1, 9.7.6.2, half precision 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from b200.chip.alu import pipes
from b200.chip.alu.build import INTEGERS, build, compiled, is_signed, width
from b200.chip.alu.rounding import FLOATS, flush, scalar_kind
from b200.errors import Unsupported
from b200.program.module import Instr
from b200.registry import FULL, Pure, as_bools, as_mask, pure

PLAIN = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# a comparison that is true for NaN is the negation of the opposite one
NEGATED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
FLOAT_ONLY = ("equ", "neu", "num", "nan", *NEGATED)
INTEGER_TYPES = (*INTEGERS, "b16", "b32", "b64")


def _float_source(op: str, a: str, b: str) -> str:
    """Source of a comparison of float arrays; IEEE comparisons are false for NaN except !=."""
    if op == "ne":
        return f"(({a} < {b}) | ({a} > {b}))"
    if op == "equ":
        return f"~(({a} < {b}) | ({a} > {b}))"
    if op == "neu":
        return f"({a} != {b})"
    if op in ("num", "nan"):
        number = f"(({a} == {a}) & ({b} == {b}))"
        return number if op == "num" else f"~{number}"
    if op in NEGATED:
        return f"~({a} {NEGATED[op]} {b})"
    return f"({a} {PLAIN[op]} {b})"


def _integer_sources(op: str, kind: str) -> tuple[str, str]:
    """Scalar and array source of an integer comparison."""
    sign = PLAIN.get(op) or UNSIGNED[op]
    plain = f"{{0}} {sign} {{1}}"
    if not is_signed(kind) or op in ("eq", "ne"):
        return plain, f"({plain})"
    n = width(kind)
    flip = f"{1 << (n - 1):#x}"
    return f"({{0}} ^ {flip}) {sign} ({{1}} ^ {flip})", f"(s{n}({{0}}) {sign} s{n}({{1}}))"


class Relation:
    """The comparison of an instruction: kinds of its operands and how to evaluate it.

    scalar: source on ints, None for floats. inline: source of a bool array, None if it needs a
    call. bools: function of two arrays -> bool array, 64 long (lane-major, low half first) for
    packed types.
    """

    def __init__(self, op: str, kind: str, ftz: bool):
        self.kind, self.packed = kind, kind.endswith("x2")
        self.scalar = self.inline = None
        if kind in INTEGER_TYPES:
            self.scalar, self.inline = _integer_sources(op, kind)
            self.bools = compiled(self.inline, 2)
            return
        if kind in ("f32", "f64") and not ftz:
            self.inline = _float_source(op, f"{kind}({{0}})", f"{kind}({{1}})")
            self.bools = compiled(self.inline, 2)
            return
        form = FLOATS[scalar_kind(kind)]
        function = compiled(_float_source(op, "{0}", "{1}"), 2)

        def bools(a: np.ndarray, b: np.ndarray) -> Any:
            x, y = a.view(form.bits_dtype), b.view(form.bits_dtype)
            if ftz:
                x, y = flush(x, form), flush(y, form)
            return function(form.native(x), form.native(y))

        self.bools = bools


def _relation(ins: Instr, kind: str) -> tuple[Relation, str, tuple[str, ...]]:
    """The relation, the boolean operator that joins it with a predicate ("" if none), and the types
    of the sources.
    """
    op = ins.one(*PLAIN, *UNSIGNED, *FLOAT_ONLY)
    combine = ins.one("and", "or", "xor")
    register = f"b{width(kind)}" if kind in INTEGER_TYPES else kind
    sources = (register, register) + ("pred",) * bool(combine)
    return Relation(op, kind, ins.has("ftz")), combine, sources


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda p, c: p & c,
    "or": lambda p, c: p | c,
    "xor": lambda p, c: p ^ c,
}


def _join(combine: str) -> Callable[..., Any]:
    """Function of (comparison, predicate c) as masks."""

    def join(p: Any, c: Any = 0) -> Any:
        return JOINS[combine](p, c) if combine else p

    return join


@pure("setp", states=pipes.comparison)
def setp(ins: Instr) -> Pure:
    """setp.cmp{.and,.or,.xor}{.ftz}.type p{|q}, a, b{, c}: p = cmp op c, q = !cmp op c."""
    kind = ins.types[-1]
    relation, combine, sources = _relation(ins, kind)
    if ins.dual and kind in ("f16", "bf16"):
        raise Unsupported(
            f"{ins.opcode}: PTX has a second predicate for f32, f64, pairs and integers only"
        )
    if relation.packed:
        return build(sources, ("pred", "pred"), vector=_packed_setp(relation, combine))
    if not combine and not ins.dual:
        expr = f"(FULL if {relation.scalar} else 0)" if relation.scalar else None
        vexpr = f"as_mask({relation.inline})" if relation.inline else None
        bools = relation.bools

        def vector(a: np.ndarray, b: np.ndarray) -> int:
            return as_mask(bools(a, b))

        return build(sources, ("pred",), expr, vexpr, vector=vector)
    return _setp_combined(relation, combine, ins.dual, sources)


def _setp_combined(relation: Relation, combine: str, dual: bool, sources: tuple[str, ...]) -> Pure:
    join = _join(combine)

    def finish(p: int, c: tuple[int, ...], lanes: int = FULL) -> Any:
        return (join(p, *c), join(p ^ lanes, *c)) if dual else join(p, *c)

    def vector(a: np.ndarray, b: np.ndarray, *c: int) -> Any:
        return finish(as_mask(relation.bools(a, b)), c, (1 << a.size) - 1)

    def uniform(compare: Callable[..., Any]) -> Callable[..., Any]:
        def called(a: int, b: int, *c: int) -> Any:
            return finish(FULL if compare(a, b) else 0, c)

        return called

    scalar = uniform(compiled(relation.scalar, 2)) if relation.scalar else None
    return build(sources, ("pred",) * (2 if dual else 1), scalar=scalar, vector=vector)


def _packed_setp(relation: Relation, combine: str) -> Callable[..., tuple[int, int]]:
    """setp.f16x2 p|q: p compares the low halves, q the high ones."""
    join = _join(combine)

    def vector(a: np.ndarray, b: np.ndarray, *c: int) -> Any:
        bools = relation.bools(a, b)
        return join(as_mask(bools[0::2]), *c), join(as_mask(bools[1::2]), *c)

    return vector


TRUE = {
    **{"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "u16": 0xFFFF, "s16": 0xFFFF, "f32": 0x3F800000},
    **{"f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80},
}


@pure("set", states=pipes.other)
def set_(ins: Instr) -> Pure:
    """set.cmp{.and,.or,.xor}{.ftz}.dtype.stype d, a, b{, c}: all ones or 1.0 where true, else 0."""
    kind = ins.types[-1]
    out = ins.types[-2]
    relation, combine, sources = _relation(ins, kind)
    join: Any = _join(combine)
    half = relation.packed
    dtype = np.uint16 if half or out in ("u16", "s16", "f16", "bf16") else np.uint32
    # a packed comparison with an integer result fills each half
    true = dtype(TRUE[out] & 0xFFFF if half else TRUE[out])

    def vector(a: np.ndarray, b: np.ndarray, *c: int) -> Any:
        bools = relation.bools(a, b)
        if combine:
            chosen = as_bools(c[0], a.size)
            chosen = np.repeat(chosen, 2) if half else chosen
            bools = join(bools, chosen)
        result = np.where(bools, true, dtype(0))
        return result.view(np.uint32) if half else result

    return build(sources, (f"b{32 if half else 8 * dtype().itemsize}",), vector=vector)
