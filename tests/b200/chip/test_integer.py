"""Integer and bit-field instructions against Python integers (see also test_h200.py)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.errors import Unsupported
from b200.registry import find
from tests.b200.chip.isa_support import execute, instruction

CORNERS = [0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def words(seed: int) -> list[int]:
    """32 words: of all magnitudes, and corner cases. One seed, since drawing each is slow."""
    random = Random(seed)
    return [
        random.choice(CORNERS)
        if random.random() < 0.3
        else random.getrandbits(64) >> random.randrange(64)
        for _ in range(32)
    ]


LANES = st.integers(0, 2**32 - 1).map(words)
FEW = settings(max_examples=8, deadline=None)


def cut(values: list[int], bits: int) -> np.ndarray:
    return np.array([v & ((1 << bits) - 1) for v in values], np.uint64)


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def div(a, b, quotient):
    q = abs(a) // abs(b)
    q = -q if (a < 0) != (b < 0) else q
    return q if quotient else a - q * b


BINARY = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: a * b >> n,
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
    "div": lambda a, b, n: div(a, b, True) if b else -1,
    "rem": lambda a, b, n: div(a, b, False) if b else -1,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", BINARY)
@FEW
@given(a=LANES, b=LANES)
def test_binary(op, kind, a, b):
    n = int(kind[1:])
    a, b = cut(a, n), cut(b, n)
    got = execute(f"{op}.{kind}", [f"b{n}"], [f"b{n}"] * 2, a, b)
    view = (lambda x: signed(x, n)) if kind[0] == "s" else int
    want = [BINARY[op](view(x), view(y), n) % (1 << n) for x, y in zip(a.tolist(), b.tolist())]
    assert got.tolist() == want


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
@FEW
@given(a=LANES, b=LANES, c=LANES)
def test_wide(kind, a, b, c):
    n = int(kind[1:])
    a, b, c = cut(a, n), cut(b, n), cut(c, 2 * n)
    got = execute(f"mad.wide.{kind}", [f"b{2 * n}"], [f"b{n}", f"b{n}", f"b{2 * n}"], a, b, c)
    view = (lambda x: signed(x, n)) if kind[0] == "s" else int
    rows = zip(a.tolist(), b.tolist(), c.tolist())
    assert got.tolist() == [(view(x) * view(y) + z) % (1 << 2 * n) for x, y, z in rows]


@pytest.mark.parametrize("n", [32, 64])
@FEW
@given(a=LANES, b=LANES)
def test_carry_chains(n, a, b):
    """add.cc + addc and sub.cc + subc of two words are one addition of twice the width."""
    lo, hi = (cut(a, n), cut(a[::-1], n)), (cut(b, n), cut(b[::-1], n))
    wide = 1 << 2 * n
    whole = [[h << n | low for low, h in zip(x[0].tolist(), x[1].tolist())] for x in (lo, hi)]
    for op, word in (("add", lambda x, y: x + y), ("sub", lambda x, y: x - y)):
        first, flag = execute(f"{op}.cc.u{n}", [f"b{n}", "pred"], [f"b{n}"] * 2, lo[0], hi[0])
        second = execute(f"{op}c.u{n}", [f"b{n}"], [f"b{n}", f"b{n}", "pred"], lo[1], hi[1], flag)
        got = [h << n | low for low, h in zip(first.tolist(), second.tolist())]
        assert got == [word(x, y) % wide for x, y in zip(*whole)]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@FEW
@given(a=LANES, b=LANES, c=LANES, flags=st.integers(0, 2**32 - 1))
def test_multiply_with_carry(kind, a, b, c, flags):
    n = int(kind[1:])
    a, b, c = cut(a, n), cut(b, n), cut(c, n)
    carry = np.array([flags >> i & 1 for i in range(32)])
    view = (lambda x: signed(x, n)) if kind[0] == "s" else int
    for half, shift in (("lo", 0), ("hi", n)):
        sources = [f"b{n}"] * 3 + ["pred"]
        d, out = execute(f"madc.{half}.cc.{kind}", [f"b{n}", "pred"], sources, a, b, c, carry)
        for i, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist())):
            total = (view(x) * view(y) >> shift) % (1 << n) + z + int(carry[i])
            assert (int(d[i]), int(out[i])) == (total % (1 << n), total >> n)


@FEW
@given(a=LANES, b=LANES, c=LANES)
def test_bytes_dot_product(a, b, c):
    a, b, c = cut(a, 32), cut(b, 32), cut(c, 32)
    got = execute("dp4a.s32.u32", ["b32"], ["b32"] * 3, a, b, c)
    for i in range(32):
        pairs = zip(int(a[i]).to_bytes(4, "little"), int(b[i]).to_bytes(4, "little"))
        assert int(got[i]) == (sum(signed(x, 8) * y for x, y in pairs) + int(c[i])) % 2**32


@pytest.mark.parametrize("n", [32, 64])
@FEW
@given(a=LANES, b=LANES, position=st.integers(0, 70), length=st.integers(0, 70))
def test_bit_fields(n, a, b, position, length):
    a, b = cut(a, n), cut(b, n)
    p, q = np.full(32, position), np.full(32, length)
    registers = [f"b{n}", "b32", "b32"]
    extracted = execute(f"bfe.u{n}", [f"b{n}"], registers, a, p, q)
    inserted = execute(f"bfi.b{n}", [f"b{n}"], [f"b{n}", *registers], a, b, p, q)
    for i in range(32):
        x, y = f"{int(a[i]):0{n}b}"[::-1], list(f"{int(b[i]):0{n}b}"[::-1])
        assert int(extracted[i]) == int("0" + x[position : position + length][::-1], 2)
        for j in range(length):
            if position + j < n:
                y[position + j] = x[j]
        assert int(inserted[i]) == int("".join(y)[::-1], 2)


def test_carry_flag_must_be_an_operand():
    with pytest.raises(Unsupported, match="addc.u32.*carry flag"):
        find("addc.u32").factory(instruction("addc.u32", ["b32"], ["b32", "b32"]))


def test_refuses_unknown_modifiers():
    for opcode in (
        "add.sat.u32",
        "add.cc.sat.u32",
        "mul.wide.u64",
        "mul.u32",
        "min.relu.u32",
        "dp4a.u32",
    ):
        with pytest.raises(Unsupported, match=opcode.replace(".", r"\.")):
            find(opcode).factory(instruction(opcode, ["b32"], ["b32", "b32", "b32"]))
