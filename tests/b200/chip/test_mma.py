"""tcgen05.mma: where operands are read and where results go, in every kind and layout.

Values are small integers, so that every product and sum is exact and float64 matrix products are
the truth; rounding is tested in test_tensor_core.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.operations import Mma
from b200.chip.tensor.instruction_descriptor import KINDS
from b200.chip.tensor.zero_columns import ZeroColumns
from b200.errors import Fault
from b200.formats import encode
from tests.b200.chip.tensor_support import (
    A,
    B,
    check_d,
    f16,
    idesc,
    integers,
    lane_run,
    put_k_major,
    put_mn_major,
    put_pair,
    warps,
)

CODES = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}


# CTAs, M, N, lane of D's address
SHAPES = [
    (1, 128, 8, 0), (1, 128, 40, 0), (1, 128, 256, 0), (1, 64, 8, 0), (1, 64, 136, 0),
    (1, 64, 8, 16), (1, 64, 136, 16), (2, 256, 16, 0), (2, 256, 256, 0), (2, 128, 16, 0),
    (2, 128, 96, 0),
]  # fmt: skip


@pytest.mark.parametrize("group, m, n, base", SHAPES)
def test_f16_shapes_and_accumulation(group, m, n, base):
    machine, found = warps(group)
    rng = np.random.default_rng(n)
    a, b = integers(rng, (m, 16)), integers(rng, (n, 16))
    words = put_pair(found, f16(a), f16(b))
    text = f"tcgen05.mma.cta_group::{group}.kind::f16 [d] a b i p"
    taddr = base << 16 | 100
    lane_run(text, found[0], taddr, *words, idesc(m, n), False)  # D was NaN and is not read
    check_d(found, a @ b.T, 100, group, base=base)
    lane_run(text, found[0], taddr, *words, idesc(m, n), True)
    check_d(found, 2 * (a @ b.T), 100, group, base=base)
    issued = machine.issued[-1]
    d = issued.mma.d
    assert isinstance(issued, Mma) and (d.m, d.n, d.kind.k, len(issued.members)) == (
        m,
        n,
        16,
        group,
    )
    columns = n // 2 if (group, m) == (2, 128) else n
    assert np.isnan(found[0].cta.tmem.view(np.float32)[:, 100 + columns]).all()


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("n", [64, 256])
def test_weight_stationary_layouts(m, n):
    _, found = warps()
    rng = np.random.default_rng(m + n)
    a, b = integers(rng, (m, 16)), integers(rng, (n, 16))
    words = put_pair(found, f16(a), f16(b))
    text = "tcgen05.mma.ws.cta_group::1.kind::f16.collector::b0::fill [d] a b i p"
    lane_run(text, found[0], 8, *words, idesc(m, n), False)
    check_d(found, a @ b.T, 8, ws=True)


LAYOUTS = [(0, 128, 2048), (2, 1024, 2048), (4, 512, 2048), (6, 256, 2048)]


@pytest.mark.parametrize("mode, eight, far", LAYOUTS)
def test_major_modes_and_swizzles(mode, eight, far):
    """A K-major and MN-major in every swizzle; B the other way round."""
    _, (warp,) = warps()
    rng = np.random.default_rng(mode)
    a, b = integers(rng, (128, 16)), integers(rng, (64, 16))
    k_a = put_k_major(warp.cta, f16(a), A, eight if mode else 256, mode, lbo=128)
    k_b = put_k_major(warp.cta, f16(b), B, eight if mode else 256, mode, lbo=128)
    # MN-major none: SBO between 16-byte columns, LBO between groups of 8 k.
    strides = (far, eight) if mode else (2048, 128)
    mn_a = put_mn_major(warp.cta, f16(np.ascontiguousarray(a.T)), 0x6000, *strides, mode)
    mn_b = put_mn_major(warp.cta, f16(np.ascontiguousarray(b.T)), 0x18000, *strides, mode)
    text = "tcgen05.mma.cta_group::1.kind::f16 [d] a b i p"
    lane_run(text, warp, 0, mn_a, k_b, idesc(128, 64, more=1 << 15), False)
    check_d([warp], a @ b.T)
    lane_run(text, warp, 64, k_a, mn_b, idesc(128, 64, more=1 << 16), False)
    check_d([warp], a @ b.T, 64)


def test_bf16_negate_and_f16_result():
    _, found = warps()
    rng = np.random.default_rng(0)
    a, b = integers(rng, (128, 16)), integers(rng, (16, 16))
    words = put_pair(found, encode(a, "bf16").view(np.uint8), f16(b))
    text = "tcgen05.mma.cta_group::1.kind::f16 [d] a b i p"
    lane_run(text, found[0], 0, *words, idesc(128, 16, a=1, more=1 << 13), False)
    check_d(found, -(a @ b.T))
    words = put_pair(found, f16(a), f16(b))
    for accumulate in (False, True):
        lane_run(text, found[0], 0, *words, idesc(128, 16, d=0), accumulate)
    cells = found[0].cta.tmem[:, :16]
    assert (cells >> 16 == 0).all()
    half = cells.astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(half, 2 * (a @ b.T))


@pytest.mark.parametrize("mn_major", [False, True])
def test_tf32(mn_major):
    _, found = warps()
    cta = found[0].cta
    rng = np.random.default_rng(1)
    a, b = integers(rng, (128, 8)), integers(rng, (32, 8))
    noisy = (b.astype(np.float32).view(np.uint32) | 0x1FFF).view(
        np.float32
    )  # bits that do not count
    noisy[b == 0] = 0
    a_word, b_word = put_pair(found, a.astype(np.float32).view(np.uint8), noisy.view(np.uint8))
    more = 0
    if mn_major:
        columns = np.ascontiguousarray(noisy.T).view(np.uint8)
        b_word, more = put_mn_major(cta, columns, 0x18000, 4096, 1024, 1), 1 << 16
    text = "tcgen05.mma.cta_group::1.kind::tf32 [d] a b i p"
    lane_run(text, found[0], 0, a_word, b_word, idesc(128, 32, a=2, b=2, more=more), False)
    check_d(found, a @ b.T)


def narrow(rng, rows, k, fmt):
    """(values [rows, k], bytes [rows, k]): fp4 and fp6 in chunks of 16 with padding."""
    values = rng.integers(-2, 3, (rows, k)).astype(float)
    codes = encode(values, fmt)
    width = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(fmt, 8)
    if width == 8:
        return values, codes
    raw = bytearray()
    for chunk in codes.reshape(-1, 16):
        packed = sum(int(c) << width * i for i, c in enumerate(chunk))
        raw += packed.to_bytes(2 * width, "little") + b"\xaa" * (16 - 2 * width)
    return values, np.frombuffer(bytes(raw), np.uint8).reshape(rows, k)


@pytest.mark.parametrize("a_fmt", CODES)
@pytest.mark.parametrize("b_fmt", ["e4m3", "e3m2", "e2m1"])
def test_f8f6f4_types(a_fmt, b_fmt):
    _, found = warps()
    rng = np.random.default_rng(0)
    (a, a_raw), (b, b_raw) = narrow(rng, 128, 32, a_fmt), narrow(rng, 16, 32, b_fmt)
    words = put_pair(found, a_raw, b_raw)
    text = "tcgen05.mma.cta_group::1.kind::f8f6f4 [d] a b i p"
    types = {"a": CODES[a_fmt], "b": CODES[b_fmt]}
    lane_run(text, found[0], 0, *words, idesc(128, 16, **types), False)
    check_d(found, a @ b.T)


def test_i8():
    _, found = warps()
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (128, 32))
    b = rng.integers(-128, 128, (16, 32))
    words = put_pair(found, a.astype(np.uint8), b.astype(np.int8).view(np.uint8))
    text = "tcgen05.mma.cta_group::1.kind::i8 [d] a b i p"
    found[0].cta.tmem[:, :16] = 7
    lane_run(text, found[0], 0, *words, idesc(128, 16, d=2, b=1), True)
    check_d(found, a @ b.T + 7, dtype=np.int32)


@pytest.mark.parametrize("group, m", [(1, 128), (1, 64), (2, 256), (2, 128)])
def test_a_from_tensor_memory(group, m):
    _, found = warps(group)
    rng = np.random.default_rng(0)
    a, b = integers(rng, (m, 16)), integers(rng, (32, 16))
    _, b_word = put_pair(found, f16(a), f16(b))
    rows = m // group
    for c, warp in enumerate(found):
        for r, row in enumerate(f16(a[c * rows : (c + 1) * rows])):
            lanes = [r] if rows == 128 else [r, r + 64] if group == 2 else [r % 16 + 32 * (r // 16)]
            for lane in lanes:
                warp.cta.tmem[lane, 300:308] = row.view(np.uint32)
    text = f"tcgen05.mma.cta_group::{group}.kind::f16 [d] [a] b i p"
    lane_run(text, found[0], 0, 300, b_word, idesc(m, 32), False)
    check_d(found, a @ b.T, group=group)
    if (group, m) == (2, 128):
        found[1].cta.tmem[70, 301] ^= 1
        with pytest.raises(Fault, match="lanes 64 to 127 must hold a copy of lanes 0 to 63"):
            lane_run(text, found[0], 0, 300, b_word, idesc(m, 32), False)


@pytest.mark.parametrize("fmt, shift", [("e4m3", 0), ("e2m1", 2), ("e3m2", 1)])
def test_narrow_a_from_tensor_memory_lies_in_bytes(fmt, shift):
    _, found = warps()
    rng = np.random.default_rng(0)
    a, b = integers(rng, (128, 32), 2), integers(rng, (8, 32), 2)
    _, b_word = put_pair(found, encode(a, "e4m3"), encode(b, "e4m3"))
    found[0].cta.tmem[:, 300:308] = (encode(a, fmt) << shift).astype(np.uint8).view(np.uint32)
    text = "tcgen05.mma.cta_group::1.kind::f8f6f4 [d] [a] b i p"
    lane_run(text, found[0], 0, 300, b_word, idesc(128, 8, a=CODES[fmt]), False)
    check_d(found, a @ b.T)


def test_ashift_moves_a_afterwards():
    _, found = warps()
    rng = np.random.default_rng(0)
    a, b = integers(rng, (128, 16)), integers(rng, (8, 16))
    _, b_word = put_pair(found, f16(a), f16(b))
    found[0].cta.tmem[:, 300:308] = f16(a).view(np.uint32)
    text = "tcgen05.mma.cta_group::1.kind::f16.ashift [d] [a] b i p"
    lane_run(text, found[0], 0, 300, b_word, idesc(128, 8), False)
    check_d(found, a @ b.T)
    lanes = np.arange(128)
    moved = f16(a)[np.where(lanes % 32 == 31, lanes, lanes + 1)]
    np.testing.assert_array_equal(found[0].cta.tmem[:, 300:308], moved.view(np.uint32))


@pytest.mark.parametrize("group", [1, 2])
def test_disabled_lanes_keep_their_value(group):
    _, found = warps(group)
    rng = np.random.default_rng(0)
    m = 128 * group
    a, b = integers(rng, (m, 16)), integers(rng, (16, 16))
    words = put_pair(found, f16(a), f16(b))
    for warp in found:
        warp.cta.tmem[:] = np.float32(-5).view(np.uint32)
    masks = tuple(int(x) for x in rng.integers(0, 2**32, 4 * group))
    text = f"tcgen05.mma.cta_group::{group}.kind::f16 [d] a b i {{{4 * group}}} p"
    lane_run(text, found[0], 0, *words, idesc(m, 16), masks, False)
    want = a @ b.T
    for row in range(m):
        if masks[row // 32] >> row % 32 & 1:
            want[row] = -5
    check_d(found, want, group=group)
    with pytest.raises(Fault, match=f"has 3 registers: cta_group::{group} needs {4 * group}"):
        lane_run(text, found[0], 0, *words, idesc(m, 16), masks[:3], False)


def test_scale_d():
    _, found = warps()
    rng = np.random.default_rng(0)
    a, b = integers(rng, (128, 16)), integers(rng, (8, 16))
    words = put_pair(found, f16(a), f16(b))
    found[0].cta.tmem[:, :8] = np.float32(96).view(np.uint32)
    text = "tcgen05.mma.cta_group::1.kind::f16 [d] a b i p 4"
    lane_run(text, found[0], 0, *words, idesc(128, 8), True, 4)
    check_d(found, a @ b.T + 6)
    with pytest.raises(Fault, match="scale-input-d is 16"):
        lane_run(text, found[0], 0, *words, idesc(128, 8), True, 16)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([32, 64, 128]), st.lists(st.integers(0, 255), min_size=4, max_size=4),
    st.integers(0, 15), st.integers(1, 256), st.integers(1, 256), st.integers(0, 16),
)  # fmt: skip
def test_zero_column_mask(m, counts, starts, skip, use, shift):
    """Each part of N walks through its spans column by column."""
    word = sum(c << 8 * i for i, c in enumerate(counts)) | starts << 32 | 1 << 39
    word |= (skip - 1) << 40 | (use - 1) << 48 | shift << 56
    got = ZeroColumns.decode(word, m, 64)
    parts = 128 // m
    want = []
    for part in range(parts):
        skipping, left = bool(starts >> part & 1), counts[part]
        left = (skip if skipping else use) - left
        while left <= 0:  # more columns are over than the span has
            skipping = not skipping
            left += skip if skipping else use
        for _ in range(64 // parts):
            want.append(skipping)
            left -= 1
            if not left:
                skipping = not skipping
                left = skip if skipping else use
    assert got.columns.tolist() == want and got.shift == shift


def test_zero_columns_in_an_instruction():
    _, found = warps()
    rng = np.random.default_rng(0)
    a, b = integers(rng, (128, 16)), integers(rng, (72, 16))
    words = put_pair(found, f16(a), f16(b))
    word = 1 << 39 | 9 << 40 | 19 << 48 | 3 << 56  # use 20, skip 10, moved by 3
    text = "tcgen05.mma.ws.cta_group::1.kind::f16 [d] a b i p z"
    lane_run(text, found[0], 0, *words, idesc(128, 64), False, word)
    want = a @ b[3:67].T
    want[:, [n for n in range(64) if n % 30 >= 20]] = 0
    check_d(found, want, ws=True)
    with pytest.raises(Fault, match="column shift.*is 33, at most 32"):
        ZeroColumns.decode(33 << 56, 128, 64)


# PTX ISA, tcgen05: K of each kind, bits of an element in shared memory, whether scales go with it,
# codes of the types of A and B, and of D, in the instruction descriptor.
NARROW = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
TABLE = {
    "f16": (16, 16, False, {0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}),
    "tf32": (8, 32, False, {2: "tf32"}, {1: "f32"}),
    "f8f6f4": (32, 8, False, NARROW, {0: "f16", 1: "f32"}),
    "i8": (32, 8, False, {0: "u8", 1: "s8"}, {2: "s32"}),
    "mxf8f6f4": (32, 8, True, NARROW, {}),
    "mxf4": (64, 4, True, {1: "e2m1"}, {}),
    "mxf4nvf4": (64, 4, True, {1: "e2m1"}, {}),
}


def test_kinds_are_those_of_the_manual():
    found = {k.name: (k.k, k.bits, k.scaled, k.types, k.d_types) for k in KINDS.values()}
    assert found == TABLE


MN_MAJOR = {  # kind: (K, bytes of an element, swizzle mode, descriptor's fields)
    "f16": (16, 2, 2, {}),
    "tf32": (8, 4, 1, {"a": 2, "b": 2}),
    "f8f6f4": (32, 1, 2, {}),
    "i8": (32, 1, 2, {"d": 2, "a": 1, "b": 1}),
}
TYPES = {"f16": "f16", "tf32": None, "f8f6f4": "e4m3", "i8": "s8"}


def column_bytes(kind: str, x: np.ndarray) -> np.ndarray:
    """uint8 [K, bytes along M or N] of rows of small integers."""
    x = np.ascontiguousarray(x.T)
    if kind == "i8":
        return x.astype(np.int8).view(np.uint8)
    if kind == "tf32":
        return x.astype(np.float32).view(np.uint8)
    return encode(x, TYPES[kind]).view(np.uint8)


@pytest.mark.parametrize("kind", MN_MAJOR)
def test_each_kind_reads_operands_with_k_outermost(kind):
    k, size, mode, fields = MN_MAJOR[kind]
    _, (warp,) = warps()
    rng = np.random.default_rng(k)
    a, b = integers(rng, (128, k)), integers(rng, (32 if size == 4 else 128, k))
    strides = 1024 * -(-k // 8), 1024  # of 128 bytes along M, of 8 rows along K
    descriptors = [
        put_mn_major(warp.cta, column_bytes(kind, x), at, *strides, mode)
        for x, at in ((a, A), (b, B))
    ]
    word = idesc(128, len(b), more=1 << 15 | 1 << 16, **fields)
    text = f"tcgen05.mma.cta_group::1.kind::{kind} [d] a b i p"
    lane_run(text, warp, 0, *descriptors, word, False)
    check_d([warp], a @ b.T, dtype=np.int32 if kind == "i8" else np.float32)
