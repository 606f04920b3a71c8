"""SIMD video instructions, by Python's integers (PTX ISA 9.7.19.2)."""

from __future__ import annotations

import numpy as np
import pytest

from b200.errors import Unsupported
from b200.registry import find
from tests.b200.chip.isa_support import execute, instruction

DO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "absdiff": lambda a, b: abs(a - b),
    "min": min,
    "max": max,
}
TYPES = ("u32.u32.u32", "s32.s32.s32", "s32.u32.s32", "u32.s32.u32")


def _parts(word: int, bits: int, kind: str) -> list[int]:
    found = [word >> at & (1 << bits) - 1 for at in range(0, 32, bits)]
    sign = 1 << bits - 1
    return [(x ^ sign) - sign for x in found] if kind == "s32" else found


def _wanted(what: str, bits: int, types: str, how: str, a: int, b: int, c: int) -> int:
    result, left, right = types.split(".")
    values = [DO[what](x, y) for x, y in zip(_parts(a, bits, left), _parts(b, bits, right))]
    if how == ".add":
        return sum(values) + c & 0xFFFFFFFF
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if result == "s32" else (0, (1 << bits) - 1)
    if how == ".sat":
        values = [min(max(value, low), high) for value in values]
    return sum((value & (1 << bits) - 1) << bits * i for i, value in enumerate(values))


@pytest.mark.parametrize("how", ("", ".sat", ".add"))
@pytest.mark.parametrize("types", TYPES)
def test_each_of_halves_and_bytes(types, how):
    draw = np.random.default_rng(7)
    a, b, c = draw.integers(0, 1 << 32, (3, 32), dtype=np.uint32)
    a[:4], b[:4] = (0x80808080, 0x7F7F7F7F, 0xFFFFFFFF, 0), (0x7F7F7F7F, 0x80808080, 1, 0x80008000)
    for what in DO:
        for n, bits in (("2", 16), ("4", 8)):
            opcode = f"v{what}{n}.{types}{how}"
            found = execute(opcode, ["b32"], ["b32"] * 3, a, b, c)
            rows = zip(a.tolist(), b.tolist(), c.tolist())
            assert found.tolist() == [_wanted(what, bits, types, how, *row) for row in rows], opcode


@pytest.mark.parametrize("opcode", ("vadd4.u32.u32", "vadd3.u32.u32.u32", "vset4.u32.u32.eq"))
def test_refused(opcode):
    with pytest.raises(Unsupported):
        find(opcode).factory(instruction(opcode, ["b32"], ["b32"] * 3))
