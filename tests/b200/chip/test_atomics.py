"""Every operation of atom and red on every type: 32 lanes on one cell, and each on its own."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch

from tests.b200.ptx_support import kernel, own_element, run

INTEGERS = {"u32": torch.int32, "s32": torch.int32, "u64": torch.int64, "s64": torch.int64}
FLOATS = {
    "f32": torch.float32,
    "f64": torch.float64,
    "noftz.f16x2": torch.float16,
    "noftz.bf16x2": torch.bfloat16,
}
FORMS = [
    *(("add", kind) for kind in ("u32", "s32", "u64")),
    *((op, kind) for op in ("min", "max") for kind in INTEGERS),
    *((op, kind) for op in ("and", "or", "xor") for kind in ("b32", "b64")),
    *(("exch", kind) for kind in ("b32", "b64")),
    *((op, "u32") for op in ("inc", "dec")),
    *(("add", kind) for kind in FLOATS),
]
SPACES = ("global", "shared", "generic")


def integer(op: str, kind: str) -> Callable[[int, int], int]:
    """new(old, operand) on patterns (PTX ISA, atom)."""
    bits = int(kind[1:])

    def number(x: int) -> int:
        return x - (1 << bits) if kind[0] == "s" and x >> (bits - 1) else x

    return {
        "add": lambda old, b: (old + b) % (1 << bits),
        "min": lambda old, b: min(old, b, key=number),
        "max": lambda old, b: max(old, b, key=number),
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
        "exch": lambda old, b: b,
        "inc": lambda old, b: 0 if old >= b else old + 1,
        "dec": lambda old, b: b if old == 0 or old > b else old - 1,
    }[op]


def cells(kind: str, count: int, seed: int) -> torch.Tensor:
    """`count` registers of a type, as words of 32 or 64 bits; the sign bit is often set."""
    generator = torch.Generator().manual_seed(seed)
    if kind in FLOATS:
        values = torch.randn(count, 2 if "x2" in kind else 1, generator=generator)
        halves = values.to(FLOATS[kind])
        return halves.view(torch.int64 if kind == "f64" else torch.int32).reshape(-1)
    dtype = INTEGERS["u" + kind[1:]]
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (count,), generator=generator, dtype=dtype)


def step(op: str, kind: str, old: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """One cell after one operation; tensors of one word."""
    if kind in FLOATS:
        return (old.view(FLOATS[kind]) + operand.view(FLOATS[kind])).view(old.dtype)
    modulus = 1 << 8 * old.element_size()
    new = integer(op, kind)(old.item() % modulus, operand.item() % modulus)
    return torch.tensor([new - modulus if new >= modulus // 2 else new], dtype=old.dtype)


def program(op: str, kind: str, space: str, shared_cell: bool, red: bool) -> str:
    """The cells are copied to `space`, changed by an operation a lane, and copied back; out: the
    old values. shared_cell: all lanes change the first."""
    size = 8 if kind.endswith("64") else 4
    register = "%rd9" if size == 8 else "%r9"
    result = "%rd10" if size == 8 else "%r10"
    bits, within = f"b{8 * size}", "" if shared_cell else "add.u64 %rd6, %rd6, %rd8;"
    where = "mov.u64 %rd6, cells;" if space == "shared" else "mov.u64 %rd6, %rd4;"
    suffix = "" if space == "generic" else f".{space}"
    change = f"red.relaxed{suffix}.{op}.{kind} [%rd6], {register};"
    if not red:
        change = f"atom{suffix}.{op}.{kind} {result}, [%rd6], {register}; st.global.{bits} [%rd3], {result};"
    there, back = "", ""
    if space == "shared":
        mine = "mov.u64 %rd7, cells; add.u64 %rd7, %rd7, %rd8; add.u64 %rd5, %rd4, %rd8;"
        there = f"{mine} ld.global.{bits} {result}, [%rd5]; st.shared.{bits} [%rd7], {result}; bar.sync 0;"
        back = f"bar.sync 0; ld.shared.{bits} {result}, [%rd7]; st.global.{bits} [%rd5], {result};"
    body = f"""{own_element(size)}
    mov.u64 %rd8, %rd2; ld.param.u64 %rd4, [cells_of]; ld.param.u64 %rd5, [operands];
    add.u64 %rd5, %rd5, %rd8; ld.global.{bits} {register}, [%rd5];
    {there} {where} {within} {change} {back}"""
    smem = ".shared .align 8 .b8 cells[256];"
    return kernel(body, [".u64 out", ".u64 cells_of", ".u64 operands"], smem)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("op, kind", FORMS)
def test_each_operation(op, kind, space):
    start, operands = cells(kind, 32, 1), cells(kind, 32, 2)
    for shared_cell in (False, True):
        for red in (False,) if op == "exch" else (False, True):
            changed, old = start.clone(), torch.zeros_like(start)
            run(program(op, kind, space, shared_cell, red), old, changed, operands)
            want, seen = start.clone(), torch.zeros_like(start)
            for lane in range(32):
                cell = slice(0, 1) if shared_cell else slice(lane, lane + 1)
                seen[lane : lane + 1] = want[cell]
                want[cell] = step(op, kind, want[cell], operands[lane : lane + 1])
            assert changed.tolist() == want.tolist()
            assert red or old.tolist() == seen.tolist()


@pytest.mark.parametrize("bits", [32, 64])
def test_compare_and_swap(bits):
    """A cell is changed where it holds what the lane compares with."""
    register = "%rd" if bits == 64 else "%r"
    dtype = torch.int64 if bits == 64 else torch.int32
    cells, old = torch.arange(32, dtype=dtype) - 16, torch.zeros(32, dtype=dtype)
    compare = torch.where(torch.arange(32) % 3 == 0, cells + 1, cells)
    body = f"""{own_element(bits // 8)}
    ld.param.u64 %rd4, [cells]; ld.param.u64 %rd5, [compare]; add.u64 %rd4, %rd4, %rd2;
    add.u64 %rd5, %rd5, %rd2; ld.global.b{bits} {register}9, [%rd5];
    atom.global.cas.b{bits} {register}10, [%rd4], {register}9, 99; st.global.b{bits} [%rd3], {register}10;"""
    changed = cells.clone()
    run(kernel(body, [".u64 out", ".u64 cells", ".u64 compare"]), old, changed, compare)
    assert old.tolist() == cells.tolist()
    assert changed.tolist() == torch.where(compare == cells, 99, cells).tolist()


VECTORS = [  # operation, type, elements: what PTX ISA has of vectors, and of halves
    *(("add", "f32", n) for n in (2, 4)),
    *(
        (op, f"noftz.{kind}", n)
        for op in ("add", "min", "max")
        for kind in ("f16", "bf16")
        for n in (2, 4, 8)
    ),
    *(
        (op, f"noftz.{kind}x2", n)
        for op in ("add", "min", "max")
        for kind in ("f16", "bf16")
        for n in (2, 4)
    ),
    *(("add", f"noftz.{kind}", 1) for kind in ("f16", "bf16")),
]
COMBINED = {"add": torch.add, "min": torch.minimum, "max": torch.maximum}


@pytest.mark.parametrize("red", [False, True])
@pytest.mark.parametrize("op, kind, count", VECTORS)
def test_vectors_and_halves(op, kind, count, red):
    """Each element by itself; the lanes of a pair change the same cells."""
    name = kind.removeprefix("noftz.")
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[
        name.removesuffix("x2")
    ]
    packed = 2 if name.endswith("x2") else 1
    size = packed * dtype.itemsize * count
    prefix, bits = ("%rs", 16) if size // count == 2 else ("%r", 32)
    generator = torch.Generator().manual_seed(count)
    operands = torch.randn(32, packed * count, generator=generator).to(dtype)
    start = torch.randn(32, packed * count, generator=generator).to(dtype)

    def vector(first: int) -> str:
        names = ", ".join(f"{prefix}{first + i}" for i in range(count))
        return f"{{{names}}}" if count > 1 else names

    loads = "".join(
        f"ld.global.b{bits} {prefix}{20 + i}, [%rd5+{i * size // count}];" for i in range(count)
    )
    stores = "".join(
        f"st.global.b{bits} [%rd3+{i * size // count}], {prefix}{40 + i};" for i in range(count)
    )
    form = (
        f"global.{op}{'.noftz' if kind != 'f32' else ''}{f'.v{count}' if count > 1 else ''}.{name}"
    )
    change = (
        f"red.{form} [%rd4], {vector(20)};"
        if red
        else f"atom.{form} {vector(40)}, [%rd4], {vector(20)};"
    )
    body = f"""{own_element(size)}
    ld.param.u64 %rd4, [cells]; ld.param.u64 %rd5, [operands]; add.u64 %rd5, %rd5, %rd2;
    shr.u32 %r5, %r1, 1; mul.wide.u32 %rd6, %r5, {size}; add.u64 %rd4, %rd4, %rd6;
    {loads} {change} {"" if red else stores}"""
    changed, old = start.clone(), torch.zeros_like(start)
    run(kernel(body, [".u64 out", ".u64 cells", ".u64 operands"]), old, changed, operands)
    want, seen = start.clone(), torch.zeros_like(start)
    for lane in range(32):
        seen[lane] = want[lane // 2]
        want[lane // 2] = COMBINED[op](want[lane // 2], operands[lane])
    assert torch.equal(changed, want)
    assert red or torch.equal(old, seen)


@pytest.mark.parametrize("space, flushed", [("global", True), ("shared", False)])
def test_subnormal_sums_of_f32(space, flushed):
    """atom.add.f32 flushes subnormal inputs and results on global memory, and keeps them on shared
    memory (PTX ISA, atom).
    """
    tiny = 2.0**-140
    cells, out = torch.full((32,), tiny), torch.full((32,), -1.0)
    there = "mov.u64 %rd6, cell; add.u64 %rd6, %rd6, %rd2; st.shared.b32 [%rd6], %r9;"
    back = "ld.shared.b32 %r11, [%rd6]; st.global.b32 [%rd4], %r11;"
    body = f"""{own_element(4)} ld.param.u64 %rd4, [cells]; add.u64 %rd4, %rd4, %rd2;
    mov.u64 %rd6, %rd4; ld.global.b32 %r9, [%rd4]; {there if space == "shared" else ""}
    atom.{space}.add.f32 %r10, [%rd6], %r9; st.global.b32 [%rd3], %r10;
    {back if space == "shared" else ""}"""
    text = kernel(body, [".u64 out", ".u64 cells"], ".shared .align 4 .b8 cell[128];")
    run(text, out, cells)
    assert set(cells.tolist()) == {0.0 if flushed else 2 * tiny}


def test_compare_and_swap_of_16_bits():
    cells, old = torch.arange(32, dtype=torch.int16) - 16, torch.zeros(32, dtype=torch.int16)
    compare = torch.where(torch.arange(32) % 3 == 0, cells + 1, cells)
    body = f"""{own_element(2)} mov.b16 %rs3, 99;
    ld.param.u64 %rd4, [cells]; ld.param.u64 %rd5, [compare]; add.u64 %rd4, %rd4, %rd2;
    add.u64 %rd5, %rd5, %rd2; ld.global.b16 %rs1, [%rd5];
    atom.global.cas.b16 %rs2, [%rd4], %rs1, %rs3; st.global.b16 [%rd3], %rs2;"""
    changed = cells.clone()
    run(kernel(body, [".u64 out", ".u64 cells", ".u64 compare"]), old, changed, compare)
    assert old.tolist() == cells.tolist()
    assert changed.tolist() == torch.where(compare == cells, 99, cells).tolist()


NEGATIVE = [
    *((op, kind) for op, kind in FORMS if kind not in FLOATS),
    *(("cas", f"b{bits}") for bits in (16, 32, 64)),
]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("op, kind", NEGATIVE)
def test_negative_literals(op, kind, space):
    """nvcc writes atomicSub(p, 10) as `atom.add.u32 ..., -10`: the two's complement of the type."""
    bits = int(kind[1:])
    prefix = {16: "%rs", 32: "%r", 64: "%rd"}[bits]
    register, size = f"{prefix}9", bits // 8
    given = "-1, -10" if op == "cas" else "-10"
    there = f"ld.global.b{bits} {register}, [%rd3]; st.shared.b{bits} [%rd8], {register};"
    back = f"ld.shared.b{bits} {register}, [%rd8]; st.global.b{bits} [%rd3], {register};"
    where = "%rd8" if space == "shared" else "%rd3"
    atom = f"atom.{space}.{op}.{kind} {prefix}10, [{where}], {given};"
    red = f"red.{space}.{op}.{kind} [{where}], {given};"
    twice = atom if op in ("exch", "cas") else f"{atom} {red}"
    body = f"""{own_element(size)} mov.u64 %rd8, cells; add.u64 %rd8, %rd8, %rd2;
    {there if space == "shared" else ""} {twice} {back if space == "shared" else ""}"""
    start = torch.arange(32).to({16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]) - 5
    out = start.clone()
    run(kernel(body, [".u64 out"], ".shared .align 8 .b8 cells[256];"), out)
    modulus = 1 << bits

    def new(old: int) -> int:
        if op == "cas":
            return modulus - 10 if old == modulus - 1 else old
        change = integer(op, kind)
        once = change(old, modulus - 10)
        return once if op == "exch" else change(once, modulus - 10)

    assert [x % modulus for x in out.tolist()] == [new(x % modulus) for x in start.tolist()]
