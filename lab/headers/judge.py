"""Words beside words: what a kernel gave in the emulator, and what an independent source says."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from b200.chip.gpu import Gpu
from b200.errors import EmulatorError
from lab import exact_rounding
from lab.headers.domains import chosen, enumerated
from lab.headers.programs import Call
from lab.headers.values import (
    ENUMS,
    FLOATS,
    INFINITY,
    SIGN,
    THREADS,
    TYPES,
    Type,
    floats,
    inputs,
)

Words = dict[str, np.ndarray]  # "p0", "p1", .., "r": (THREADS, count) words


@dataclass(frozen=True)
class Near:
    """exact: before rounding, as long double. ulp: a documented bound in steps from the correctly
    rounded word; absolute: another one, either is enough (arrays or one number; 0 for none).
    """

    exact: np.ndarray
    ulp: np.ndarray | float
    absolute: np.ndarray | float = 0.0


@dataclass(frozen=True)
class Expected:
    """What must come out: words by array, or numbers that it must be near. source: of the words."""

    words: Words
    source: str
    near: Mapping[str, Near] = field(default_factory=dict)


def kind_of(call: Call, array: str) -> Type:
    if array == "r":
        return TYPES[call.result]
    kind = call.function.parameters[int(array[1:])].type
    return Type("i32") if kind in ENUMS else TYPES[kind]


def arrays(call: Call) -> Words:
    """Inputs for THREADS calls, and zeros for what is written."""
    found: Words = {}
    for n, (parameter, role) in enumerate(zip(call.function.parameters, call.roles, strict=True)):
        name = f"p{n}"
        if role == "mask":
            continue
        kind = kind_of(call, name)
        if role == "out":
            found[name] = np.zeros((THREADS, kind.count), kind.word)
        elif parameter.type in ENUMS:
            values = np.array(enumerated(call.name, parameter.type), kind.word)
            found[name] = values[np.arange(THREADS) // (3 * n + 1) % len(values)][:, None]
        elif role == "warp":
            found[name] = _of_warps(parameter.name, kind)
        else:
            found[name] = chosen(call, n, kind, inputs(kind, n, call.name))
    if call.result != "void":
        kind = kind_of(call, "r")
        found["r"] = np.zeros((THREADS, kind.count), kind.word)
    return found


def _of_warps(name: str, kind: Type) -> np.ndarray:
    """Numbers that all lanes of a warp agree on."""
    warp = np.arange(THREADS) // 32
    values = 32 >> warp % 4 if name == "width" else (warp * 5 + 1) % 32
    return values.astype(kind.word)[:, None]


def _aligned(words: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 32 bytes, as cudaMalloc gives and double4_32a asks for."""
    room = np.empty(words.nbytes + 32, np.uint8)
    start = -room.ctypes.data % 32
    held = room[start : start + words.nbytes].view(words.dtype).reshape(words.shape)
    held[:] = words
    return held


def run(gpu: Gpu, ptx: str, kernel: str, given: Words) -> Words | str:
    """The arrays after the launch, or why the emulator refuses it."""
    held = {name: _aligned(words) for name, words in given.items()}
    try:
        gpu.launch(ptx, kernel, (THREADS // 128, 1, 1), (128, 1, 1), args=list(held.values()))
    except EmulatorError as error:
        return str(error).splitlines()[0]
    return held


def on_host(library: Path) -> Callable[[Call, str, Words], Expected]:
    """What the header's own host path says."""
    functions = ctypes.CDLL(str(library))

    def call_host(call: Call, name: str, given: Words) -> Expected:
        held = {array: words.copy() for array, words in given.items()}
        addresses = [ctypes.c_void_p(words.ctypes.data) for words in held.values()]
        getattr(functions, name)(*addresses, THREADS)
        return Expected(held, "host path")

    return call_host


def is_nan(words: np.ndarray, kind: str) -> np.ndarray:
    if kind in FLOATS:
        return (words & words.dtype.type(SIGN[kind] - 1)) > words.dtype.type(INFINITY[kind])
    if kind in ("e4m3", "e5m2"):
        return (words & 0x7F) > (0x7E if kind == "e4m3" else 0x7C)
    return words == 0xFF if kind == "e8m0" else np.zeros(words.shape, bool)


def ordered(words: np.ndarray, kind: str) -> np.ndarray:
    """Words of a float kind on a line on which neighbours differ by one; both zeros are 0."""
    sign = words.dtype.type(SIGN[kind])
    magnitude = (words & (sign - words.dtype.type(1))).astype(object)
    return np.where(words & sign, -magnitude, magnitude)


def difference(found: np.ndarray, wanted: np.ndarray, kind: str) -> np.ndarray:
    """How many steps each word is off; NaNs are alike whatever their bits."""
    both = is_nan(found, kind) & is_nan(wanted, kind)
    same = (found == wanted) | both
    if kind in FLOATS:
        steps = np.abs(ordered(found, kind) - ordered(wanted, kind)).astype(float)
        steps = np.where(is_nan(found, kind) != is_nan(wanted, kind), np.inf, steps)
    else:
        steps = np.full(found.shape, np.inf)
    zeros = (steps == 0) & ~same  # 0 and -0
    return np.where(same, 0.0, np.where(zeros, 0.5, steps))


def rounded(exact: np.ndarray, kind: Type) -> np.ndarray:
    """Long doubles as the nearest words of a kind."""
    with np.errstate(invalid="ignore", over="ignore"):
        head = exact.astype(np.float64)
        rest = np.where(np.isfinite(head), exact - head, 0).astype(np.float64)
    found = []
    for high, low, beyond in zip(head.flat, rest.flat, exact.flat, strict=True):
        if math.isfinite(high):
            value = Fraction(high) + Fraction(low)
            negative = bool(np.signbit(beyond))
            found.append(exact_rounding.nearest(value, kind.kind, "rn", negative))
        else:
            found.append(exact_rounding.special(high, kind.kind))
    return kind.words(found).reshape(exact.shape)


@dataclass(frozen=True)
class Judgement:
    """wrong: the first word that is out of bounds, "" if none is. steps: the largest difference
    from the correctly rounded word; bound: of what is documented, 0 for exact words.
    """

    wrong: str = ""
    steps: float = 0.0
    bound: float = 0.0
    absolute: float = 0.0


def judge(call: Call, given: Words, found: Words, expected: Expected) -> Judgement:
    """Held against what is expected, array by array."""
    largest, bound, absolute = 0.0, 0.0, 0.0
    for array in (*expected.words, *expected.near):
        kind, near = kind_of(call, array), expected.near.get(array)
        wanted = rounded(near.exact, kind) if near else expected.words[array]
        steps = difference(found[array], wanted, kind.kind)
        good = steps == 0
        if near is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                off = np.abs(floats(found[array], kind.kind).astype(np.longdouble) - near.exact)
            good |= (steps <= near.ulp) | (off <= near.absolute)
            bound = max(bound, float(np.max(near.ulp)))
            absolute = max(absolute, float(np.max(near.absolute)))
            counted = np.where(steps <= np.max(near.ulp), steps, 0)
            largest = max(largest, float(counted.max()))
        if not good.all():
            return Judgement(_told(call, given, array, found, wanted, ~good), math.inf, bound)
    return Judgement("", math.ceil(largest), bound, absolute)


def _told(
    call: Call, given: Words, array: str, found: Words, wanted: np.ndarray, bad: np.ndarray
) -> str:
    thread, element = map(int, np.argwhere(bad)[0])
    of = [
        "/".join(f"{int(word):#x}" for word in given[f"p{n}"][thread])
        for n, role in enumerate(call.roles)
        if role not in ("mask", "out")
    ]
    got, right = found[array][thread, element], wanted[thread, element]
    return f"of {', '.join(of)}: {int(got):#x}, expected {int(right):#x} ({int(bad.sum())} words)"
