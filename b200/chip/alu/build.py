"""Helpers of the stateless units: types, and building a `Pure` from Python source.

Registers hold unsigned bit patterns. Inlined source may use the names in `INLINE_NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from b200.chip.alu import pipes
from b200.program.module import Instr
from b200.registry import (
    DTYPES,
    FULL,
    INLINE_NAMES,
    Factory,
    LaneValues,
    Narrowing,
    Pure,
    as_bools,
    as_mask,
)
from b200.registry import pure as register

SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def width(kind: str) -> int:
    """Bits of a scalar integer type: 32 of "u32"."""
    return int(kind[1:])


def is_signed(kind: str) -> bool:
    return kind[0] == "s"


def ones(bits: int) -> int:
    return (1 << bits) - 1


def bounds(kind: str) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    n = width(kind)
    return (-(1 << (n - 1)), ones(n - 1)) if is_signed(kind) else (0, ones(n))


# --- helpers of inlined source: an array, or an int where the value is the same in all lanes ------


def _signed_view(bits: int) -> Callable[[Any], Any]:
    sign, dtype = 1 << (bits - 1), SIGNED[bits]

    def signed_view(x: LaneValues) -> Any:
        return x.view(dtype) if isinstance(x, np.ndarray) else (x ^ sign) - sign

    return signed_view


def _as_array(bits: int) -> Callable[[Any], Any]:
    dtype = DTYPES[bits]

    def as_array(x: LaneValues) -> Any:
        return x if isinstance(x, np.ndarray) else dtype(x)

    return as_array


def _float_view(
    dtype: type[np.floating[Any]], bits_dtype: type[np.unsignedinteger[Any]]
) -> Callable[[Any], Any]:

    def float_view(x: LaneValues) -> Any:
        return (x if isinstance(x, np.ndarray) else bits_dtype(x)).view(dtype)

    return float_view


INLINE_NAMES.update({f"s{n}": _signed_view(n) for n in SIGNED})
INLINE_NAMES.update({f"arr{n}": _as_array(n) for n in DTYPES})
INLINE_NAMES.update(f32=_float_view(np.float32, np.uint32), f64=_float_view(np.float64, np.uint64))
_SPACE = {"np": np, "FULL": FULL, "as_bools": as_bools, "as_mask": as_mask}


def export(**helpers: Any) -> None:
    """Make helpers available to inlined source, by their names."""
    INLINE_NAMES.update(helpers)


@cache
def compiled(source: str, operands: int) -> Callable[..., Any]:
    """A function compiled from source in which {0}, {1}, ... stand for the operands."""
    names = [f"a{i}" for i in range(operands)]
    return eval(f"lambda {', '.join(names)}: {source.format(*names)}", {**_SPACE, **INLINE_NAMES})


def build(
    ins: tuple[str, ...],
    outs: tuple[str, ...],
    expr: str | None = None,
    vexpr: str | None = None,
    scalar: Callable[..., Any] | None = None,
    vector: Callable[..., Any] | None = None,
    narrows: Narrowing | None = None,
) -> Pure:
    """A `Pure`. A function that is not given is compiled from its source (`expr`, `vexpr`).

    With neither `vexpr` nor `vector`, `scalar` is called for each lane: for rare instructions.
    """
    if scalar is None and expr is not None:
        scalar = compiled(expr, len(ins))
    if vector is None and vexpr is not None:
        vector = compiled(vexpr, len(ins))
    if vector is None and scalar is not None:
        vector = each_lane(scalar, outs)
    return Pure(ins, outs, vector, scalar, expr, vexpr, narrows)


def predicate_logic(ins: tuple[str, ...], outs: tuple[str, ...], expr: str) -> Pure:
    """A `Pure` over predicates only: masks are ints, so one expression serves all cases."""
    return Pure(ins, outs, None, compiled(expr, len(ins)), expr, None)


def each_lane(scalar: Callable[..., Any], outs: tuple[str, ...]) -> Callable[..., np.ndarray]:
    """A vector form that calls a scalar form of one non-predicate result lane by lane."""
    (out,) = outs
    dtype = DTYPES[int(out.lstrip("busf"))]

    def vector(*args: np.ndarray) -> np.ndarray:
        return np.array([scalar(*row) for row in zip(*(a.tolist() for a in args))], dtype)

    return vector


# --- mnemonics that integers and floats share -----------------------------------------------------

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
_FAMILIES: dict[str, dict[str, Callable[..., Any]]] = {}


def typed(family: str, *mnemonics: str) -> Callable[[Factory], Factory]:
    """Register a factory for a mnemonic's "integer" or "float" forms (told apart by the type)."""

    def add(factory: Factory) -> Factory:
        for mnemonic in mnemonics:
            if mnemonic not in _FAMILIES:
                _FAMILIES[mnemonic] = {}
                states = pipes.division if mnemonic in ("div", "rem") else pipes.arithmetic
                register(mnemonic, states=states)(partial(_by_type, mnemonic))
            _FAMILIES[mnemonic][family] = factory
        return factory

    return add


def families(mnemonic: str) -> dict[str, Callable[..., Any]]:
    """The factories of a mnemonic that is shared, by family."""
    return _FAMILIES[mnemonic]


def _by_type(mnemonic: str, ins: Instr) -> Pure:
    kind = next((m for m in reversed(ins.mods) if m[-1].isdigit()), "")
    family = "float" if "f" in kind else "integer"
    return _FAMILIES[mnemonic][family](ins)
