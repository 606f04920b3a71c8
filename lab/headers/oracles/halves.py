"""What cuda_fp16.h and cuda_bf16.h have for the device only."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from lab.headers.judge import Expected, Near, Words, is_nan, kind_of
from lab.headers.oracles import rounded
from lab.headers.programs import Call
from lab.headers.values import INFINITY, SIGN, floats

_FUSED = re.compile(r"__h(?:fma2?|cmadd)(?:_(?P<after>sat|relu|rn))?$")
_WHOLE = re.compile(r"h2?(?P<what>trunc|ceil|floor|rint)$")
_MATH = re.compile(
    r"h2?(?P<what>sqrt|rsqrt|rcp|log2|log10|log|exp2|exp10|exp|cos|sin|tanh)(?P<approx>_approx)?$"
)
WHOLE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "trunc": np.trunc,
    "ceil": np.ceil,
    "floor": np.floor,
    "rint": np.rint,
}
LOG10 = np.log(np.longdouble(10))
MATH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "log2": np.log2,
    "log10": np.log10,
    "log": np.log,
    "exp2": np.exp2,
    "exp10": lambda x: np.exp(x * LOG10),
    "exp": np.exp,
    "cos": np.cos,
    "sin": np.sin,
    "tanh": np.tanh,
}
# PTX ISA: tanh.approx.f16 is off by at most 2^-10.987, of bf16 by 2^-8.
TANH = {"f16": 2.0**-10.987, "bf16": 2.0**-8}


def _after(words: np.ndarray, kind: str, after: str | None) -> np.ndarray:
    one, negative = (
        INFINITY[kind] >> 1 & INFINITY[kind],
        (words & words.dtype.type(SIGN[kind])) != 0,
    )
    if after == "sat":
        return np.where(is_nan(words, kind) | negative, 0, np.minimum(words, one)).astype(
            words.dtype
        )
    if after == "relu":
        return np.where(negative & ~is_nan(words, kind), 0, words).astype(words.dtype)
    return words


def _fused(call: Call, given: Words, after: str | None) -> Expected:
    kind = kind_of(call, "r")
    words = rounded.arithmetic(call, given, "fma", "rn").words["r"]
    if call.function.name == "__hcmadd":  # two fused steps for each part, as the header says
        a, b, c = (floats(given[f"p{n}"], kind.kind) for n in range(3))

        def fma(*operands: np.ndarray) -> np.ndarray:
            rows = (list(map(float, row)) for row in zip(*operands, strict=True))
            return np.array(
                [rounded.computed("fma", row, kind.kind, "rn") for row in rows], kind.word
            )

        first = np.stack([fma(a[:, 0], b[:, 0], c[:, 0]), fma(a[:, 0], b[:, 1], c[:, 1])], 1)
        so_far = floats(first, kind.kind)
        real = fma(-a[:, 1], b[:, 1], so_far[:, 0])
        words = np.stack([real, fma(a[:, 1], b[:, 0], so_far[:, 1])], 1)
    return Expected({"r": _after(words, kind.kind, after)}, "exact rationals")


def words_of(values: np.ndarray, kind: str) -> np.ndarray:
    """Numbers that the kind has, as words."""
    with np.errstate(all="ignore"):
        if kind == "f16":
            return values.astype(np.float16).view(np.uint16)
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def expected(call: Call, given: Words) -> Expected | None:
    name = call.function.name
    if call.result not in ("__half", "__half2", "__nv_bfloat16", "__nv_bfloat162"):
        return None
    kind = kind_of(call, "r").kind
    if match := _FUSED.match(name):
        return _fused(call, given, match["after"])
    if match := _WHOLE.match(name):
        with np.errstate(invalid="ignore"):
            words = words_of(WHOLE[match["what"]](floats(given["p0"], kind)), kind)
        return Expected({"r": words}, "float64")
    if match := _MATH.match(name):
        with np.errstate(all="ignore"):
            exact = MATH[match["what"]](floats(given["p0"], kind).astype(np.longdouble))
        absolute = TANH[kind] if match["approx"] else 0.0
        return Expected({}, "long double", {"r": Near(exact, 1.0, absolute)})
    return None
