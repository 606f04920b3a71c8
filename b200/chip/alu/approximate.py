"""Division, reciprocal, roots and transcendental functions (PTX ISA 9.7.3.8, 9.7.3.13-9.7.3.21).

The .approx forms are computed in float64 and rounded once, so they are at least as accurate as the
documented bound of hardware (a few units in the last place), but not bit-identical to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from b200.chip.alu import pipes
from b200.chip.alu.build import build, typed
from b200.chip.alu.float_arithmetic import finished, rounded
from b200.chip.alu.rounding import FLOATS, MODES, OfArrays, encode, lift, scalar_kind
from b200.program.module import Instr
from b200.registry import Pure, pure

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def _approximation(kind: str, function: Callable[..., np.ndarray], ftz: bool) -> OfArrays:
    form = FLOATS[scalar_kind(kind)]

    def run(*args: np.ndarray) -> np.ndarray:
        return encode(function(*map(form.decode, args)), form)

    return lift(kind, finished(run, form, ftz))


@typed("float", "div")
def div(ins: Instr) -> Pure:
    """div.{rn,rz,rm,rp}.{f32,f64}, div.{approx,full}.f32: 9.7.3.8."""
    kind = ins.types[-1]
    modes = (*MODES, "approx", "full") if kind == "f32" else MODES
    mode = ins.one(*modes)
    ftz = ins.has("ftz")
    if mode in MODES:
        run = finished(rounded("div", kind, mode), FLOATS[kind], ftz)
    else:
        run = _approximation(kind, _div_approx if mode == "approx" else np.divide, ftz)
    return build((kind, kind), (kind,), vector=run)


def _div_approx(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * (1 / b), whose reciprocal underflows for 2^126 < |b|: zero, and NaN for an infinite a."""
    large = (np.abs(b) > 2.0**126) & np.isfinite(b)
    return np.where(large, a * np.copysign(0.0, b), a / b)


@pure("rcp", "sqrt", states=pipes.special)
def rcp_sqrt(ins: Instr) -> Pure:
    """rcp, sqrt .{rn,rz,rm,rp,approx}.{f32,f64}: 9.7.3.13-9.7.3.15."""
    op, kind = ins.mods[0], ins.types[-1]
    mode = ins.one(*MODES, "approx")
    ftz = ins.has("ftz")
    if mode != "approx":
        run = finished(rounded(op, kind, mode), FLOATS[kind], ftz)
    elif kind == "f64":
        run = _upper_word(op)
    else:
        run = _approximation(kind, FUNCTIONS[op], ftz)
    return build((kind,), (kind,), vector=run)


def _upper_word(op: str) -> OfArrays:
    """rcp, rsqrt .approx.ftz.f64: only the upper 32 bits of operand and result count."""
    high, form = np.uint64(0xFFFFFFFF00000000), FLOATS["f64"]

    def run(a: np.ndarray) -> np.ndarray:
        r = FUNCTIONS[op]((a & high).view(np.float64))
        return np.where(np.isnan(r), np.uint64(0x7FFFFFFF << 32), r.view(np.uint64) & high)

    return finished(run, form, True)


@pure("rsqrt", "sin", "cos", "lg2", "ex2", "tanh", states=pipes.special)
def approximate(ins: Instr) -> Pure:
    """rsqrt, sin, cos, lg2, ex2, tanh .approx{.ftz}: 9.7.3.16-9.7.3.21, 9.7.4.10, 9.7.4.11."""
    op, kind, ftz = ins.mods[0], ins.types[-1], ins.has("ftz")
    upper = kind == "f64" and ftz
    run = _upper_word(op) if upper else _approximation(kind, FUNCTIONS[op], ftz)
    return build((kind,), (kind,), vector=run)
