"""atom and red on global, shared and generic addresses (PTX ISA 9.7.13.5, 9.7.13.6).

The lanes of one instruction take turns, lowest first. f32 addition to global memory flushes
subnormal inputs and results to zero of their sign, to shared memory it keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from b200.chip.memory.loads_stores import (
    halves,
    joined,
    memory_scope,
    order_of,
    policies_of,
    space_of,
)
from b200.chip.memory.places import address_array, by_window, spans
from b200.chip.memory.reductions import on_patterns
from b200.effects import Updates
from b200.program.module import SINK, TYPE_BITS, Instr, Vec
from b200.registry import DTYPES, LaneValues, Run, active, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


def _combine(op: str, kind: str, flush: bool) -> Callable[..., np.ndarray]:
    """f(old, b, c) -> new on arrays of elements of the kind's unsigned dtype."""
    function = None if op in ("exch", "cas") else on_patterns(op, kind.removesuffix("x2"), flush)

    def combine(o: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
        if function is not None:
            return function(o, b)
        if op == "exch":
            return b
        assert c is not None
        return np.where((o == b).all(axis=1, keepdims=True), c, o)

    return combine


def _in_turn(op: str, kind: str) -> Callable[[int, int, int], int] | None:
    """The same on Python's ints, as many lanes at one place are faster one by one; None for floats
    and for elements of 128 bits.
    """
    width = TYPE_BITS[kind]
    if "f" in kind or width > 64:
        return None
    ones, sign = (1 << width) - 1, 1 << width - 1 if kind[0] == "s" else 0
    table: dict[str, Callable[[int, int, int], int]] = {
        "add": lambda o, b, c: o + b & ones,
        "and": lambda o, b, c: o & b,
        "or": lambda o, b, c: o | b,
        "xor": lambda o, b, c: o ^ b,
        "exch": lambda o, b, c: b,
        "cas": lambda o, b, c: c if o == b else o,
        "min": lambda o, b, c: o if o ^ sign < b ^ sign else b,
        "max": lambda o, b, c: b if o ^ sign < b ^ sign else o,
        "inc": lambda o, b, c: 0 if o >= b else o + 1,
        "dec": lambda o, b, c: b if o == 0 or o > b else o - 1,
    }
    return table[op]


_ATOMIC_OPS = ("add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec")


def _meet(offsets: np.ndarray) -> bool:
    """Whether some lanes have one place."""
    return offsets.size > 1 and len(set(offsets.tolist())) != offsets.size


def _each_in_turn(
    function: Callable[[int, int, int], int],
    data: np.ndarray,
    offsets: np.ndarray,
    values: tuple[np.ndarray, np.ndarray | None],
    dtype: np.dtype,
) -> tuple[list[int], bool]:
    """Lanes update elements at these bytes of `data` in turn. values: their second and third
    operands. Returns what each has found, and whether any has changed it.
    """
    given, third = (None if v is None else v.tolist() for v in values)
    assert given is not None
    items = {at: int(data[at : at + dtype.itemsize].view(dtype)[0]) for at in set(offsets.tolist())}
    found: list[int] = []
    changed = False
    for at, b, c in zip(offsets.tolist(), given, third or given):
        found.append(old := items[at])
        items[at] = new = function(old, b, c)
        changed |= new != old
    if changed:
        for at, item in items.items():
            data[at : at + dtype.itemsize] = np.array([item], dtype).view(np.uint8)
    return found, changed


def _elements(value: LaneValues | tuple[LaneValues, ...], dtype: DTypeLike) -> np.ndarray:
    """An operand as [32 lanes, elements]."""
    return np.stack([lanes(x, dtype) for x in (value if isinstance(value, tuple) else (value,))], 1)


def _atomic(ins: Instr):
    """Read-modify-write of the active lanes, lowest first; returns the old values."""
    kind, space = ins.types[-1], space_of(ins)
    op = ins.one(*_ATOMIC_OPS)
    one_by_one = _in_turn(op, kind)
    to_global, to_shared = (_combine(op, kind, flush) for flush in (op == "add", False))
    dtype, size = np.dtype(DTYPES[min(TYPE_BITS[kind], 64)]), TYPE_BITS[kind] // 8
    source = ins.operands[2 if ins.mods[0] == "atom" else 1]
    n = len(source.items) if isinstance(source, Vec) else 1
    if wide := kind == "b128":
        n, size = 2, 8

    def run(
        warp: Fragment,
        mask: int,
        address: LaneValues,
        b: Any,
        c: Any = None,
        policy: LaneValues | None = None,
    ):
        changed = False
        addresses = address_array(address)
        given = _elements(halves(b) if wide else b, dtype)
        third = _elements(halves(c) if wide else c, dtype) if op == "cas" else None
        old = np.zeros((32, n), dtype)
        for named, in_space, lanes_in in by_window(space, addresses, active(mask)):
            combine = to_global if named == "global" else to_shared
            for data, offsets, which in spans(warp, named, in_space, lanes_in, n * size):
                turns = [slice(None)]  # lanes go at once where no two have one place
                if meet := _meet(offsets):
                    turns = [slice(i, i + 1) for i in range(offsets.size)]
                if n == 1 and one_by_one is not None and meet:
                    rest = None if third is None else third[which, 0]
                    values = given[which, 0], rest
                    old[which, 0], new = _each_in_turn(one_by_one, data, offsets, values, dtype)
                    changed |= new
                    continue
                for turn in turns:
                    i, places = which[turn], offsets[turn][:, None] + np.arange(n * size)
                    old[i] = now = data[places].view(dtype)
                    new = combine(now, given[i], None if third is None else third[i])
                    if (new != now).any():
                        changed = True
                        data[places] = np.ascontiguousarray(new, dtype).view(np.uint8)
        if changed:
            warp.spin = None
        result = tuple(np.ascontiguousarray(old[:, j]) for j in range(n))
        return joined(result) if wide else result if n > 1 else result[0]

    return run


def _updates(ins: Instr) -> Updates:
    kind, atom = ins.types[-1], ins.mods[0] == "atom"
    data = ins.operands[2 if atom else 1]
    return Updates(
        order=order_of(ins, "relaxed"),
        scope=memory_scope(ins),
        space=space_of(ins),
        nbytes=(len(data.items) if isinstance(data, Vec) else 1) * TYPE_BITS[kind] // 8,
        bits=TYPE_BITS[kind],
        policies=policies_of(ins, "L2"),
        operation=ins.one(*_ATOMIC_OPS),
        floats="f" in kind,
        returns=atom and ins.operands[0] is not SINK,
    )


@warp("atom", states=_updates, out=1)
def atom(ins: Instr) -> Run:
    """atom{.sem}{.scope}{.space}.op{.level::cache_hint}{.v}.type d, [a], b{, c}"""
    return _atomic(ins)


@warp("red", states=_updates)
def red(ins: Instr) -> Run:
    """red{.sem}{.scope}{.space}.op{.v}.type [a], b"""
    return _atomic(ins)
