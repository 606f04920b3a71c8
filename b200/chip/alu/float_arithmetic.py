"""Floating-point arithmetic (PTX ISA 9.7.3 fp32/fp64, 9.7.4 half precision, 9.7.5 mixed precision).

One description serves f16, bf16, f32, f64 and the packed f16x2, bf16x2, f32x2: see rounding.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from b200.chip.alu import pipes, rounding
from b200.chip.alu.build import build, typed
from b200.chip.alu.exact64 import directed64
from b200.chip.alu.rounding import OfArrays
from b200.errors import Unsupported
from b200.program.module import Instr
from b200.registry import Pure, as_mask, pure

TYPES = ("f16", "bf16", "f32", "f64", *rounding.PACKED)
NATIVE = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
LEAST_NORMAL = np.float64(2.0**-126)  # of f32
# The bits of a float64 behind those of an f32, and what they are halfway between two f32.
BEHIND_F32, TIE = np.int64((1 << 29) - 1), np.int64(1 << 28)
ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3}


def _single(op: str) -> Callable[..., np.ndarray]:
    """float64 operands of at most 24 bits -> the result rounded to odd in float64.

    Products of two such operands are exact, so only a sum needs care.
    """

    def single(mode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
        if op == "mul":
            return a * b
        if op == "add":
            return rounding.add_odd(a, b, mode)
        if op == "sub":
            return rounding.add_odd(a, -b, mode)
        assert c is not None
        return rounding.add_odd(a * b, c, mode)

    return single


def _fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Correctly rounded fp32 a * b + c of uint32 patterns.

    Rounding the float64 sum once more errs only where it lies exactly between two fp32 numbers (or
    the result is subnormal): there the exact sum decides. A sum of 0 is exact, as the product is.
    """
    form = rounding.FLOATS["f32"]
    x, y, z = (u.view(np.float32).astype(np.float64) for u in (a, b, c))
    product = np.multiply(x, y, out=x)
    s = product + z
    small = np.abs(s, out=y) < LEAST_NORMAL
    tie = s.view(np.int64) & BEHIND_F32 == TIE
    some = np.count_nonzero(small)
    if np.count_nonzero(tie) or some and some != s.size - np.count_nonzero(s):
        unsure = tie | small
        s[unsure] = rounding.add_odd(product[unsure], z[unsure])
    return rounding.canonical(s.astype(np.float32), form)


def _core(op: str, form: rounding.Float, mode: str) -> OfArrays:
    """Function of arrays of patterns of one format, correctly rounded in `mode`."""
    if form.bits == 64 and (mode != "rn" or ARITY[op] == 3):
        return directed64(op, mode)
    if mode == "rn" and op in NATIVE and form.bits >= 32:
        native, dtype = NATIVE[op], form.dtype
        assert dtype is not None

        def by_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return rounding.canonical(native(a.view(dtype), b.view(dtype)), form)

        return by_numpy
    if mode == "rn" and ARITY[op] == 3 and form.bits == 32:
        return _fma32
    single = _single(op)

    def run(*args: np.ndarray) -> np.ndarray:
        return rounding.encode(single(mode, *(form.decode(a) for a in args)), form, mode)

    return run


def finished(
    function: OfArrays,
    form: rounding.Float,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
) -> OfArrays:
    """`function` with .ftz applied to operands and result, and the result clamped (.sat, .relu)."""
    if not (ftz or sat or relu):
        return function

    def run(*args: np.ndarray) -> np.ndarray:
        if ftz:
            args = tuple(rounding.flush(a, form) for a in args)
        r = function(*args)
        if ftz:
            r = rounding.flush(r, form)
        if sat:
            r = rounding.saturate(r, form)
        return rounding.rectify(r, form) if relu else r

    return run


@typed("float", "add", "sub", "mul", "fma", "mad")
def arithmetic(ins: Instr) -> Pure:
    """add, sub, mul, fma, mad {.rn,.rz,.rm,.rp}{.ftz}{.sat}{.relu}."""
    op, kind = ins.mods[0], ins.types[-1]
    if len(ins.types) == 2:
        return _mixed(ins, op, kind)
    form = rounding.FLOATS[rounding.scalar_kind(kind)]
    mode = ins.one(*rounding.MODES) or "rn"
    run = finished(_core(op, form, mode), form, *map(ins.has, ("ftz", "sat", "relu")))
    return build((kind,) * ARITY[op], (kind,), vector=rounding.lift(kind, run))


def _mixed(ins: Instr, op: str, kind: str) -> Pure:
    """add, sub, fma .f32.{f16,bf16}: narrow first operands, fp32 last operand and result."""
    mode = ins.one(*rounding.MODES) or "rn"
    narrow, form, single = rounding.FLOATS[kind], rounding.FLOATS["f32"], _single(op)

    def run(*args: np.ndarray) -> np.ndarray:
        values = [narrow.decode(a) for a in args[:-1]]
        return rounding.encode(single(mode, *values, form.decode(args[-1])), form, mode)

    sources = (kind,) * (ARITY[op] - 1) + ("f32",)
    return build(sources, ("f32",), vector=finished(run, form, sat=ins.has("sat")))


@typed("float", "abs", "neg")
def abs_neg(ins: Instr) -> Pure:
    """abs, neg {.ftz}: sign-bit operations, on NaN too, whose result PTX leaves open (9.7.3.9)."""
    kind = ins.types[-1]
    form = rounding.FLOATS[rounding.scalar_kind(kind)]
    ftz = ins.has("ftz")
    each = 0x10001 if kind.endswith("x2") else 1
    op, mask = ("^", form.sign) if ins.mods[0] == "neg" else ("&", form.sign - 1)
    if not ftz:
        source = f"({{0}} {op} {each * mask:#x})"
        return build((kind,), (kind,), expr=source, vexpr=source)

    def change(u: np.ndarray) -> np.ndarray:
        return u ^ mask if op == "^" else u & mask

    return build((kind,), (kind,), vector=rounding.lift(kind, finished(change, form, ftz)))


@typed("float", "min", "max")
def min_max(ins: Instr) -> Pure:
    """min, max {.ftz}{.NaN}{.xorsign.abs} of two or (f32, with .abs) three operands.

    -0 is less than +0. A NaN operand is ignored unless .NaN; if both are, the result is NaN.
    """
    kind = ins.types[-1]
    form = rounding.FLOATS[rounding.scalar_kind(kind)]
    count = len(ins.operands) - 1
    ftz = ins.has("ftz")
    propagate, xorsign, magnitude = map(ins.has, ("NaN", "xorsign", "abs"))
    if count == 3 and xorsign or count == 2 and magnitude and not xorsign:
        raise Unsupported(f"{ins.opcode} does not have {count} operands")
    smaller = ins.mods[0] == "min"
    native = form.dtype if form.bits >= 32 else None  # numpy is slow with f16
    extreme = np.minimum if smaller else np.maximum

    def pick(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if native is not None:
            x, y = a.view(native), b.view(native)
            if rounding.all_finite(x) and rounding.all_finite(y):
                r = extreme(x, y)
                if np.count_nonzero(r) == r.size:  # else a zero may be of either sign
                    return r.view(form.bits_dtype)
        order = rounding.order_key(a, form) < rounding.order_key(b, form)
        r = np.where(order == smaller, a, b)
        nan_a, nan_b = rounding.is_nan(a, form), rounding.is_nan(b, form)
        if propagate:
            return np.where(nan_a | nan_b, form.bits_dtype(form.nan), r)
        r = np.where(nan_a, b, np.where(nan_b, a, r))
        return r if form.bits == 64 else np.where(nan_a & nan_b, form.bits_dtype(form.nan), r)

    def run(*args: np.ndarray) -> np.ndarray:
        operands = tuple(a & (form.sign - 1) for a in args) if magnitude else args
        r = operands[0]
        for other in operands[1:]:
            r = pick(r, other)
        if not xorsign:
            return r
        return np.where(rounding.is_nan(r, form), r, r ^ ((args[0] ^ args[1]) & form.sign))

    return build((kind,) * count, (kind,), vector=rounding.lift(kind, finished(run, form, ftz)))


@pure("copysign", states=pipes.other)
def copysign(ins: Instr) -> Pure:
    """copysign.{f32,f64} d, a, b: the magnitude of b with the sign of a (9.7.3.2)."""
    kind = ins.types[-1]
    sign = rounding.FLOATS[kind].sign
    source = f"({{0}} & {sign:#x} | {{1}} & {sign - 1:#x})"
    return build((kind, kind), (kind,), expr=source, vexpr=source)


CLASSES: dict[str, Callable[[np.ndarray, rounding.Float], Any]] = {
    "finite": lambda m, f: m < f.infinity,
    "infinite": lambda m, f: m == f.infinity,
    "number": lambda m, f: m <= f.infinity,
    "notanumber": lambda m, f: m > f.infinity,
    "normal": lambda m, f: ((m >= f.minimum_normal) & (m < f.infinity)) | (m == 0),
    "subnormal": lambda m, f: (m > 0) & (m < f.minimum_normal),
}


@pure("testp", states=pipes.other)
def testp(ins: Instr) -> Pure:
    """testp.class.{f32,f64}: 9.7.3.1; zero counts as normal."""
    kind = ins.types[-1]
    test, form = CLASSES[ins.one(*CLASSES)], rounding.FLOATS[kind]

    def vector(a: np.ndarray) -> int:
        return as_mask(test(a & (form.sign - 1), form))

    return build((kind,), ("pred",), vector=vector)


# --- division and roots with IEEE rounding --------------------------------------------------------


def _quotient(mode: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """fp32 a / b: the host's division is correctly rounded; a directed mode compares r * b with a.

    r and b have 24 bits each, so their product is exact in float64.
    """
    form = rounding.FLOATS["f32"]

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = a.view(np.float32), b.view(np.float32)
        r = x / y
        if mode != "rn":
            back, x64 = r.astype(np.float64) * y.astype(np.float64), x.astype(np.float64)
            more, less = x64 > back, x64 < back
            positive = ~np.signbit(y)
            inexact = np.isfinite(x) & np.isfinite(y) & (y != 0)
            above = np.where(positive, more, less) & inexact
            below = np.where(positive, less, more) & inexact
            r = rounding.correct(r, above, below, mode)
        return rounding.canonical(r, form)

    return divide


def _root(mode: str) -> Callable[[np.ndarray], np.ndarray]:
    """fp32 square root; a directed mode compares r * r with the operand, exactly."""
    form = rounding.FLOATS["f32"]

    def root(a: np.ndarray) -> np.ndarray:
        x = a.view(np.float32)
        r = np.sqrt(x)
        if mode != "rn":
            square, x64 = r.astype(np.float64) ** 2, x.astype(np.float64)
            r = rounding.correct(r, x64 > square, x64 < square, mode)
        return rounding.canonical(r, form)

    return root


def rounded(op: str, kind: str, mode: str) -> OfArrays:
    """Function for div, rcp, sqrt with IEEE rounding, on patterns."""
    if kind == "f64":
        return directed64(op, mode)
    if op == "sqrt":
        return _root(mode)
    divide = _quotient(mode)
    if op == "div":
        return divide

    def reciprocal(a: np.ndarray) -> np.ndarray:
        return divide(np.full(a.shape, 0x3F800000, np.uint32), a)

    return reciprocal
