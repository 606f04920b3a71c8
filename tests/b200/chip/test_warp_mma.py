"""mma.sync against integer matrix products and exact sums; layouts from PTX ISA 9.7.14.5.8."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest
import torch

from b200.errors import EmulatorError
from b200.program.parse import parse
from tests.b200.ptx_support import kernel, run
from tests.oracles.exact_mma import f32_towards_zero, product_sum

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "u8": torch.uint8,
}
FORMS = [
    ("m16n8k8", "f32.f16.f16.f32"),
    ("m16n8k16", "f32.f16.f16.f32"),
    ("m16n8k16", "f16.f16.f16.f16"),
    ("m16n8k8", "f32.bf16.bf16.f32"),
    ("m16n8k16", "f32.bf16.bf16.f32"),
    ("m16n8k4", "f32.tf32.tf32.f32"),
    ("m16n8k8", "f32.tf32.tf32.f32"),
    ("m16n8k16", "f32.e4m3.e5m2.f32"),
    ("m16n8k32", "f32.e4m3.e4m3.f32"),
    ("m16n8k16", "s32.s8.u8.s32"),
    ("m16n8k32", "s32.u8.s8.s32"),
]


parsed = functools.lru_cache(maxsize=8)(parse)  # one instruction multiplies many matrices


def a_places(k: int, size: int):
    """(register, lane, element of the register) of A[row, column]."""
    per = 4 // size
    for row in range(16):
        for column in range(k):
            half, within = divmod(column, 4 * per)
            yield row, column, 2 * half + row // 8, row % 8 * 4 + within // per, within % per


def b_places(k: int, size: int):
    per = 4 // size
    for row in range(k):
        for column in range(8):
            half, within = divmod(row, 4 * per)
            yield row, column, half, column * 4 + within // per, within % per


def pack(matrix: torch.Tensor, places, registers: int) -> torch.Tensor:
    """Registers [registers, 32] as bytes, in the element type of the matrix."""
    raw = matrix.contiguous().view(torch.uint8).reshape(*matrix.shape, -1).numpy()
    size = raw.shape[-1]
    out = np.zeros((registers, 32, 4 // size, size), np.uint8)
    row, column, register, lane, element = np.array(list(places)).T
    out[register, lane, element] = raw[row, column]
    return torch.from_numpy(out.reshape(-1))


def multiply(shape: str, types: str, a, b, c, satfinite: str = "") -> np.ndarray:
    """D of one instruction: a [16, k], b [k, 8], c [16, 8] as tensors of the types."""
    d_type, a_type = types.split(".")[:2]
    k, size = a.shape[1], a.element_size()
    na, nb, nc = k * size // 8, k * size // 16, 2 if d_type == "f16" else 4
    packed_a, packed_b = pack(a, a_places(k, size), na), pack(b, b_places(k, size), nb)
    words = c.reshape(2, 8, 4, 2)  # upper or lower half, lane // 4, lane % 4, column of the pair
    order = words.permute(0, 1, 2, 3) if nc == 2 else words.permute(0, 3, 1, 2)
    given = order.contiguous().view(torch.uint8).reshape(-1)
    out = torch.zeros(nc * 128, dtype=torch.uint8)
    names = [f"%r{20 + i}" for i in range(na + nb + 2 * nc)]
    va, vb, vc, vd = (
        names[:na],
        names[na : na + nb],
        names[na + nb : na + nb + nc],
        names[na + nb + nc :],
    )
    loads = "".join(
        f"ld.global.u32 {r}, [%rd{base}+{128 * i}];\n"
        for base, group in ((1, va), (2, vb), (3, vc))
        for i, r in enumerate(group)
    )
    stores = "".join(f"st.global.u32 [%rd4+{128 * i}], {r};\n" for i, r in enumerate(vd))
    vectors = ", ".join("{" + ", ".join(v) + "}" for v in (vd, va, vb, vc))
    body = f"""mov.u32 %r0, %tid.x; mul.wide.u32 %rd9, %r0, 4;
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [d];
    add.u64 %rd1, %rd1, %rd9; add.u64 %rd2, %rd2, %rd9; add.u64 %rd3, %rd3, %rd9;
    add.u64 %rd4, %rd4, %rd9;
    {loads} mma.sync.aligned.{shape}.row.col{satfinite}.{types} {vectors}; {stores}"""
    text = kernel(body, [".u64 a", ".u64 b", ".u64 c", ".u64 d"])
    run(parsed(text), packed_a, packed_b, given, out)
    if nc == 2:
        return out.view(torch.float16).reshape(16, 8).numpy()
    kind = torch.int32 if d_type == "s32" else torch.float32
    return out.view(kind).reshape(2, 2, 8, 4).permute(0, 2, 3, 1).reshape(16, 8).numpy()


@pytest.mark.parametrize("shape, types", FORMS)
def test_integers_are_exact(shape, types):
    """Small integers, so that every sum fits every type; each matrix element is its own number."""
    d_type, a_type, b_type, _ = types.split(".")
    k = int(shape[6:])
    rng = np.random.default_rng(k)
    low_a, low_b = (0 if t == "u8" else -4 for t in (a_type, b_type))
    a, b = rng.integers(low_a, 5, (16, k)), rng.integers(low_b, 5, (k, 8))
    c = rng.integers(-100, 100, (16, 8))
    c_type = {"f32": torch.float32, "f16": torch.float16, "s32": torch.int32}[d_type]
    tensors = [torch.from_numpy(x).to(t) for x, t in ((a, TORCH[a_type]), (b, TORCH[b_type]))]
    got = multiply(shape, types, *tensors, torch.from_numpy(c).to(c_type))
    assert (got == a @ b + c).all()


def test_sums_are_fused_and_truncated():
    """Random f16 values: one sum cut 25 bits below the largest term, rounded towards zero."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(16, 16)).astype(np.float16), rng.normal(size=(16, 8)).astype(np.float16)
    c = (rng.normal(size=(16, 8)) * 1000).astype(np.float32)
    got = multiply("m16n8k16", "f32.f16.f16.f32", *map(torch.from_numpy, (a, b, c)))
    for m in range(0, 16, 5):
        for n in range(8):
            row = [Fraction(float(x)) for x in a[m]]
            column = [Fraction(float(x)) for x in b[:, n]]
            exact = product_sum(row, column, Fraction(float(c[m, n])), -126, -14, -14)
            assert int(got.view(np.uint32)[m, n]) == f32_towards_zero(exact)


@pytest.mark.parametrize("m, k", [(8, 4), (16, 4), (16, 8), (16, 16)])
def test_doubles_are_chains_of_fused_steps(m, k):
    """Places by the formulas of PTX ISA 9.7.14.5 and 9.7.14.5.8; sums by exact fractions, rounded
    at each k, as the products of 8 x 8 x 4 that ptxas makes of them.
    """
    rng = np.random.default_rng(3)
    a, b, c = (rng.normal(size=size) for size in ((m, k), (k, 8), (m, 8)))
    group, member = np.arange(32) // 4, np.arange(32) % 4
    counts = m // 8 * k // 4, k // 4, m // 4
    places = (
        [(group + 8 * (i % (m // 8)), member + 4 * (i // (m // 8))) for i in range(counts[0])],
        [(member + 4 * i, group) for i in range(counts[1])],
        [(group + 8 * (i // 2), 2 * member + i % 2) for i in range(counts[2])],
    )
    held = np.stack([x[at] for x, own in zip((a, b, c), places) for at in own])
    data = torch.from_numpy(np.ascontiguousarray(held.T))
    out = torch.zeros(32, counts[2], dtype=torch.float64)
    names = [f"%rd{10 + i}" for i in range(sum(counts))]
    first, second = counts[0], counts[0] + counts[1]
    vectors = [", ".join(part) for part in (names[:first], names[first:second], names[second:])]
    loads = [f"ld.global.u64 {name}, [%rd3 + {8 * i}];" for i, name in enumerate(names)]
    stores = [f"st.global.u64 [%rd5 + {8 * i}], {name};" for i, name in enumerate(names[second:])]
    body = f"""
        mov.u32 %r1, %tid.x;
        ld.param.u64 %rd1, [a]; mad.wide.u32 %rd3, %r1, {8 * sum(counts)}, %rd1;
        ld.param.u64 %rd2, [b]; mad.wide.u32 %rd5, %r1, {8 * counts[2]}, %rd2;
        {" ".join(loads)}
        mma.sync.aligned.m{m}n8k{k}.row.col.f64.f64.f64.f64
            {{{vectors[2]}}}, {{{vectors[0]}}}, {{{vectors[1]}}}, {{{vectors[2]}}};
        {" ".join(stores)}"""
    run(kernel(body, [".u64 a", ".u64 b"]), data, out)
    wanted = c.copy()
    for row, column in np.ndindex(m, 8):
        for i in range(k):
            exact = Fraction(a[row, i]) * Fraction(b[i, column]) + Fraction(wanted[row, column])
            wanted[row, column] = float(exact)
    got = np.empty((m, 8))
    for i, at in enumerate(places[2]):
        got[at] = out.numpy()[:, i]
    assert (got == wanted).all()


@pytest.mark.parametrize("satfinite, wanted", [(".satfinite", 2**31 - 1), ("", -(2**31))])
def test_integer_overflow(satfinite, wanted):
    a, b = torch.ones(16, 16, dtype=torch.int8), torch.zeros(16, 8, dtype=torch.int8)
    b[0] = 1
    c = torch.full((16, 8), 2**31 - 1, dtype=torch.int32)
    assert (multiply("m16n8k16", "s32.s8.s8.s32", a, b, c, satfinite) == wanted).all()


R4 = "%r1, %r2, %r3, %r4"


@pytest.mark.parametrize(
    "text",
    [
        f"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {{{R4}}}, {{%rd1}}, {{%rd2}}, {{{R4}}}",
        f"mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {{{R4}}}, {{{R4}}}, {{%r5}}, {{{R4}}}",
        f"mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{R4}}}, {{%r5}}, {{%r6}}, %r7, 0",
    ],
)
def test_other_forms_are_named(text):
    with pytest.raises(EmulatorError, match="mma") as caught:
        run(kernel(text + ";", [".u64 a"]), 0)
    assert caught.value.kind == "unsupported"
