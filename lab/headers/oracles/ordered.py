"""The larger and the smaller of two floats, and what kind of number one is, by PTX ISA and C."""

from __future__ import annotations

import re

import numpy as np

from lab.headers.judge import Expected, Words, is_nan, kind_of
from lab.headers.programs import Call
from lab.headers.values import FLOATS, SIGN, floats

_CHOSEN = re.compile(r"(?:__h|f)?(?P<what>max|min)(?:2|f)?(?P<nan>_nan)?$")
_CLASS = re.compile(r"__(?P<what>isinf|isnan|finite|signbit)[fd]?$")


def _widened(words: np.ndarray, kind: str, to: str) -> np.ndarray:
    """Words of f32 as words of f64 where a function takes one of each."""
    if kind == to:
        return words
    return np.ascontiguousarray(floats(words, kind)).view(np.uint64)


def _chosen(call: Call, given: Words, what: str, nan: bool) -> Expected:
    """-0 is below +0; a NaN is left out, or with .NaN the result."""
    kind = kind_of(call, "r")
    sign = SIGN[kind.kind]
    operands = [_widened(given[f"p{n}"], kind_of(call, f"p{n}").kind, kind.kind) for n in (0, 1)]
    a, b = (words.astype(object) for words in operands)
    bad = [is_nan(words, kind.kind) for words in operands]
    keys = [np.where(x & sign, -1 - (x & sign - 1), x) for x in (a, b)]
    first = keys[0] >= keys[1] if what == "max" else keys[0] <= keys[1]
    found = np.where(first.astype(bool), a, b)
    canonical = sign - 1
    if nan:
        found = np.where(bad[0] | bad[1], canonical, found)
    else:
        found = np.where(bad[0], np.where(bad[1], canonical, b), np.where(bad[1], a, found))
    return Expected({"r": found.astype(kind.word)}, "PTX ISA")


def _classified(call: Call, given: Words, what: str) -> Expected:
    values = floats(given["p0"], kind_of(call, "p0").kind)
    found = {
        "isinf": np.isinf,
        "isnan": np.isnan,
        "finite": np.isfinite,
        "signbit": np.signbit,
    }[what](values)
    return Expected({"r": found.astype(kind_of(call, "r").word)}, "C")


def expected(call: Call, given: Words) -> Expected | None:
    name = call.function.name
    if (
        call.result != "void"
        and kind_of(call, "r").kind in FLOATS
        and (match := _CHOSEN.match(name))
    ):
        return _chosen(call, given, match["what"], bool(match["nan"]))
    if match := _CLASS.match(name):
        return _classified(call, given, match["what"])
    return None
