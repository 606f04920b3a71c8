"""Element-wise reductions in memory: atom, red, red.async, cp.reduce.async.bulk{.tensor}.

PTX ISA 9.7.9.25.4.2, 9.7.13.5: integers wrap; f16 and bf16 round to nearest even and keep
subnormals; f32 addition flushes subnormal inputs and results to zero of their sign, but for atomics
in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np

from b200.errors import Unsupported
from b200.program.module import TYPE_BITS
from b200.registry import UFUNCS

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (old, new) -> result

FUNCTIONS: dict[str, Combine] = {
    **UFUNCS,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
}
# Legal types by operation and where the result lies.
GLOBAL = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}
SHARED = {
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
}
CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def combiner(
    op: str, kind: str, legal: Mapping[str, Container[str]], flush: bool = True
) -> Combine:
    """combine(old, new) -> result, on contiguous uint8 arrays of one shape.

    flush: whether f32 addition flushes subnormals. Raises Unsupported unless legal[op] has `kind`.
    """
    if kind not in legal.get(op, ()):
        raise Unsupported(f"reduction .{op} on type .{kind} does not exist in this direction")
    function = on_patterns(op, kind, flush)

    def combine(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return function(old, new)

    return combine


def on_patterns(op: str, kind: str, flush: bool) -> Combine:
    """combine(old, new) -> result, on arrays of one shape and of any unsigned type. flush: as of
    combiner.
    """
    letter = {"s": "i", "f": "f"}.get(kind[0], "u")
    dtype = np.dtype(f"{letter}{TYPE_BITS[kind] // 8}")
    if kind in ("f16", "bf16"):
        function = _half_add(kind) if op == "add" else _half_extreme(kind, op)
        dtype = np.dtype(np.uint16)
    else:
        function = _float_add(flush) if kind == "f32" else FUNCTIONS[op]

    def combine(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        found = function(old.view(dtype), new.view(dtype))
        return found.astype(dtype, copy=False).view(old.dtype)

    return combine


def _widen(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrow(x: np.ndarray, kind: str) -> np.ndarray:
    """f32 -> bits of f16 or bf16, nearest even; NaN is canonical."""
    if kind == "f16":
        bits = x.astype(np.float16).view(np.uint16)
    else:
        wide = x.view(np.uint32)
        bits = ((wide + np.uint32(0x7FFF) + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(CANONICAL_NAN[kind]), bits)


def _half_add(kind: str) -> Combine:
    # The f32 sum, rounded again, is the correctly rounded sum: 24 bits >= 2 * 11 + 2.
    return lambda old, new: _narrow(_widen(old, kind) + _widen(new, kind), kind)


def _half_extreme(kind: str, op: str) -> Combine:
    """min, max: a NaN loses against a number, -0 is less than +0."""

    def function(old: np.ndarray, new: np.ndarray):
        a, b = _widen(old, kind), _widen(new, kind)
        less = (b < a) | ((a == b) & np.signbit(b))
        take = less if op == "min" else (a < b) | ((a == b) & np.signbit(a))
        out = np.where(np.isnan(a) | take & ~np.isnan(b), new, old)
        return np.where(np.isnan(a) & np.isnan(b), np.uint16(CANONICAL_NAN[kind]), out)

    return function


def _float_add(flush: bool) -> Combine:
    def flushed(x: np.ndarray):
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)

    def function(old: np.ndarray, new: np.ndarray):
        total = flushed(flushed(old) + flushed(new)) if flush else old + new
        total.view(np.uint32)[np.isnan(total)] = CANONICAL_NAN["f32"]
        return total

    return function
