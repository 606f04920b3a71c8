"""C++ types as words, and the inputs that are tried."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = 512  # of a launch: each calls the function once
EDGES = 16  # the first EDGES * EDGES threads take every pair of the edges of two inputs

# The kinds of an element: f16 bf16 f32 f64, i and u with bits, and small floats by their name.
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
SIGN = {kind: 1 << exponent + mantissa for kind, (exponent, mantissa) in FLOATS.items()}
INFINITY = {kind: SIGN[kind] - (1 << mantissa) for kind, (_, mantissa) in FLOATS.items()}
SMALL = {"e5m2": 8, "e4m3": 8, "e8m0": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4}


@dataclass(frozen=True)
class Type:
    """kind: of an element. count: elements of a value. bits: that an element takes in memory."""

    kind: str
    count: int = 1
    bits: int = 0

    @property
    def word(self) -> np.dtype:
        """An element as an unsigned word."""
        return np.dtype(f"u{(self.bits or int(self.kind.lstrip('bfiu'))) // 8}")

    @property
    def size(self) -> int:
        return self.word.itemsize * self.count

    def words(self, numbers: Iterable[Any]) -> np.ndarray:
        """Whole numbers, modulo what a word holds, a value in each row."""
        top = (1 << 8 * self.word.itemsize) - 1
        found = np.array([int(number) & top for number in numbers], np.uint64)
        return found.astype(self.word).reshape(-1, self.count)


def _types() -> dict[str, Type]:
    found = {"bool": Type("bool", bits=8), "size_t": Type("u64"), "char": Type("i8")}
    for name, kind in (("__half", "f16"), ("__nv_bfloat16", "bf16")):
        pair = f"{name}2"
        found |= {name: Type(kind), f"{name}_raw": Type(kind), pair: Type(kind, 2)}
        found[f"{pair}_raw"] = Type(kind, 2)
    for name, bits in (("char", 8), ("short", 16), ("int", 32), ("long", 64), ("long long", 64)):
        found |= {name: Type(f"i{bits}"), f"unsigned {name}": Type(f"u{bits}")}
        short = name.replace(" ", "")
        for count in (2, 3, 4):
            found |= {f"{short}{count}": Type(f"i{bits}", count)}
            found |= {f"u{short}{count}": Type(f"u{bits}", count)}
    found["signed char"] = Type("i8")
    for name, kind in (("float", "f32"), ("double", "f64")):
        found |= {name: Type(kind)} | {f"{name}{count}": Type(kind, count) for count in (2, 3, 4)}
    found |= {f"double4_{align}a": Type("f64", 4) for align in (16, 32)}
    for kind, bits in SMALL.items():
        family = f"fp{bits}"
        found[f"__nv_{family}_{kind}"] = Type(kind, bits=8)
        # Two codes of four bits share a byte; the others have a byte each.
        for count in (2, 4):
            shared = Type(f"u{4 * count}") if bits == 4 else Type(kind, count, 8)
            found[f"__nv_{family}x{count}_{kind}"] = shared
    for bits in (8, 6, 4):
        found[f"__nv_fp{bits}_storage_t"] = Type(f"code{bits}", bits=8)
        pair = Type("u8") if bits == 4 else Type(f"code{bits}", 2, 8)
        found[f"__nv_fp{bits}x2_storage_t"] = pair
    return found


TYPES = _types()
# Enumerations are inputs of their own: the values that they have.
ENUMS = {
    "cudaRoundMode": (0, 1, 2, 3),  # nearest, zero, +inf, -inf
    "__nv_saturation_t": (0, 1),
    "__nv_fp8_interpretation_t": (0, 1),
    "__nv_fp6_interpretation_t": (0, 1),
    "__nv_fp4_interpretation_t": (0,),
}


def float_edges(kind: str) -> list[int]:
    """Zeros, ones, infinities, a NaN, the ends of normal and subnormal numbers, halves."""
    exponent, mantissa = FLOATS[kind]
    sign, infinity = SIGN[kind], INFINITY[kind]
    one = ((1 << exponent - 1) - 1) << mantissa
    half, two = one - (1 << mantissa), one + (1 << mantissa)
    five_halves = two + (1 << mantissa - 2)
    magnitudes = [0, one, infinity, infinity - 1, 1, 1 << mantissa, five_halves, half]
    edges = [word for m in magnitudes for word in (m, m | sign)]
    edges[15] = infinity | 1 << mantissa - 1  # a NaN in the place of -1/2
    return edges


def edges(kind: str) -> list[int]:
    if kind in FLOATS:
        return float_edges(kind)
    if kind[0] in "iu" and kind[1:].isdigit():
        bits = int(kind[1:])
        top, mask = 1 << bits - 1, (1 << bits) - 1
        chosen = [
            0,
            1,
            2,
            3,
            5,
            7,
            31,
            32,
            63,
            top - 1,
            top,
            top + 1,
            mask,
            mask - 1,
            0x55,
            top >> 1,
        ]
        return [word & mask for word in chosen]
    if kind == "bool":
        return [0, 1] * (EDGES // 2)
    bits = int(kind[4:]) if kind.startswith("code") else SMALL[kind]
    return [(code * ((1 << bits) - 1)) // (EDGES - 1) for code in range(EDGES)]


def _random(kind: str, draw: np.random.Generator, size: int, word: np.dtype) -> np.ndarray:
    if kind == "bool":
        return draw.integers(0, 2, size).astype(word)
    if kind in SMALL or kind.startswith("code"):
        bits = SMALL.get(kind) or int(kind[4:])
        return draw.integers(0, 1 << bits, size).astype(word)
    words = np.frombuffer(draw.bytes(size * word.itemsize), word).copy()
    if kind in FLOATS:  # half of them near one, where most functions are used
        exponent, mantissa = FLOATS[kind]
        near = (1 << exponent - 1) - 1 + draw.integers(-4, 5, size)
        fraction = words & word.type((1 << mantissa) - 1)
        sign = words & word.type(SIGN[kind])
        moderate = sign | fraction | (near.astype(word) << word.type(mantissa))
        words = np.where(draw.random(size) < 0.5, words, moderate)
    return words


def inputs(kind: Type, position: int, seed: str) -> np.ndarray:
    """Words for THREADS calls, shape (THREADS, count). position: of the parameter; the first two
    take each pair of edges.
    """
    draw = np.random.default_rng(zlib.crc32(f"{seed}/{position}".encode()))
    found = _random(kind.kind, draw, THREADS * kind.count, kind.word).reshape(THREADS, kind.count)
    table = np.array(edges(kind.kind), np.uint64).astype(kind.word)
    i = np.arange(EDGES * EDGES)
    pick = (i % EDGES, i // EDGES, (i * 7 + 3) % EDGES)[min(position, 2)]
    for element in range(kind.count):
        found[: EDGES * EDGES, element] = table[(pick + 5 * element) % EDGES]
    return found


def floats(words: np.ndarray, kind: str) -> np.ndarray:
    """Words of a float kind as float64 (exact)."""
    native = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.float32}[kind]
    with np.errstate(all="ignore"):
        words = words.astype(np.uint32) << 16 if kind == "bf16" else words
        return words.view(native).astype(np.float64)


def integers(words: np.ndarray, kind: str) -> np.ndarray:
    """Words of an integer kind as Python's integers."""
    return words.view(np.dtype(f"{kind[0]}{int(kind[1:]) // 8}")).astype(object)
