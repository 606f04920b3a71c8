"""Execute one instruction on 32 lanes: execute("add.s32", ["b32"], ["b32", "b32"], a, b)."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np

from b200.chip import instruction_set as _instruction_set  # noqa: F401  registers every unit
from b200.chip.alu.build import INLINE_NAMES
from b200.program.module import Imm, Instr, Reg, Vec
from b200.registry import FULL, Pure, as_bools, as_mask, find

WIDTH = {"b8": 8, "b16": 16, "b32": 32, "b64": 64}
KIND_WIDTH = {"f16x2": 32, "bf16x2": 32, "f32x2": 64, "bf16": 16}


def width(kind: str) -> int:
    return KIND_WIDTH.get(kind) or int(kind.lstrip("busf"))


def instruction(opcode: str, dsts: list[str], sources: list, vector_dst: bool = False) -> Instr:
    """An instruction on registers of the given types; an int among the sources is an immediate."""
    made = [Reg(f"d{i}", t) for i, t in enumerate(dsts)]
    dual = len(dsts) > 1 and not vector_dst
    first = Vec(tuple(made)) if dual or vector_dst else made[0]
    rest = [Imm(s) if isinstance(s, int) else Reg(f"s{i}", s) for i, s in enumerate(sources)]
    return Instr(opcode, (first, *rest), dual=dual, text=f"{opcode} ...")


def lane_values(values, kind: str, bits: int) -> np.ndarray:
    """A result as 32 unsigned patterns in a register of `bits` bits, extended as PTX does."""
    if kind == "pred":
        return as_bools(values).astype(np.uint64)
    have = width(kind)
    array = values if isinstance(values, np.ndarray) else np.full(32, values, f"u{have // 8}")
    assert array.dtype.itemsize * 8 == have
    if kind[0] == "s" and have < bits:
        array = array.view(f"int{have}").astype(np.int64).astype(np.uint64)
    return array.astype(np.uint64) & np.uint64((1 << bits) - 1)


def lane_value(value: int, kind: str, bits: int) -> int:
    """As lane_values, of the number that a form for one lane gives."""
    if kind == "pred":
        return value & 1
    have = width(kind)
    assert 0 <= value < 1 << have
    negative = kind[0] == "s" and have < bits and value >> have - 1
    return (int(value) - (1 << have) if negative else int(value)) & (1 << bits) - 1


def execute_made(made: Pure, dsts: list[str], sources: list, immediates=()) -> list[np.ndarray]:
    """Run the array form of a stateless instruction, and hold its other forms against it.

    immediates: numbers of the sources that are immediates.
    """
    arrays = [
        as_mask(np.asarray(v) != 0) if k == "pred" else np.asarray(v).astype(f"u{width(k) // 8}")
        for k, v in zip(made.ins, sources)
    ]
    function = made.vector or made.scalar  # predicate logic has one form for both
    with np.errstate(all="ignore"):  # as the machine runs them
        result = function(*arrays)
    results = result if len(made.outs) > 1 else (result,)
    bits = [64 if d == "pred" else WIDTH[d] for d in dsts]
    got = [lane_values(r, k, b) for r, k, b in zip(results, made.outs, bits)]
    check_inlined(made, arrays, results, immediates)
    check_each_element(made, arrays, results)
    if made.scalar:
        check_each_lane(made, arrays, bits, got)
    return got


def check_each_lane(made: Pure, arrays: list, bits: list[int], expected: list[np.ndarray]):
    """The forms for numbers, a lane at a time: the function, and its source with the operands' names
    in it, in one lane with their numbers.
    """
    assert made.scalar is not None
    rows = [[_lane(a, k, lane) for a, k in zip(arrays, made.ins)] for lane in range(32)]
    results = [made.scalar(*row) for row in rows]
    if made.expr is not None:
        of_names = _of_names(made.expr, len(made.ins))
        assert [of_names(*row) for row in rows] == results
        assert eval(made.expr.format(*map(str, rows[0])), {"FULL": FULL}) == results[0]
    each = zip(*results) if len(made.outs) > 1 else (results,)
    for ones, k, b, g in zip(each, made.outs, bits, expected, strict=True):
        assert [lane_value(r, k, b) for r in ones] == g.tolist(), (made.expr, rows)


@functools.cache
def _of_names(expr: str, count: int) -> Any:
    """A function of a form's source."""
    names = [f"v{i}" for i in range(count)]
    return eval(f"lambda {', '.join(names)}: {expr.format(*names)}", {"FULL": FULL})


def check_each_element(made: Pure, arrays: list, expected: tuple):
    """Longer arrays give longer results: an element depends on nothing but its like."""
    if made.vector is None or "pred" in (*made.ins, *made.outs):
        return
    with np.errstate(all="ignore"):
        result = made.vector(*(np.concatenate((a, a[::-1], a)) for a in arrays))
    results = result if len(made.outs) > 1 else (result,)
    for got, want in zip(results, expected, strict=True):
        assert (got == np.concatenate((want, want[::-1], want))).all(), made.vexpr


def check_inlined(made: Pure, arrays: list, expected: tuple, immediates):
    """The inlined array source, with any one more operand replaced by an int, gives the same."""
    places = [i for i, k in enumerate(made.ins) if k != "pred"]
    places = [i for i in places if i not in immediates]
    if made.vexpr is None or not places:
        return
    space = {"np": np, "FULL": FULL, "as_bools": as_bools, "as_mask": as_mask}
    space |= INLINE_NAMES
    for i in places if len(places) > 1 else [-1]:
        ints = {i, *immediates} - {-1}
        mixed = [int(a[0]) if j in ints else a for j, a in enumerate(arrays)]
        whole = [np.full(32, m, arrays[j].dtype) if j in ints else m for j, m in enumerate(mixed)]
        names = {f"v{j}": m for j, m in enumerate(mixed)}
        inlined = eval(made.vexpr.format(*names), {**space, **names})
        assert np.array_equal(inlined, made.vector(*whole)), made.vexpr
        if isinstance(inlined, np.ndarray):
            assert inlined.dtype == expected[0].dtype, made.vexpr


def _lane(a, kind: str, lane: int) -> int:
    if kind == "pred":
        return FULL if a >> lane & 1 else 0
    return int(a[lane])


def fake_warp(rank: int = 0, live: int = FULL):
    return SimpleNamespace(state=SimpleNamespace(live=live), cta=SimpleNamespace(rank=rank))


def execute(opcode: str, dsts: list[str], sources: list, *values, mask: int = FULL, warp=None):
    """Results (one array of 32 a destination) of an instruction; an int source is an immediate.

    values: arrays of 32 for the sources that are registers.
    """
    ins = instruction(opcode, dsts, sources)
    made = find(opcode).factory(ins)
    rest = iter(values)
    operands = [np.full(32, s) if isinstance(s, int) else next(rest) for s in sources]
    if isinstance(made, Pure):
        immediates = [i for i, s in enumerate(sources) if isinstance(s, int)]
        results = execute_made(made, dsts, operands, immediates)
    else:
        args = [
            s
            if isinstance(s, int)
            else as_mask(v != 0)
            if s == "pred"
            else v.astype(f"u{WIDTH[s] // 8}")
            for s, v in zip(sources, operands)
        ]
        out = made(warp or fake_warp(), mask, *args)
        bits = [64 if d == "pred" else WIDTH[d] for d in dsts]
        out = out if len(dsts) > 1 else (out,)
        results = [
            lane_values(o, d if d == "pred" else "b32", b) for o, d, b in zip(out, dsts, bits)
        ]
    return results if len(dsts) > 1 else results[0]
