"""Integer arithmetic (PTX ISA 9.7.1, 9.7.2 "Extended-Precision Integer Arithmetic").

The carry flag CC.CF is an operand like any predicate, although the text does not name it: the last
source of addc, subc and madc, and the second destination of the .cc forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from b200.chip.alu import pipes
from b200.chip.alu.build import SIGNED, build, compiled, export, is_signed, ones, typed, width
from b200.errors import Unsupported
from b200.program.module import Instr
from b200.registry import DTYPES, Pure, as_bools, as_mask, pure

PACKED = ("u16x2", "s16x2")


def _halves(kind: str, operation: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Pure:
    """A two-operand operation on both 16-bit halves of a register."""
    dtype = (SIGNED if is_signed(kind) else DTYPES)[16]

    def vector(a: np.ndarray, b: np.ndarray):
        return operation(a.view(dtype), b.view(dtype)).view(np.uint32)

    return build(("b32", "b32"), ("b32",), vector=vector)


def _signed_scalar(operand: str, n: int) -> str:
    """Source of the signed value of a bit pattern of n bits."""
    sign = f"{1 << (n - 1):#x}"
    return f"(({operand} ^ {sign}) - {sign})"


@typed("integer", "add", "sub")
def add_sub(ins: Instr) -> Pure:
    """add{.sat}, sub{.sat}: 9.7.1.1, 9.7.1.2; .sat is for s32 only."""
    kind = ins.types[-1]
    sat = ins.has("sat")
    op = "+" if ins.mods[0] == "add" else "-"
    if kind in PACKED:
        return _halves(kind, np.add if op == "+" else np.subtract)
    if sat:
        return _saturating(op)
    mask = f"{ones(width(kind)):#x}"
    source = f"({{0}} {op} {{1}})"
    return build((kind, kind), (kind,), expr=f"({source} & {mask})", vexpr=source)


def _saturating(op: str) -> Pure:
    exact = "np.add" if op == "+" else "np.subtract"
    vexpr = f"clamp_s32({exact}(s32({{0}}), s32({{1}}), dtype=np.int64))"
    a, b = _signed_scalar("{0}", 32), _signed_scalar("{1}", 32)
    expr = f"(min(max({a} {op} {b}, -0x80000000), 0x7fffffff) & 0xffffffff)"
    return build(("s32", "s32"), ("s32",), expr=expr, vexpr=vexpr)


def clamp_s32(x: np.ndarray) -> np.ndarray:
    """int64 values saturated to s32, as bit patterns."""
    return np.clip(x, -0x80000000, 0x7FFFFFFF).astype(np.uint32)


def _high(n: int, signed: bool):
    """High half of the product of arrays of n bits (n = 16, 32: by a wider product)."""
    if n == 64:
        return mul_hi_s64 if signed else mul_hi_u64
    views = SIGNED if signed else DTYPES

    def high(a: np.ndarray, b: np.ndarray):
        product = a.view(views[n]).astype(views[2 * n]) * b.view(views[n])
        return (product >> n).astype(DTYPES[n])

    return high


def mul_hi_u64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """High 64 bits of products of uint64 arrays, by 32-bit halves."""
    low = np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> 32, b & low, b >> 32
    middle = (a0 * b0 >> 32) + a1 * b0  # at most 2^64 - 2^32: no carry is lost
    other = (middle & low) + a0 * b1
    return a1 * b1 + (middle >> 32) + (other >> 32)


def mul_hi_s64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """High 64 bits of products of int64 patterns. In mul_hi_u64 a negative operand counts 2^64 too
    much; this is subtracted.
    """
    zero = np.uint64(0)
    correction = np.where(a >> 63, b, zero) + np.where(b >> 63, a, zero)
    return mul_hi_u64(a, b) - correction


def _product(n: int, signed: bool) -> str:
    """Source of the exact product of two patterns as Python ints."""
    if not signed:
        return "({0} * {1})"
    return f"({_signed_scalar('{0}', n)} * {_signed_scalar('{1}', n)})"


def _wide_vector(n: int, signed: bool) -> str:
    view = f"s{n}" if signed else f"arr{n}"
    wide = f"np.{'' if signed else 'u'}int{2 * n}"
    return f"np.multiply({view}({{0}}), {view}({{1}}), dtype={wide}).view(np.uint{2 * n})"


@typed("integer", "mul", "mad")
def mul_mad(ins: Instr) -> Pure:
    """mul{.hi,.lo,.wide}: 9.7.1.3; mad{.hi,.lo,.wide}, mad.hi.sat.s32: 9.7.1.4."""
    kind, mode = ins.types[-1], ins.one("hi", "lo", "wide")
    n, signed = width(kind), is_signed(kind)
    out = f"{kind[0]}{2 * n}" if mode == "wide" else kind
    adds = ins.mods[0] == "mad"
    c, sources = (" + {2}", (kind, kind, out)) if adds else ("", (kind, kind))
    if mode == "lo":
        expr = f"({{0}} * {{1}}{c} & {ones(n):#x})"
        product = f"np.multiply({{0}}, {{1}}, dtype=np.uint{n})" if adds else "{0} * {1}"
        return build(sources, (out,), expr=expr, vexpr=f"({product}{c})")
    if mode == "wide":
        expr = f"({_product(n, signed)}{c} & {ones(2 * n):#x})"
        vexpr = _wide_vector(n, signed)
        return build(sources, (out,), expr=expr, vexpr=f"({vexpr}{c})" if adds else vexpr)
    exact, high = f"{_product(n, signed)} >> {n}", _high(n, signed)
    if adds and ins.has("sat"):
        total = f"({exact}) + {_signed_scalar('{2}', 32)}"
        expr = f"(min(max({total}, -0x80000000), 0x7fffffff) & 0xffffffff)"
        return build(sources, (out,), expr=expr)
    if adds:
        expr = f"(({exact}) + {{2}} & {ones(n):#x})"

        def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
            return high(a, b) + c

        return build(sources, (out,), expr=expr, vector=vector)
    return build(sources, (out,), expr=f"({exact} & {ones(n):#x})", vector=high)


@pure("mul24", "mad24", states=pipes.INTEGER)
def mul24(ins: Instr) -> Pure:
    """mul24, mad24{.hi{.sat},.lo}: bits 31..0 or 47..16 of a 24-bit product (9.7.1.5, 9.7.1.6)."""
    kind, mode = ins.types[-1], ins.one("hi", "lo")
    add = ins.mods[0] == "mad24"
    sat = add and mode == "hi" and ins.has("sat")
    signed, shift = is_signed(kind), 16 if mode == "hi" else 0

    def cut(x: int):
        x &= 0xFFFFFF
        return (x ^ 0x800000) - 0x800000 if signed else x

    def scalar(a: int, b: int, c: int = 0):
        product = cut(a) * cut(b) >> shift & 0xFFFFFFFF
        if not sat:
            return product + c & 0xFFFFFFFF
        total = sum((x ^ 0x80000000) - 0x80000000 for x in (product, c))
        return min(max(total, -0x80000000), 0x7FFFFFFF) & 0xFFFFFFFF

    return build((kind,) * (3 if add else 2), (kind,), scalar=scalar)


@pure("sad", states=pipes.INTEGER)
def sad(ins: Instr) -> Pure:
    """sad: c + |a - b| (9.7.1.7)."""
    kind = ins.types[-1]
    n, signed = width(kind), is_signed(kind)
    a, b = (_signed_scalar(x, n) if signed else x for x in ("{0}", "{1}"))
    view = f"s{n}" if signed else f"arr{n}"
    x, y = f"{view}({{0}})", f"{view}({{1}})"
    vexpr = f"((np.maximum({x}, {y}) - np.minimum({x}, {y})).view(np.uint{n}) + {{2}})"
    expr = f"(abs({a} - {b}) + {{2}} & {ones(n):#x})"
    return build((kind,) * 3, (kind,), expr=expr, vector=compiled(vexpr, 3))


@typed("integer", "div", "rem")
def div_rem(ins: Instr) -> Pure:
    """div, rem: towards zero (9.7.1.8, 9.7.1.9). By zero: all ones, as on an H200."""
    kind = ins.types[-1]
    quotient, n = ins.mods[0] == "div", width(kind)
    sign = 1 << (n - 1) if is_signed(kind) else 0

    def scalar(a: int, b: int):
        if b == 0:
            return ones(n)
        x, y = (a ^ sign) - sign, (b ^ sign) - sign
        q = abs(x) // abs(y)
        q = -q if (x < 0) != (y < 0) else q
        return (q if quotient else x - q * y) & ones(n)

    def vector(a: np.ndarray, b: np.ndarray):
        safe = np.where(b == 0, DTYPES[n](1), b)
        x, y = _magnitude(a, sign), _magnitude(safe, sign)
        q = x // y
        if sign:
            q = np.where((a ^ safe) & DTYPES[n](sign), 0 - q, q)
        result = q if quotient else a - q * safe
        return np.where(b == 0, DTYPES[n](ones(n)), result)

    return build((kind, kind), (kind,), scalar=scalar, vector=vector)


def _magnitude(x: np.ndarray, sign: int) -> np.ndarray:
    """|x| of bit patterns as unsigned numbers (sign = 0: unsigned already)."""
    return np.where(x & x.dtype.type(sign), 0 - x, x) if sign else x


@typed("integer", "abs", "neg")
def abs_neg(ins: Instr) -> Pure:
    """abs, neg of signed integers: 9.7.1.10, 9.7.1.11."""
    kind = ins.types[-1]
    n = width(kind)
    if ins.mods[0] == "neg":
        return build((kind,), (kind,), expr=f"(-{{0}} & {ones(n):#x})", vexpr="(0 - {0})")
    expr = f"(abs({_signed_scalar('{0}', n)}) & {ones(n):#x})"
    return build((kind,), (kind,), expr=expr, vexpr=f"np.abs(s{n}({{0}})).view(np.uint{n})")


@typed("integer", "min", "max")
def min_max(ins: Instr) -> Pure:
    """min, max{.relu}: 9.7.1.12, 9.7.1.13; .relu (s32, s16x2) clamps negative results to 0."""
    kind = ins.types[-1]
    relu = kind in ("s32", "s16x2") and ins.has("relu")
    word = "minimum" if ins.mods[0] == "min" else "maximum"
    function = getattr(np, word)
    if kind in PACKED:
        return _halves(kind, (lambda a, b: np.maximum(function(a, b), 0)) if relu else function)
    n, mask = width(kind), f"{ones(width(kind)):#x}"
    if not is_signed(kind):
        vexpr = f"np.{word}({{0}}, {{1}})"
        return build((kind,) * 2, (kind,), expr=f"{ins.mods[0]}({{0}}, {{1}})", vexpr=vexpr)
    expr = f"{ins.mods[0]}({_signed_scalar('{0}', n)}, {_signed_scalar('{1}', n)})"
    vexpr = f"np.{word}(s{n}({{0}}), s{n}({{1}}))"
    if relu:
        expr, vexpr = f"max({expr}, 0)", f"np.maximum({vexpr}, 0)"
    return build((kind,) * 2, (kind,), expr=f"({expr} & {mask})", vexpr=f"{vexpr}.view(np.uint{n})")


@pure("add.cc", "addc", "sub.cc", "subc", "mad.lo.cc", "mad.hi.cc", "madc", states=pipes.carrying)
def extended(ins: Instr) -> Pure:
    """add, sub, mad with carry-in (addc, subc, madc) and carry-out (.cc): 9.7.2.

    For sub the flag is the borrow. The result is a + b, a - b or c + a half of a * b, plus the
    flag.
    """
    kind = ins.types[-1]
    out_carry = ins.has("cc")
    op, in_carry = ins.mods[0].removesuffix("c"), ins.mods[0].endswith("c")
    n, signed = width(kind), is_signed(kind)
    half = ins.one("lo", "hi") if op == "mad" else ""
    named = len(ins.operands) - 1 == (3 if op == "mad" else 2) + in_carry
    if not named or ins.dual != out_carry:
        raise Unsupported(f"{ins.opcode}: its carry flag is not among the operands")
    high = _high(n, signed)

    def exact(a: int, b: int, c: int) -> tuple[int, int]:
        """Scalar operands -> a number: the result in its low n bits, carry or borrow above them."""
        if op == "mad":
            sign = 1 << (n - 1) if signed else 0
            product = ((a ^ sign) - sign) * ((b ^ sign) - sign)
            return (product >> n if half == "hi" else product) & ones(n), c
        return a, b

    def scalar(*args: int) -> Any:
        x, y = exact(*args[:count], *([0] * (3 - count)))
        flag = args[-1] & 1 if in_carry else 0
        total = x - y - flag if op == "sub" else x + y + flag
        result = total & ones(n)
        return (result, 0xFFFFFFFF if total >> n & 1 else 0) if out_carry else result

    def vector(*args: Any) -> Any:
        x, y = args[:2]
        if op == "mad":
            x, y = (high(x, y) if half == "hi" else x * y), args[2]
        flag = as_bools(args[-1], x.size).astype(x.dtype) if in_carry else x.dtype.type(0)
        first = x - y if op == "sub" else x + y
        result = first - flag if op == "sub" else first + flag
        if not out_carry:
            return result
        if op == "sub":
            return result, as_mask((x < y) | (first < flag))
        return result, as_mask((first < x) | (result < first))

    count = 3 if op == "mad" else 2
    sources = (kind,) * count + ("pred",) * in_carry
    return build(sources, (kind,) + ("pred",) * out_carry, scalar=scalar, vector=vector)


@pure("dp4a", "dp2a", states=pipes.INTEGER)
def dot(ins: Instr) -> Pure:
    """dp4a.atype.btype, dp2a.{lo,hi}.atype.btype: dot products of bytes (9.7.1.23, 9.7.1.24)."""
    four = ins.mods[0] == "dp4a"
    b_signed = is_signed(ins.types[-1])
    a_signed = is_signed(ins.types[-2])
    second = 0 if four or ins.one("lo", "hi") == "lo" else 2
    a_view = (SIGNED if a_signed else DTYPES)[8 if four else 16]
    b_view = (SIGNED if b_signed else DTYPES)[8]

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray):
        x = a.view(a_view).reshape(len(a), -1).astype(np.int64)
        y = b.view(b_view).reshape(len(b), 4)[:, second : second + x.shape[1]]
        return (np.einsum("ij,ij->i", x, y.astype(np.int64)) + c).astype(np.uint32)

    def scalar(a: int, b: int, c: int):
        return int(vector(*(np.array([v], np.uint32) for v in (a, b, c)))[0])

    return build(("b32",) * 3, ("b32",), scalar=scalar, vector=vector)


export(clamp_s32=clamp_s32)
