"""Integer intrinsics, by Python's integers; from the CUDA Math API."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from lab.headers.judge import Expected, Words, kind_of
from lab.headers.programs import Call
from lab.headers.values import integers

Function = Callable[..., Any]
FULL = 0xFFFFFFFF


def _leading(bits: int) -> Function:
    return lambda x: bits - (x & (1 << bits) - 1).bit_length()


def _first(bits: int) -> Function:
    return lambda x: (x & -x).bit_length() if x & (1 << bits) - 1 else 0


def _reversed(bits: int) -> Function:
    return lambda x: int(f"{x:0{bits}b}"[::-1], 2)


def _low24(x: int) -> int:
    return ((x & 0xFFFFFF) ^ 0x800000) - 0x800000


def _permuted(x: int, y: int, s: int) -> int:
    """PTX prmt in its default mode: a nibble picks a byte, its top bit the byte's sign instead."""
    source, found = x | y << 32, 0
    for i in range(4):
        nibble = s >> 4 * i & 7  # __byte_perm ignores the sign bit
        found |= (source >> 8 * nibble & 0xFF) << 8 * i
    return found


def _find_nth_set(mask: int, base: int, offset: int) -> int:
    """PTX fns: the n-th set bit from a base, upwards for n > 0, downwards for n < 0."""
    if base > 31:
        return FULL
    if offset == 0:
        return base if mask >> base & 1 else FULL
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    hits = [place for place in places if mask >> place & 1]
    return hits[abs(offset) - 1] if abs(offset) <= len(hits) else FULL


def _funnel(left: bool, clamp: bool) -> Function:
    def shift(low: int, high: int, amount: int) -> int:
        by = min(amount, 32) if clamp else amount & 31
        pair = high << 32 | low
        return (pair << by >> 32 if left else pair >> by) & FULL

    return shift


SCALARS: dict[str, Function] = {
    "__mulhi": lambda x, y: x * y >> 32,
    "__umulhi": lambda x, y: x * y >> 32,
    "__mul64hi": lambda x, y: x * y >> 64,
    "__umul64hi": lambda x, y: x * y >> 64,
    "__mul24": lambda x, y: _low24(x) * _low24(y),
    "__umul24": lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF),
    "__sad": lambda x, y, z: abs(x - y) + z,
    "__usad": lambda x, y, z: abs(x - y) + z,
    "__clz": _leading(32),
    "__clzll": _leading(64),
    "__ffs": _first(32),
    "__ffsll": _first(64),
    "__popc": lambda x: x.bit_count(),
    "__popcll": lambda x: x.bit_count(),
    "__brev": _reversed(32),
    "__brevll": _reversed(64),
    "__byte_perm": _permuted,
    "__hadd": lambda x, y: x + y >> 1,
    "__rhadd": lambda x, y: x + y + 1 >> 1,
    "__uhadd": lambda x, y: x + y >> 1,
    "__urhadd": lambda x, y: x + y + 1 >> 1,
    "__fns": _find_nth_set,
    "__funnelshift_l": _funnel(left=True, clamp=False),
    "__funnelshift_lc": _funnel(left=True, clamp=True),
    "__funnelshift_r": _funnel(left=False, clamp=False),
    "__funnelshift_rc": _funnel(left=False, clamp=True),
    "abs": abs,
    "labs": abs,
    "llabs": abs,
    "__nv_bswap16": lambda x: int.from_bytes(x.to_bytes(2, "little"), "big"),
    "__nv_bswap32": lambda x: int.from_bytes(x.to_bytes(4, "little"), "big"),
    "__nv_bswap64": lambda x: int.from_bytes(x.to_bytes(8, "little"), "big"),
    "umin": min,
    "umax": max,
    "llmin": min,
    "llmax": max,
    "ullmin": min,
    "ullmax": max,
}
_REINTERPRETED = re.compile(
    r"__(?:int|uint|float|longlong|double|u?short|half|bfloat16)_as_(?:int|uint|float|longlong"
    r"|double|u?short|half|bfloat16)$"
)
_PACKED = re.compile(
    r"__v(?P<what>absdiff|abs|add|avg|hadd|cmp|max|min|set|sad|sub|neg)(?P<how>[a-z]*)(?P<n>[24])$"
)
_FUSED = re.compile(
    r"__vi(?P<add>add)?(?P<what>max|min)(?P<three>3)?_(?P<type>[su])(?P<bits>32|16)(?:x2)?(?P<relu>_relu)?$"
)
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
}


def _wrapped(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> bits - 1 else value


def _saturated(value: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def _packed(what: str, how: str, bits: int) -> Callable[..., int]:
    """Of one element of a word, the element as a number of `bits`; how: the letters behind."""
    signed = what in ("abs", "neg") or how.endswith(("ss", "s")) and not how.endswith("us")
    top, clamp = (1 << bits) - 1, len(how) >= 2 and how[-2:] in ("ss", "us")

    def element(a: int, b: int = 0) -> int:
        a, b = _wrapped(a, bits, signed), _wrapped(b, bits, signed)
        if what in ("cmp", "set"):
            return COMPARED[how[:2]](a, b) * (top if what == "cmp" else 1)
        value = {
            "abs": abs(a),
            "neg": -a,
            "add": a + b,
            "sub": a - b,
            "avg": a + b + (a + b >= 0) >> 1,  # PTX ISA, vavrg
            "hadd": a + b >> 1,
            "max": max(a, b),
            "min": min(a, b),
            "absdiff": abs(a - b),
            "sad": abs(a - b),
        }[what]
        return _saturated(value, bits, signed) if clamp else value

    return element


def _of_packed(match: re.Match[str]) -> Function:
    count = int(match["n"])
    bits, what = 32 // count, match["what"]
    element = _packed(what, match["how"], bits)

    def whole(*words: int) -> int:
        parts = [element(*(w >> bits * i & (1 << bits) - 1 for w in words)) for i in range(count)]
        if what == "sad":
            return sum(parts)
        return sum((part & (1 << bits) - 1) << bits * i for i, part in enumerate(parts))

    return whole


def _of_fused(match: re.Match[str]) -> Function:
    """DPX: min and max of two or three, of a sum and a number, not below zero where asked."""
    bits, signed = int(match["bits"]), match["type"] == "s"
    choose = max if match["what"] == "max" else min

    def element(*values: int) -> int:
        if match["add"]:
            values = (_wrapped(values[0] + values[1], bits, signed), values[2])
        found = choose(values)
        return max(found, 0) if match["relu"] else found

    def whole(*words: int) -> int:
        found = 0
        for i in range(32 // bits):
            part = element(*(_wrapped(w >> bits * i, bits, signed) for w in words))
            found |= (part & (1 << bits) - 1) << bits * i
        return found

    return whole


def _dot(call: Call) -> Function | None:
    """__dp4a, __dp2a_lo, __dp2a_hi on words."""
    name, signed = call.function.name, call.result == "int"

    def dot(a: int, b: int, c: int) -> int:
        wide, half = (8, 0) if name == "__dp4a" else (16, 2 * name.endswith("_hi"))
        for i in range(32 // wide):
            left = _wrapped(a >> wide * i, wide, signed)
            c += left * _wrapped(b >> 8 * (i + half), 8, signed)
        return c

    return dot if name.startswith("__dp") else None


def _function(call: Call) -> Function | None:
    name = call.function.name
    if "half" in str(call.function.parameters) or "bfloat" in str(call.function.parameters):
        return None
    if match := _PACKED.match(name):
        return _of_packed(match)
    if match := _FUSED.match(name):
        return _of_fused(match)
    if name in ("min", "max") and call.result != "void" and kind_of(call, "r").kind[0] in "iu":
        return min if name == "min" else max
    return SCALARS.get(name)


def _whole_words(call: Call, given: Words) -> list[np.ndarray]:
    """Each input as one integer a thread; elements of a vector are put together."""
    found = []
    for n in range(len(call.function.parameters)):
        words, kind = given[f"p{n}"], kind_of(call, f"p{n}")
        if kind.count > 1:
            found.append(np.ascontiguousarray(words).view(np.uint32)[:, 0].astype(object))
        else:
            found.append(integers(words, kind.kind)[:, 0])
    return found


def expected(call: Call, given: Words) -> Expected | None:
    function = _dot(call) or _function(call)
    if _REINTERPRETED.match(call.function.name):
        return Expected({"r": given["p0"]}, "the same bits")
    if function is None or any(role != "in" for role in call.roles):
        return None
    kind = kind_of(call, "r")
    if kind.kind[0] not in "iu":
        return None
    bits = kind.word.itemsize * 8
    columns = _whole_words(call, given)
    # min and max of mixed signs convert to the result's type first, as C++ does.
    if call.function.name in ("min", "max"):
        columns = [
            np.array([_wrapped(v, bits, kind.kind[0] == "i") for v in c], object) for c in columns
        ]
    found = (function(*row) for row in zip(*columns, strict=True))
    return Expected({"r": kind.words(found)}, "integers")
