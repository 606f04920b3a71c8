"""Bit counting and bit-field instructions (PTX ISA 9.7.1.14 to 9.7.1.22)."""

from __future__ import annotations

import numpy as np

from b200.chip.alu import pipes
from b200.chip.alu.build import SIGNED, build, export, is_signed, ones, width
from b200.program.module import Instr
from b200.registry import DTYPES, Pure, pure


def bit_length(x: np.ndarray) -> np.ndarray:
    """Bits needed for each unsigned number (0 for 0), as uint32. float64 is exact to 53 bits."""
    if x.dtype == np.uint64:
        high = (x >> 32).astype(np.uint32)
        low = x.astype(np.uint32)
        return np.where(high, bit_length(high) + np.uint32(32), bit_length(low))
    return np.frexp(x.astype(np.float64))[1].astype(np.uint32)


@pure("popc", states=pipes.INTEGER)
def popc(ins: Instr) -> Pure:
    """popc.b32, popc.b64: number of one bits, a u32."""
    kind = ins.types[-1]
    vexpr = "np.bitwise_count({0}).astype(np.uint32)"
    return build((kind,), ("u32",), expr="({0}).bit_count()", vexpr=vexpr)


@pure("clz", states=pipes.INTEGER)
def clz(ins: Instr) -> Pure:
    """clz.b32, clz.b64: number of leading zeros, a u32."""
    kind = ins.types[-1]
    expr, vexpr = f"({width(kind)} - ({{0}}).bit_length())", f"({width(kind)} - bit_length({{0}}))"
    return build((kind,), ("u32",), expr=expr, vexpr=vexpr)


@pure("bfind", states=pipes.INTEGER)
def bfind(ins: Instr) -> Pure:
    """bfind{.shiftamt}: position of the highest bit that is not the sign; all ones if none."""
    kind = ins.types[-1]
    shiftamt = ins.has("shiftamt")
    n, sign = width(kind), is_signed(kind)

    def scalar(a: int):
        if sign and a >> (n - 1):
            a ^= ones(n)
        if a == 0:
            return 0xFFFFFFFF
        position = a.bit_length() - 1
        return n - 1 - position if shiftamt else position

    def vector(a: np.ndarray):
        if sign:
            a = (a.view(SIGNED[n]) >> (n - 1)).view(a.dtype) ^ a
        found = bit_length(a)
        position = n - found if shiftamt else found - 1
        return np.where(a == 0, np.uint32(0xFFFFFFFF), position)

    return build((kind,), ("u32",), scalar=scalar, vector=vector)


@pure("fns", states=pipes.INTEGER)
def fns(ins: Instr) -> Pure:
    """fns.b32 d, mask, base, offset: place of the offset-th set bit from base up (down if < 0)."""

    def scalar(mask: int, base: int, offset: int):
        offset = (offset ^ 0x80000000) - 0x80000000
        if base > 31:
            return 0xFFFFFFFF
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        way = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [i for i in way if mask >> i & 1]
        return found[abs(offset) - 1] if abs(offset) <= len(found) else 0xFFFFFFFF

    return build(("b32", "b32", "s32"), ("b32",), scalar=scalar)


def reverse_bits(x: np.ndarray) -> np.ndarray:
    """Bits of uint32 or uint64 patterns in reverse order."""
    as_bytes = x.astype(x.dtype.newbyteorder(">")).view(np.uint8)
    bits = np.unpackbits(as_bytes).reshape(len(x), -1)[:, ::-1]
    return np.packbits(bits).view(x.dtype.newbyteorder(">")).astype(x.dtype)


@pure("brev", states=pipes.INTEGER)
def brev(ins: Instr) -> Pure:
    """brev.b32, brev.b64: bit reversal."""
    kind = ins.types[-1]
    expr = f"int(format({{0}}, '0{width(kind)}b')[::-1], 2)"
    scalar = eval(f"lambda a: {expr.format('a')}")
    return build((kind,), (kind,), scalar=scalar, vexpr="reverse_bits({0})")


@pure("bfe", states=pipes.EITHER)
def bfe(ins: Instr) -> Pure:
    """bfe: the field of c & 255 bits from bit b & 255 on, extended by its sign for signed types."""
    kind = ins.types[-1]
    n, signed = width(kind), is_signed(kind)

    def scalar(a: int, b: int, c: int):
        position, length = b & 0xFF, c & 0xFF
        if signed and a >> (n - 1):
            a -= 1 << n  # arithmetic shifts: bits beyond the msb are the sign
        if length == 0:
            return 0
        field = a >> position & ones(length)
        if signed and field >> (length - 1):
            field -= 1 << length
        return field & ones(n)

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray):
        # Shift the field to the top of the register, then down again with or without the sign.
        position = (b & 0xFF).astype(np.int64)
        length = np.minimum(c & 0xFF, n).astype(np.int64)
        if signed:
            value = np.right_shift(a.view(SIGNED[n]).astype(np.int64), position)
        else:
            value = np.right_shift(a, position.astype(np.uint64), dtype=np.uint64).view(np.int64)
        up = 64 - length
        field = np.left_shift(value, up)
        down = np.right_shift(
            field if signed else field.view(np.uint64),
            up.astype(field.dtype if signed else np.uint64),
        )
        return np.where(length == 0, 0, down).astype(DTYPES[n])

    return build((kind, "u32", "u32"), (kind,), scalar=scalar, vector=vector)


@pure("bfi", states=pipes.EITHER)
def bfi(ins: Instr) -> Pure:
    """bfi f, a, b, c, d: b with d & 255 bits from bit c & 255 on replaced by the low bits of a."""
    kind = ins.types[-1]
    n = width(kind)

    def scalar(a: int, b: int, c: int, d: int):
        field = (ones(d & 0xFF) << (c & 0xFF)) & ones(n)
        return b & ~field | a << (c & 0xFF) & field

    def vector(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray):
        position, length = (c & 0xFF).astype(a.dtype), (d & 0xFF).astype(a.dtype)
        full = a.dtype.type(ones(n))
        field = np.left_shift(full ^ np.left_shift(full, length), position)
        return (b & ~field) | (np.left_shift(a, position) & field)

    return build((kind, kind, "u32", "u32"), (kind,), scalar=scalar, vector=vector)


@pure("bmsk", states=pipes.INTEGER)
def bmsk(ins: Instr) -> Pure:
    """bmsk.{clamp,wrap}.b32 d, a, b: a mask of b bits from bit a on."""
    clamp = ins.one("clamp", "wrap") == "clamp"

    def scalar(a: int, b: int):
        if not clamp:
            a, b = a & 31, b & 31
        return ones(min(b, 32)) << min(a, 32) & 0xFFFFFFFF

    return build(("b32", "b32"), ("b32",), scalar=scalar)


@pure("szext", states=pipes.INTEGER)
def szext(ins: Instr) -> Pure:
    """szext.{clamp,wrap}.{u32,s32} d, a, b: the low b bits of a, sign- or zero-extended."""
    signed = is_signed(ins.types[-1])
    clamp = ins.one("clamp", "wrap") == "clamp"

    def scalar(a: int, b: int):
        n = min(b, 32) if clamp else b & 31
        if n == 0:
            return 0
        a &= ones(n)
        return (a - (1 << n)) & 0xFFFFFFFF if signed and a >> (n - 1) else a

    return build(("b32", "b32"), ("b32",), scalar=scalar)


export(bit_length=bit_length, reverse_bits=reverse_bits)
