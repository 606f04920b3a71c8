"""Triton kernels of the tests. Comments mark lines that a message has to name."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def scaled_sum(x, y, out, n, s, B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < n
    if EVEN:
        mask = tl.full((B,), True, tl.int1)
    tl.store(out + i, tl.load(x + i, mask=mask) * s + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def beyond(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + 4096 + i))  # beyond the tensor


@triton.jit
def host_matmul(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([k, 0]), acc)
    c.store([row, 0], acc.to(tl.float16))


@triton.jit
def device_matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    b_desc = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    c_desc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        acc = tl.dot(a_desc.load([row, k]), b_desc.load([k, 0]), acc)
    c_desc.store([row, 0], acc.to(tl.float16))


@triton.jit
def single_stage(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float32)
    for q in tl.range(0, K, BK, num_stages=1):
        x = tl.load(a + i[:, None] * K + q + k[None, :])
        y = tl.load(b + (q + k)[:, None] * N + j[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + i[:, None] * N + j[None, :], acc)


@triton.jit
def many(x, out, n, h, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.device_assert(i < n)
    tl.device_print("v", v)
    tl.atomic_add(out, tl.sum(v))
    tl.atomic_max(out + 1, tl.max(v))
    w = tl.inline_asm_elementwise(
        "mul.f32 $0, $1, 2.0;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + 2 + i, tl.extra.cuda.libdevice.sin(w) + h)


@triton.jit
def asserts(x):
    tl.device_assert(tl.load(x) > 1e9, "too small")  # the assertion


@triton.jit
def whole_sum(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.sum(tl.load(x + i)) + i.to(tl.float32))


@triton.jit
def nested(pair, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(pair[0] + i) + pair[1][0])


@triton.autotune([triton.Config({"B": b}) for b in (64, 256)], key=["n"])
@triton.jit
def tuned(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, i.to(tl.float32), mask=i < n)


@triton.jit(noinline=True)
def scaled_plus(x, y, s):
    return x * s + y


@triton.jit(noinline=True)
def chosen(p, x, s):
    y = tl.load(p)
    z = x
    if s > 1.0:
        z = scaled_plus(x, y, s)
    return z


@triton.jit
def calls(p, out, s):
    i = tl.program_id(0)
    once = chosen(p + i, i.to(tl.float32), s)
    tl.store(out + i, once + chosen(p + i, once, 0.5))


@triton.jit
def sum_of_squares(x, out, B: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * B + tl.arange(0, B))
    tl.store(out + row, tl.sum(v * v))


@triton.jit
def in_place(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, tl.load(x + i) + 1)


@triton.jit
def shifted(x, SHIFT: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + (i + SHIFT) % B, tl.load(x + i) + 1)  # elsewhere


@triton.jit
def running_sum(a, b, sums, n, M: tl.constexpr, K: tl.constexpr):
    row, k = tl.arange(0, M), tl.arange(0, K)
    h = tl.zeros((M, M), tl.float32)
    for i in range(n):
        x = tl.load(a + i * M * K + row[:, None] * K + k[None, :])
        y = tl.load(b + i * M * K + k[:, None] * M + row[None, :])
        tl.store(sums + i * M * M + row[:, None] * M + row[None, :], h)
        h += tl.dot(x, y)
    tl.store(sums + n * M * M + row[:, None] * M + row[None, :], h)
