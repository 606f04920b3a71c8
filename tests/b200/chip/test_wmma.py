"""wmma.load, wmma.mma and wmma.store of every shape that nvcc emits for sm_100a, against matrix
products in int64. Which lane holds what is not seen: only that the three agree, and with memory.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from b200.errors import EmulatorError
from tests.b200.ptx_support import kernel, run

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "f32": torch.float32,
    "s32": torch.int32,
    "f64": torch.float64,
    "s8": torch.int8,
    "u8": torch.uint8,
}
# shape -> (M, N, K), and how many registers nvcc 13.0 gives a, b, c of each type
SQUARE, TALL, FLAT = "m16n16k16", "m32n8k16", "m8n32k16"
FORMS = [
    *((shape, "f16", d, d, (8, 8, 4 if d == "f16" else 8)) for shape in (SQUARE, TALL, FLAT)
      for d in ("f32", "f16")),
    (SQUARE, "f16", "f32", "f16", (8, 8, 4)),
    (SQUARE, "f16", "f16", "f32", (8, 8, 8)),
    (SQUARE, "bf16", "f32", "f32", (4, 4, 8)),
    (TALL, "bf16", "f32", "f32", (8, 2, 8)),
    (FLAT, "bf16", "f32", "f32", (2, 8, 8)),
    (SQUARE, "s8", "s32", "s32", (2, 2, 8)),
    (TALL, "u8", "s32", "s32", (4, 1, 8)),
    (FLAT, "s8", "s32", "s32", (1, 4, 8)),
    ("m16n16k8", "tf32", "f32", "f32", (4, 4, 8)),
    ("m8n8k4", "f64", "f64", "f64", (1, 1, 2)),
]  # fmt: skip


def laid_out(matrix: torch.Tensor, order: str) -> torch.Tensor:
    """The matrix in memory, with eight elements of another kind between its rows or columns."""
    lines = matrix if order == "row" else matrix.T
    room = torch.full((lines.shape[0], lines.shape[1] + 8), 7, dtype=matrix.dtype)
    room[:, : lines.shape[1]] = lines
    return room


def registers(kind: str, first: int, count: int) -> str:
    name = "%rd" if kind == "f64" else "%r"
    return "{" + ", ".join(f"{name}{first + i}" for i in range(count)) + "}"


def body(shape: str, kind: str, d: str, c: str, counts, orders, space: str = "") -> str:
    """PTX of d = a * b + c. orders: of a, b, c and d."""
    a_order, b_order, c_order, d_order = orders
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    strides = [k if a_order == "row" else m, n if b_order == "row" else k]
    strides += [n if order == "row" else m for order in (c_order, d_order)]
    a, b, held = registers(kind, 20, counts[0]), registers(kind, 40, counts[1]), counts[2]
    out = 4 if d == "f16" and kind == "f16" else 8 if kind != "f64" else 2
    types = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    rounding = ".rn" if kind == "f64" else ""
    sums, product = registers(c, 60, held), registers(d, 80, out)
    loads = "\n".join(f"ld.param.u64 %rd{i + 1}, [{name}];" for i, name in enumerate("abcd"))
    return f"""{loads}
    mov.u32 %r1, {strides[0] + 8};
    wmma.load.a.sync.aligned.{a_order}.{shape}{space}.{kind} {a}, [%rd1], %r1;
    wmma.load.b.sync.aligned.{b_order}.{shape}{space}.{kind} {b}, [%rd2], {strides[1] + 8};
    wmma.load.c.sync.aligned.{c_order}.{shape}.global.{c} {sums}, [%rd3], {strides[2] + 8};
    wmma.mma.sync.aligned.{a_order}.{b_order}.{shape}.{types}{rounding} {product}, {a}, {b}, {sums};
    wmma.store.d.sync.aligned.{d_order}.{shape}.global.{d} [%rd4], {product}, {strides[3] + 8};"""


def matrices(shape: str, kind: str, d: str, c: str):
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    rng = np.random.default_rng(5)
    low, high = (0, 9) if kind == "u8" else (-4, 5)
    a, b, added = (rng.integers(low, high, size) for size in ((m, k), (k, n), (m, n)))
    return a, b, added, a @ b + added


@pytest.mark.parametrize("orders", [("row", "col", "row", "row"), ("col", "row", "col", "col")])
@pytest.mark.parametrize(("shape", "kind", "d", "c", "counts"), FORMS)
def test_a_product(shape, kind, d, c, counts, orders):
    a, b, added, expected = matrices(shape, kind, d, c)
    kinds = (kind, kind, c, d)
    given = [torch.from_numpy(x).to(TORCH[t]) for x, t in zip((a, b, added, 0 * added), kinds)]
    memory = [laid_out(x, order) for x, order in zip(given, orders)]
    text = kernel(body(shape, kind, d, c, counts, orders), [f".u64 {x}" for x in "abcd"])
    run(text, *memory)
    out = memory[3] if orders[3] == "row" else memory[3].T
    m, n = expected.shape
    assert np.array_equal(out[:m, :n].to(torch.float64).numpy(), expected)
    rest = memory[3][:, n:] if orders[3] == "row" else memory[3][:, m:]
    assert (rest == 7).all()  # nothing is stored beside the matrix


def test_shared_memory_by_a_32_bit_address():
    """The matrix goes through shared memory, eight rows of it in one fragment with an offset."""
    x = torch.arange(16 * 16, dtype=torch.float32).reshape(16, 16)
    y = torch.zeros(16, 16)
    sums = registers("f32", 60, 8)
    text = kernel(
        f"""ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, dyn;
        wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {sums}, [%rd1], 16;
        wmma.store.d.sync.aligned.col.m16n16k16.shared.f32 [%r1+64], {sums}, 16;
        bar.warp.sync 0xffffffff;
        wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {sums}, [%r1+64];
        wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd2], {sums};""",
        [".u64 a", ".u64 b"],
    )
    run(text, x, y, smem=2048)
    assert torch.equal(y, x.T)


def test_results_may_take_registers_of_operands():
    """PTX lets d be the registers of c in any order, and of a: nothing is overwritten too early."""
    ones = torch.ones(16, 16, dtype=torch.float16)
    out = torch.zeros(16, 16)
    a = registers("f16", 20, 8)
    text = kernel(
        f"""ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
        wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {a}, [%rd1], 16;
        wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {registers("f16", 40, 8)}, [%rd1], 16;
        wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {registers("f32", 60, 8)}, [%rd2], 16;
        wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {a}, {a}, {registers("f16", 40, 8)},
          {registers("f32", 60, 8)};
        wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd2], {a}, 16;""",
        [".u64 a", ".u64 b"],
    )
    run(text, ones, out)
    assert (out == 16).all()


@pytest.mark.parametrize(
    "statement",
    [
        "wmma.load.a.sync.aligned.row.m8n8k32.global.s4 {%r20}, [%rd1], 32;",
        "wmma.load.a.sync.aligned.row.m16n16k16.global.tf32 {%r20, %r21, %r22, %r23}, [%rd1], 16;",
    ],
)
def test_what_is_not_modelled_is_refused_with_its_line(statement):
    x = torch.zeros(64, dtype=torch.int32)
    text = kernel(f"ld.param.u64 %rd1, [a]; {statement}", [".u64 a"])
    with pytest.raises(EmulatorError, match=r"kernel.py:1(.|\n)*wmma"):
        run(text, x)
