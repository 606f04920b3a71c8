"""cvt between scalar types, cvta and isspacep (PTX ISA 9.7.9.20, 9.7.9.21).

Conversions to and from packed small formats are in convert_packed.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.alu import pipes, rounding
from b200.chip.alu.build import SIGNED, bounds, build, is_signed, ones, width
from b200.chip.alu.convert_packed import SMALL_TYPES, convert_packed
from b200.effects import LooksAtLanes
from b200.errors import Unsupported
from b200.hardware import RANK_SHIFT
from b200.program.module import TYPE_BITS, Instr, Reg
from b200.registry import DTYPES, FULL, LaneValues, Narrowing, Pure, Run, as_mask, pure, warp
from b200.spaces import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

INTEGER_TYPES = tuple(t + n for t in "us" for n in ("8", "16", "32", "64"))
TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pure("cvt", states=pipes.conversion)
def cvt(ins: Instr) -> Pure:
    """cvt{.rounding}{.ftz}{.sat}{.satfinite}{.relu}.dtype.atype d, a."""
    if any(t in SMALL_TYPES for t in ins.types[-2:]):
        return convert_packed(ins)
    source = ins.types[-1]
    target = ins.types[-2]
    _check_bytes(ins, source, target)
    if source in rounding.FLOATS:
        return _from_float(ins, source, target)
    to_float = target in rounding.FLOATS
    return (_integer_to_float if to_float else _integers)(ins, source, target)


def _check_bytes(ins: Instr, source: str, target: str) -> None:
    """A byte from or to bf16 is in a register of 8 bits; other bytes may be in wider ones."""
    for operand, kind, other in zip(ins.operands, (target, source), (source, target)):
        if other == "bf16" and kind in ("u8", "s8") and isinstance(operand, Reg):
            if TYPE_BITS[operand.type] != 8:
                raise Unsupported(f"{ins.opcode}: the .{kind} must be in a register of 8 bits")


# --- integers -------------------------------------------------------------------------------------


def _integers(ins: Instr, source: str, target: str) -> Pure:
    """Truncation or extension; .sat clamps to the range of the target."""
    sat = ins.has("sat")
    n, m, signed = width(source), width(target), is_signed(source)
    if sat:
        return build((source,), (target,), scalar=_saturated(source, target))
    if m <= n:
        expr = "{0}" if m == n else f"({{0}} & {ones(m):#x})"
        vexpr = "{0}" if m == n else f"{{0}}.astype(np.uint{m})"
    elif signed:
        sign = f"{1 << (n - 1):#x}"
        expr = f"((({{0}} ^ {sign}) - {sign}) & {ones(m):#x})"
        vexpr = f"s{n}({{0}}).astype(np.int{m}).view(np.uint{m})"
    else:
        expr, vexpr = "{0}", f"{{0}}.astype(np.uint{m})"
    return build((source,), (target,), expr=expr, vexpr=vexpr)


def _saturated(source: str, target: str) -> Callable[[int], int]:
    sign = 1 << (width(source) - 1) if is_signed(source) else 0
    (low, high), mask = bounds(target), ones(width(target))

    def scalar(a: int) -> int:
        return min(max((a ^ sign) - sign, low), high) & mask

    return scalar


# --- integer to float -----------------------------------------------------------------------------


def _integer_to_float(ins: Instr, source: str, target: str) -> Pure:
    mode = ins.one(*rounding.MODES)
    sat = ins.has("sat")  # .ftz changes nothing: an integer is never subnormal
    form = rounding.FLOATS[target]
    view = (SIGNED if is_signed(source) else DTYPES)[width(source)]

    def vector(a: np.ndarray) -> np.ndarray:
        number = a.view(view)
        if target == "f64" and width(source) == 64:
            r = _long_to_f64(number, mode)
        elif mode == "rn" and target in ("f32", "f64"):
            r = number.astype(form.dtype).view(form.bits_dtype)
        else:
            r = _through_f64(number, form, mode)
        return rounding.saturate(r, form) if sat else r

    return build((source,), (target,), vector=vector)


def _halves(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A 64-bit integer as the sum of two float64 numbers, both exact."""
    high = (number >> 32).astype(np.float64) * 2.0**32
    return high, (number & 0xFFFFFFFF).astype(np.float64)


def _through_f64(number: np.ndarray, form: rounding.Float, mode: str) -> np.ndarray:
    if number.dtype.itemsize < 8:
        return rounding.encode(number.astype(np.float64), form, mode)
    return rounding.encode(rounding.add_odd(*_halves(number)), form, mode)


def _long_to_f64(number: np.ndarray, mode: str) -> np.ndarray:
    high, low = _halves(number)
    r = high + low
    if mode != "rn":
        error = rounding.sum_error(high, low, r)
        r = rounding.correct(r, error > 0, error < 0, mode)
    return r.view(np.uint64)


# --- from float -----------------------------------------------------------------------------------


def _from_float(ins: Instr, source: str, target: str) -> Pure:
    form = rounding.FLOATS[source]
    if target in INTEGER_TYPES:
        mode = ins.one(*TO_INTEGRAL)
        function = _float_to_integer(form, target, TO_INTEGRAL[mode], ins.has("ftz"))
        return build((source,), (target,), vector=function)
    return _floats(ins, form, rounding.FLOATS[target])


ToIntegral = Callable[[np.ndarray], np.ndarray]  # rounds numbers to integral ones


def _float_to_integer(form: rounding.Float, target: str, to_integral: ToIntegral, ftz: bool):
    """Clamped to the target's range. NaN gives 0, or the pattern 1000..0 if a type has 64 bits."""
    n = width(target)
    low, high = bounds(target)
    dtype = (SIGNED if is_signed(target) else DTYPES)[n]
    wide = form.bits == 64 or n == 64
    nan = dtype(0) if not wide else dtype(low if is_signed(target) else 1 << (n - 1))
    above, below = float(high), float(low)  # float(2^64 - 1) is 2^64, itself out of range

    def convert(a: np.ndarray):
        x = to_integral(form.decode(rounding.flush(a, form) if ftz else a))
        inside = (x < above) & (x > below)
        r = np.where(inside, x, 0.0).astype(dtype)
        r = np.where(x >= above, dtype(high), np.where(x <= below, dtype(low), r))
        return np.where(np.isnan(x), nan, r).view(DTYPES[n])

    return convert


def _floats(ins: Instr, form: rounding.Float, to: rounding.Float) -> Pure:
    """Float to float: rounded to an integral value, narrowed with a rounding mode, or neither."""
    integral = ins.one(*TO_INTEGRAL)
    narrows = to.bits < form.bits or (form.bits == to.bits and form != to)
    mode = ins.one(*rounding.MODES) or "rn"  # of bf16 to wider types it changes nothing
    ftz, sat, relu, finite = map(ins.has, ("ftz", "sat", "relu", "satfinite"))

    def change(a: np.ndarray):
        if integral:
            return encode_integral(a, form, TO_INTEGRAL[integral])
        if form == to:
            return a
        if form.name == "bf16" and to.name == "f32" and not ftz:
            return a.astype(np.uint32) << 16  # the upper half as it is, NaN payloads too
        if to.bits == 64:
            return form.decode(a).view(np.uint64)
        if form.bits < 64 and to.dtype is not None and mode == "rn":
            return rounding.canonical(form.native(a).astype(to.dtype), to)
        return rounding.encode(form.decode(a), to, mode)

    def vector(a: np.ndarray):
        r = change(rounding.flush(a, form) if ftz and form.name == "f32" else a)
        if ftz and to.name == "f32":
            r = rounding.flush(r, to)
        if sat:
            r = rounding.saturate(r, to)
        if finite:
            r = rounding.clamp_finite(r, to)
        return rounding.rectify(r, to) if relu else r

    overflows = narrows and not (sat or finite)
    narrowing = Narrowing(form.name, to.name, 1) if overflows else None
    return build((form.name,), (to.name,), vector=vector, narrows=narrowing)


def encode_integral(a: np.ndarray, form: rounding.Float, to_integral: ToIntegral) -> np.ndarray:
    """Rounded to an integral value of the same format (exact there); the sign of zero is kept."""
    if form.bits == 64:
        return to_integral(a.view(np.float64)).view(np.uint64)
    return rounding.encode(to_integral(form.decode(a)), form)


# --- address spaces -------------------------------------------------------------------------------

WINDOWS = {
    "global": 0,
    **dict.fromkeys(("shared", "shared::cta", "shared::cluster"), SHARED_WINDOW),
    "local": LOCAL_WINDOW,
    **dict.fromkeys(("param", "param::entry"), PARAM_WINDOW),
}


@pure("cvta", states=pipes.move)
def cvta(ins: Instr) -> Pure:
    """cvta{.to}.space.u64: to and from generic addresses (spaces.py).

    Variables in .const lie in global memory here.
    """
    back = ins.has("to")
    windows = {**WINDOWS, "const": 0}
    window = windows[ins.one(*windows)]
    if window == 0:
        source = "{0}"
    else:
        source = f"({{0}} & {WINDOW_MASK:#x})" if back else f"({{0}} | {window:#x})"
    return build(("u64",), ("u64",), expr=source, vexpr=source)


@pure("isspacep", states=pipes.INTEGER)
def isspacep(ins: Instr) -> Pure:
    """isspacep.space p, a: whether a generic address lies in the window of a space."""
    window = WINDOWS[ins.one(*WINDOWS)]
    expr = f"(FULL if {{0}} >> 56 == {window >> 56} else 0)"
    vexpr = f"as_mask({{0}} >> 56 == {window >> 56})"
    return build(("u64",), ("pred",), expr=expr, vexpr=vexpr)


@warp("isspacep.shared", "isspacep.shared::cta", states=LooksAtLanes(), out=1, uniform="args")
def isspacep_cta(ins: Instr) -> Run:
    """isspacep for the executing CTA's own shared memory: the address names its rank."""

    def run(warp: Fragment, mask: int, address: LaneValues):
        own = (SHARED_WINDOW >> RANK_SHIFT) | warp.cta.rank
        if isinstance(address, np.ndarray):
            return as_mask(address >> RANK_SHIFT == own)
        return FULL if address >> RANK_SHIFT == own else 0

    return run
