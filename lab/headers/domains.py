"""Inputs that a function does not take: what its documents leave open is not asked."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from lab.headers.programs import Call
from lab.headers.values import ENUMS, THREADS, Type, floats

NEAREST, ZERO, UP = 0, 1, 2  # cudaRoundMode


def enumerated(name: str, kind: str) -> tuple[int, ...]:
    """The values of an enumeration that a function takes; the headers assert the rounding."""
    if kind == "cudaRoundMode" and "e8m0" in name:
        return (ZERO, UP)
    if kind == "cudaRoundMode" and re.search(r"_to_fp[46]", name):
        return (NEAREST,)
    return ENUMS[kind]


def _within(low: float, high: float) -> Callable[[np.ndarray], np.ndarray]:
    """Numbers outside, and NaNs, are moved into [low, high]."""

    def move(x: np.ndarray) -> np.ndarray:
        inside = low + (high - low) * ((np.arange(x.size) * 0.6180339887498949) % 1.0)
        return np.where((x >= low) & (x <= high), x, inside.reshape(x.shape))

    return move


# name, parameter -> numbers that are asked for. lround and its kind: C leaves open what does not
# fit; CUDA gives no bound for the intrinsics elsewhere.
_FLOATS: list[tuple[str, int, Callable[[np.ndarray], np.ndarray]]] = [
    (r"l?l(?:round|rint)f?$", 0, _within(-9e18, 9e18)),
    (r"__(?:sin|cos|sincos)f$", 0, _within(-3.14159, 3.14159)),
    (r"__tanf$", 0, _within(-1.5, 1.5)),
    (r"__expf$", 0, _within(-80, 80)),
    (r"__exp10f$", 0, _within(-35, 35)),
    (r"__log(?:2|10)?f$", 0, _within(1e-30, 1e30)),
    (r"__tanhf$", 0, _within(-8, 8)),
    (r"__powf$", 0, _within(0.01, 100)),
    (r"__powf$", 1, _within(-8, 8)),
    (r"f?divide?f?$", 1, _within(1e-30, 1e30)),
    (r"__fdividef$", 1, _within(1e-30, 1e30)),
    (r"(?:__)?erfinvf?$", 0, _within(-0.999, 0.999)),
    (r"erfcinvf?$", 0, _within(1e-30, 1.999)),
    (r"normcdfinvf?$", 0, _within(1e-30, 0.999)),
    (r"erfcxf?$", 0, _within(-5, 1e4)),
    (r"cyl_bessel_i[01]f?$", 0, _within(-80, 80)),
    (r"lgammaf?$", 0, lambda x: np.where((x > -24.5) & (x < -2), 3.5, x)),
    (r"tgammaf?$", 0, lambda x: np.where(x < -30, 2.5, x)),
    (r"[jy][01n]f?$", 1, _within(0.01, 100)),
    (r"[jy][01]f?$", 0, _within(0.01, 100)),
    (r"remquof?$", 0, _within(-3, 3)),  # a quotient below 8: C asks for its low three bits
    (r"remquof?$", 1, _within(0.5, 1e3)),
    (r"r?normf?$", 1, _within(-1e3, 1e3)),
]
# Whole numbers of a parameter: a count, an order, a position.
_WHOLE: list[tuple[str, int, tuple[int, ...]]] = [
    (r"r?normf?$", 0, (1, 2, 3)),
    (r"[jy]nf?$", 0, (0, 1, 2, 3, 5, 9)),
]


def chosen(call: Call, position: int, kind: Type, words: np.ndarray) -> np.ndarray:
    """The words of an input, those that the function does not take exchanged for others."""
    name = call.function.name
    for pattern, at, values in _WHOLE:
        if at == position and re.match(pattern, name):
            numbers = np.resize(np.array(values, kind.word), (THREADS, 1))
            numbers[-max(values) :] = min(values)  # the last cells have no others behind them
            return numbers
    if kind.kind in ("f32", "f64"):
        for pattern, at, move in _FLOATS:
            if at == position and re.match(pattern, name):
                native = np.float32 if kind.kind == "f32" else np.float64
                with np.errstate(all="ignore"):
                    moved = move(floats(words, kind.kind)).astype(native)
                return np.ascontiguousarray(moved).view(kind.word)
    return words
