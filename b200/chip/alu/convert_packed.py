"""cvt to and from packed and small formats, cvt.pack (PTX ISA 9.7.9.21, 9.7.9.22).

A pair holds the first operand's value in its upper half: for d = cvt(a, b), b is the low one.
"""

from __future__ import annotations

import functools

import numpy as np

from b200 import formats
from b200.chip.alu import pipes
from b200.chip.alu.build import bounds, build, ones, width
from b200.chip.alu.rounding import FLOATS, canonical, clamp_finite, encode, rectify
from b200.program.module import Instr
from b200.registry import Narrowing, Pure, pure

NARROW = {"e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m3x2": "e2m3", "e3m2x2": "e3m2", "e2m1x2": "e2m1"}
FOURS = {name[:-2] + "x4": name[:-2] for name in NARROW}
SCALES = {"ue8m0x2": "ue8m0"}
SMALL_TYPES = (*NARROW, *FOURS, *SCALES, "f16x2", "bf16x2", "tf32")


def convert_packed(ins: Instr) -> Pure:
    """Any cvt that has one of SMALL_TYPES as a type."""
    source = ins.types[-1]
    target = ins.types[-2]
    if ins.has("rs"):
        return _stochastic(ins, target)
    if target == "tf32":
        return _to_tf32(ins)
    if target in NARROW or target in SCALES:
        return _to_small(ins, source, target)
    if source == "f32":
        return _to_half_pair(ins, target)
    return _from_small(ins, source, target)


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements of two operands, b first, lane by lane."""
    both = np.empty((len(a), 2), a.dtype)
    both[:, 0], both[:, 1] = b, a
    return both.reshape(-1)


def _to_half_pair(ins: Instr, target: str) -> Pure:
    """cvt.{rn,rz}{.relu}{.satfinite}.{f16x2,bf16x2}.f32 d, a, b."""
    mode = ins.one("rn", "rz")
    relu, finite = ins.has("relu"), ins.has("satfinite")
    form, f32 = FLOATS[target.removesuffix("x2")], FLOATS["f32"]

    def vector(a: np.ndarray, b: np.ndarray):
        both = _pair(a, b)
        if form.dtype is not None and mode == "rn":
            r = canonical(both.view(np.float32).astype(form.dtype), form)
        else:
            r = encode(f32.decode(both), form, mode)
        if finite:
            r = clamp_finite(r, form)
        return (rectify(r, form) if relu else r).view(np.uint32)

    narrows = None if finite else Narrowing("f32", form.name, 2)
    return build(("f32", "f32"), (target,), vector=vector, narrows=narrows)


def _positive(x: np.ndarray) -> np.ndarray:
    """.relu on values: negative numbers and -0 become 0."""
    return np.where(np.signbit(x) & ~np.isnan(x), 0.0, x)


def _to_tf32(ins: Instr) -> Pure:
    """cvt.{rna,rn,rz}{.satfinite}{.relu}.tf32.f32."""
    mode = ins.one("rna", "rn", "rz")
    finite, relu = ins.has("satfinite"), ins.has("relu")

    def vector(a: np.ndarray):
        x = a.view(np.float32)
        u = formats.encode(_positive(x) if relu else x, "tf32", finite, mode)
        return u & np.uint32(0xFFFFE000)

    return build(("f32",), ("b32",), vector=vector)


def _to_small(ins: Instr, source: str, target: str) -> Pure:
    """Pairs of 8-, 6-, 4-bit floats and of scales, from two f32 or one f16x2 or bf16x2. Of bf16x2,
    and to 6 bits of f16x2, they are of PTX ISA 9.1.
    """
    mode = ins.one("rn", "rz", "rp")
    finite, relu = ins.has("satfinite"), ins.has("relu")
    small = SCALES.get(target) or NARROW[target]
    form = FLOATS[source.removesuffix("x2")]
    nibbles = small == "e2m1"

    def vector(*args: np.ndarray) -> np.ndarray:
        both = _pair(*args) if source == "f32" else args[0].view(np.uint16)
        x = form.decode(both)
        codes = formats.encode(_positive(x) if relu else x, small, finite, mode)
        return codes[0::2] | codes[1::2] << 4 if nibbles else codes.view(np.uint16)

    sources = ("f32", "f32") if source == "f32" else (source,)
    return build(sources, ("b8" if nibbles else "b16",), vector=vector)


# --- stochastic rounding --------------------------------------------------------------------------


def _stochastic(ins: Instr, target: str) -> Pure:
    """cvt.rs{.relu}{.satfinite}.{f16x2,bf16x2}.f32 d, a, b, rbits and
    cvt.rs{.relu}.satfinite.<four>.f32 d, {a, b, e, f}, rbits, the first value in the highest bits.
    """
    finite, relu = ins.has("satfinite"), ins.has("relu")
    halves = target in ("f16x2", "bf16x2")
    small, count = target[:-2], 2 if halves else 4

    def vector(*args: np.ndarray) -> np.ndarray:
        *values, rbits = args
        random = _random(rbits, small)
        total = np.zeros(len(rbits), np.uint32)
        for i, value in enumerate(values):
            x = formats.stochastic(value.view(np.float32), small, random[i * 2 // count])
            code = formats.encode(_positive(x) if relu else x, small, finite)
            total = total << np.uint32(bits // count) | code
        return total.astype(f"u{bits // 8}")

    bits = 16 if small == "e2m1" else 32
    narrows = Narrowing("f32", small, 2) if halves and not finite else None
    return build(("f32",) * count + ("b32",), (f"b{bits}",), vector=vector, narrows=narrows)


def _random(rbits: np.ndarray, small: str) -> tuple[np.ndarray, np.ndarray]:
    """What `rbits` gives the upper half of the operands, and the lower half, as numbers in [0, 1).

    f16: the low 13 bits of each half. bf16, fp8, fp6: each half. fp4: the high bytes of both halves
    for the upper operands, the low bytes for the others. Both operands of a half share its bits.
    They are added to the highest bits that are cut off (docs/reference/semantics.md: a belief).
    """
    high, low = rbits >> 16, rbits & 0xFFFF
    if small == "f16":
        return (high & 0x1FFF) / 2.0**13, (low & 0x1FFF) / 2.0**13
    if small == "e2m1":
        high, low = high & 0xFF00 | low >> 8, (high & 0xFF) << 8 | low & 0xFF
    return high / 2.0**16, low / 2.0**16


# --- from small formats ---------------------------------------------------------------------------


def _from_small(ins: Instr, source: str, target: str) -> Pure:
    """cvt.rn{.relu}.{f16x2,bf16x2}.<pair>, cvt.rn.bf16x2.ue8m0x2: exact. bf16x2 of narrow floats is
    of PTX ISA 9.2.
    """
    relu = ins.has("relu")
    small = NARROW.get(source) or SCALES[source]
    table = _unpacked(small, target.removesuffix("x2"), relu)
    return build(("b8" if small == "e2m1" else "b16",), (target,), vector=table.take)


@functools.cache
def _unpacked(small: str, target: str, relu: bool) -> np.ndarray:
    """The pair of `target` for every pair of codes: 256 of e2m1, else 65,536."""
    form = FLOATS[target]
    if small == "e2m1":
        pairs = np.arange(256, dtype=np.uint8)
        codes = np.stack((pairs & 15, pairs >> 4), 1).reshape(-1)
    else:
        codes = np.arange(65536, dtype=np.uint16).view(np.uint8)
    with np.errstate(invalid="ignore"):  # infinities and NaNs of the small format
        r = encode(formats.decode(codes, small), form)
    return (rectify(r, form) if relu else r).view(np.uint32)


@pure("cvt.pack", states=pipes.conversion)
def cvt_pack(ins: Instr) -> Pure:
    """cvt.pack.sat.dtype.s32{.b32} d, a, b{, c}: saturated a above b, and c above both."""
    chained = ins.has("b32")
    n, (low, high) = width(ins.types[0]), bounds(ins.types[0])

    def clamp(x: int):
        return min(max((x ^ 0x80000000) - 0x80000000, low), high) & ones(n)

    def scalar(a: int, b: int, c: int = 0):
        return (c << 2 * n | clamp(a) << n | clamp(b)) & 0xFFFFFFFF

    sources = ("s32", "s32", "b32") if chained else ("s32", "s32")
    return build(sources, ("b32",), scalar=scalar)
