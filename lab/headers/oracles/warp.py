"""Shuffles, votes, matches and reductions of a warp, by PTX ISA 9.7.9 and 9.7.13."""

from __future__ import annotations

import re
from functools import reduce

import numpy as np

from lab.headers.judge import Expected, Words, kind_of
from lab.headers.programs import Call
from lab.headers.values import THREADS, integers

_SHUFFLE = re.compile(r"__shfl(?P<how>_up|_down|_xor)?_sync$")
_VOTE = re.compile(r"__(?P<what>all|any|uni|ballot)_sync$")
_REDUCED = re.compile(r"__reduce_(?P<what>add|min|max|and|or|xor)_sync$")
_MATCH = re.compile(r"__match_(?P<what>any|all)_sync$")


def _shuffled(call: Call, given: Words, how: str | None) -> Expected:
    names = [p.name for p in call.function.parameters]
    value = given["p1"]
    step = integers(given["p2"], kind_of(call, "p2").kind)[:, 0]
    width = given[f"p{names.index('width')}"][:, 0] if "width" in names else None
    found = value.copy()
    for thread in range(THREADS):
        lane, first = thread % 32, thread - thread % 32
        span = int(width[thread]) if width is not None else 32
        low = lane - lane % span
        at = {
            None: low + int(step[thread]) % span,
            "_up": lane - (int(step[thread]) & 31),
            "_down": lane + (int(step[thread]) & 31),
            "_xor": lane ^ (int(step[thread]) & 31),
        }[how]
        inside = at >= low if how == "_up" else at < low + span
        found[thread] = value[first + at] if inside else value[thread]
    return Expected({"r": found}, "PTX ISA")


def _warps(words: np.ndarray) -> list[list[int]]:
    return words.reshape(-1, 32).tolist()


def _spread(call: Call, by_warp: list[int] | list[list[int]]) -> np.ndarray:
    """A number for each warp, or one for each lane, as words of the result."""
    rows = (row if isinstance(row, list) else [row] * 32 for row in by_warp)
    return kind_of(call, "r").words(v for row in rows for v in row)


def _bits(flags: list[bool]) -> int:
    return sum(1 << lane for lane, flag in enumerate(flags) if flag)


def _voted(call: Call, given: Words, what: str) -> Expected:
    rows = [[bool(v) for v in row] for row in _warps(given["p1"])]
    found = {
        "all": [int(all(row)) for row in rows],
        "any": [int(any(row)) for row in rows],
        "uni": [int(len(set(row)) == 1) for row in rows],
        "ballot": [_bits(row) for row in rows],
    }[what]
    return Expected({"r": _spread(call, found)}, "PTX ISA")


def _reduced(call: Call, given: Words, what: str) -> Expected:
    step = {
        "add": lambda a, b: a + b,
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }[what]
    values = integers(given["p1"], kind_of(call, "p1").kind).reshape(-1, 32)
    return Expected({"r": _spread(call, [reduce(step, row) for row in values])}, "PTX ISA")


def _matched(call: Call, given: Words, what: str) -> Expected:
    rows = _warps(given["p1"])  # the bits are compared
    if what == "any":
        found = [[_bits([other == v for other in row]) for v in row] for row in rows]
        return Expected({"r": _spread(call, found)}, "PTX ISA")
    same = [len(set(row)) == 1 for row in rows]
    flags = np.repeat(np.array(same, np.uint32), 32)[:, None]
    masks = _spread(call, [0xFFFFFFFF if one else 0 for one in same])
    return Expected({"r": masks, "p2": flags}, "PTX ISA")


def _of_block(call: Call, given: Words, what: str) -> Expected:
    """The launch has blocks of 128."""
    blocks = given["p0"].reshape(-1, 128) != 0
    one = {"count": blocks.sum(1), "and": blocks.all(1), "or": blocks.any(1)}[what]
    words = np.repeat(one, 128).astype(kind_of(call, "r").word)[:, None]
    return Expected({"r": words}, "PTX ISA")


def expected(call: Call, given: Words) -> Expected | None:
    name = call.function.name
    if match := _SHUFFLE.match(name):
        return _shuffled(call, given, match["how"])
    if match := _VOTE.match(name):
        return _voted(call, given, match["what"])
    if match := _REDUCED.match(name):
        return _reduced(call, given, match["what"])
    if match := _MATCH.match(name):
        return _matched(call, given, match["what"])
    if match := re.match(r"(?:__)?syncthreads_(count|and|or)$", name):
        return _of_block(call, given, match[1])
    return None
