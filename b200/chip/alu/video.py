"""SIMD video instructions: two halves or four bytes of a register (PTX ISA 9.7.19.2)."""

from __future__ import annotations

import numpy as np

from b200.chip.alu import pipes
from b200.chip.alu.build import SIGNED, bounds, build, is_signed
from b200.program.module import Instr
from b200.registry import DTYPES, Pure, pure

NAMES = tuple(
    f"v{what}{n}" for what in ("add", "sub", "avrg", "absdiff", "min", "max") for n in "24"
)


def _combined(what: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of elements as int64."""
    if what == "add":
        return a + b
    if what == "sub":
        return a - b
    if what == "avrg":  # halves are rounded away from zero
        return (a + b + (a + b >= 0)) >> 1
    if what == "absdiff":
        return np.abs(a - b)
    return np.minimum(a, b) if what == "min" else np.maximum(a, b)


@pure(*NAMES, states=pipes.INTEGER)
def packed_video(ins: Instr) -> Pure:
    """vadd2.dtype.atype.btype{.sat}, .. : each element; with .add their sum, added to c."""
    name = ins.mods[0]
    what, bits = name[1:-1], 32 // int(name[-1])
    result, left, right = ins.types[-3:]
    views = [(SIGNED if is_signed(kind) else DTYPES)[bits] for kind in (left, right)]
    clamps, adds = ins.has("sat"), ins.has("add")
    low, high = bounds(f"{result[0]}{bits}")

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray):
        x, y = (
            words.view(view).reshape(len(words), -1).astype(np.int64)
            for words, view in zip((a, b), views, strict=True)
        )
        found = _combined(what, x, y)
        if adds:
            return (found.sum(1) + c).astype(np.uint32)
        found = np.clip(found, low, high) if clamps else found
        return np.ascontiguousarray(found.astype(DTYPES[bits])).view(np.uint32).reshape(-1)

    return build(("b32", "b32", "b32"), ("b32",), vector=vector)
