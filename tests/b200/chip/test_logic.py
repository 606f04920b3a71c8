"""Logic, shifts, selection, moves and integer comparisons against Python integers."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b200.errors import Unsupported
from b200.program.module import Instr, Reg, Vec
from b200.registry import FULL, find
from tests.b200.chip.isa_support import execute, execute_made, instruction, lane_values
from tests.b200.chip.test_integer import FEW, LANES, cut, signed


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x96, 0xE8, 0xCA, 0x0F, 0xAA, 0x01, 0x7E, 0xC0])
@FEW
@given(a=LANES, b=LANES, c=LANES)
def test_lop3(table, a, b, c):
    a, b, c = (cut(x, 32) for x in (a, b, c))
    got = execute("lop3.b32", ["b32"], ["b32", "b32", "b32", table], a, b, c)
    for i in range(32):
        bits = [f"{int(x[i]):032b}" for x in (a, b, c)]
        want = "".join(str(table >> int("".join(abc), 2) & 1) for abc in zip(*bits))
        assert int(got[i]) == int(want, 2)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64"])
@FEW
@given(a=LANES, amounts=LANES.map(lambda x: [v % 80 for v in x]), constant=st.integers(0, 80))
def test_shifts(kind, a, amounts, constant):
    n = int(kind[1:])
    a = cut(a, n)
    view = (lambda x: signed(x, n)) if kind[0] == "s" else int
    for source, values in (("b32", [np.array(amounts)]), (constant, [])):
        shifts = amounts if values else [constant] * 32
        got = execute(f"shr.{kind}", [f"b{n}"], [f"b{n}", source], a, *values)
        assert got.tolist() == [(view(x) >> s) % (1 << n) for x, s in zip(a.tolist(), shifts)]
        got = execute(f"shl.b{n}", [f"b{n}"], [f"b{n}", source], a, *values)
        assert got.tolist() == [(x << s) % (1 << n) for x, s in zip(a.tolist(), shifts)]


@pytest.mark.parametrize(
    "selector, want",
    [
        (0x3210, 0x33221180),
        (0x7654, 0xAABBCCDD),
        (0x0123, 0x80112233),
        (0x8888, 0xFFFFFFFF),
        (0xBBBB, 0),
    ],
)
def test_prmt(selector, want):
    a, b, c = np.full(32, 0x33221180), np.full(32, 0xAABBCCDD), np.full(32, selector)
    assert set(execute("prmt.b32", ["b32"], ["b32"] * 3, a, b, c).tolist()) == {want}


PARTS = [(16, 2), (32, 2), (32, 4), (64, 2), (64, 4), (128, 2)]


@pytest.mark.parametrize("bits, count", PARTS)
@FEW
@given(lanes=LANES)
def test_pack_and_unpack(bits, count, lanes):
    """mov of a vector: the first element is the lowest."""
    part = bits // count
    parts = [cut([v * (j + 1) + j for v in lanes], part) for j in range(count)]
    whole = [sum(int(p[i]) << part * j for j, p in enumerate(parts)) for i in range(32)]
    registers = tuple(Reg(f"r{j}", f"b{part}") for j in range(count))
    wide = Reg("w", f"b{bits}")
    pack = find(f"mov.b{bits}").factory(Instr(f"mov.b{bits}", (wide, Vec(registers))))
    unpack = find(f"mov.b{bits}").factory(Instr(f"mov.b{bits}", (Vec(registers), wide)))
    arrays = [p.astype(f"u{part // 8}") for p in parts]
    packed = pack.vector(*arrays)
    assert packed.tolist() == whole
    assert [pack.scalar(*(int(p[i]) for p in parts)) for i in range(32)] == whole
    assert [p.tolist() for p in unpack.vector(packed)] == [p.tolist() for p in parts]
    assert [list(unpack.scalar(w)) for w in whole] == np.stack(parts, 1).tolist()


COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", COMPARE)
@FEW
@given(a=LANES, b=LANES, c=st.integers(0, FULL))
def test_setp(op, kind, a, b, c):
    n = int(kind[1:])
    a, b = cut(a, n), cut(b, n)
    b[:8] = a[:8]
    view = (lambda x: signed(x, n)) if kind[0] == "s" else int
    want = np.array([COMPARE[op](view(x), view(y)) for x, y in zip(a.tolist(), b.tolist())])
    assert np.array_equal(execute(f"setp.{op}.{kind}", ["pred"], [f"b{n}"] * 2, a, b), want)
    mask = np.array([c >> i & 1 for i in range(32)], bool)
    p, q = execute(f"setp.{op}.or.{kind}", ["pred", "pred"], [f"b{n}", f"b{n}", "pred"], a, b, mask)
    assert np.array_equal(p, want | mask) and np.array_equal(q, ~want | mask)
    chosen = execute(f"selp.b{n}", [f"b{n}"], [f"b{n}", f"b{n}", "pred"], a, b, mask)
    assert np.array_equal(chosen, np.where(mask, a, b))


def test_predicates_are_masks():
    p, q = 0x0F0F00FF, 0x00FFFF0F
    for opcode, want in (("and.pred", p & q), ("or.pred", p | q), ("xor.pred", p ^ q)):
        made = find(opcode).factory(instruction(opcode, ["pred"], ["pred", "pred"]))
        assert made.scalar(p, q) == want == eval(made.expr.format(p, q))
    bits = np.array([p >> i & 1 for i in range(32)])
    inverted = find("not.pred").factory(instruction("not.pred", ["pred"], ["pred"]))
    (got,) = execute_made(inverted, ["pred"], [bits])
    assert np.array_equal(got, lane_values(FULL & ~p, "pred", 64))


def test_refuses():
    for opcode in (
        "shf.l.b32",
        "setp.lo.s32",
        "setp.lt.xyz.s32",
        "prmt.b32.abc",
        "mov.u8",
        "set.equ.u32.s32",
    ):
        with pytest.raises(Unsupported):
            find(opcode).factory(instruction(opcode, ["b32"], ["b32", "b32", "b32"]))
    variable = Instr("lop3.b32", tuple(Reg(f"r{i}", "b32") for i in range(5)))
    with pytest.raises(Unsupported, match="immLut"):
        find("lop3.b32").factory(variable)
