"""Loads and stores with a cache's name, and atomics: each thread has a cell of its own."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from lab.headers.judge import Expected, Words, kind_of
from lab.headers.oracles.rounded import computed
from lab.headers.programs import Call
from lab.headers.values import FLOATS, floats, integers

_LOAD = re.compile(r"__ld(?:g|cg|ca|cs|lu|cv)$")
_STORE = re.compile(r"__st(?:wb|cg|cs|wt)$")
_ATOMIC = re.compile(r"atomic(?P<what>[A-Z]\w+?)(?:_block|_system)?$")
UPDATES: dict[str, Callable[..., int]] = {
    "Add": lambda old, v: old + v,
    "Sub": lambda old, v: old - v,
    "Exch": lambda old, v: v,
    "Min": min,
    "Max": max,
    "Inc": lambda old, v: 0 if old >= v else old + 1,
    "Dec": lambda old, v: v if old == 0 or old > v else old - 1,
    "And": lambda old, v: old & v,
    "Or": lambda old, v: old | v,
    "Xor": lambda old, v: old ^ v,
    "CAS": lambda old, compare, v: v if old == compare else old,
}


def _flushed(words: np.ndarray, kind: str) -> np.ndarray:
    """PTX ISA, atom: add.f32 on global memory takes subnormal numbers for zeros of their sign."""
    if kind != "f32":
        return words
    return np.where(words & np.uint32(0x7F800000), words, words & np.uint32(0x80000000))


def _updated(call: Call, given: Words, what: str) -> np.ndarray:
    kind = kind_of(call, "p0")
    operands = [given[f"p{n}"] for n in range(len(call.function.parameters))]
    if what == "Exch":
        return operands[1]
    if kind.kind in FLOATS:
        columns = [floats(_flushed(w, kind.kind), kind.kind).reshape(-1) for w in operands]
        sums = [computed("add", [float(a), float(b)], kind.kind, "rn") for a, b in zip(*columns)]
        return _flushed(kind.words(sums), kind.kind)
    columns = [integers(words, kind.kind).reshape(-1) for words in operands]
    return kind.words(UPDATES[what](*row) for row in zip(*columns, strict=True))


def expected(call: Call, given: Words) -> Expected | None:
    name = call.function.name
    if _LOAD.match(name):
        return Expected({"r": given["p0"]}, "the same bits")
    if _STORE.match(name):
        return Expected({"p0": given["p1"]}, "the same bits")
    match = _ATOMIC.match(name)
    if match is None or match["what"] not in UPDATES or kind_of(call, "p0").kind == "":
        return None
    words = {"p0": _updated(call, given, match["what"])}
    if call.result != "void":
        words["r"] = given["p0"]
    return Expected(words, "CUDA guide, atomic functions")
