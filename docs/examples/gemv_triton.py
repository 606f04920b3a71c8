"""An NVFP4 gemv in Triton: c = a b^T for one row of b, with the block scales in the tensor core.

A program takes 128 rows of a. b is padded to 128 rows, of which 16 are read and one counts: the
tensor core has no narrower tile. `custom_kernel` is what eval.py and the leaderboards call.
Run it without a B200: python eval.py test gemv --submission docs/examples/gemv_triton.py
"""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS, STEP = 128, 16, 256  # of a and of b in a program; of K in a step
BLOCK = 16  # values that share a scale
PADDED = 128  # rows of b


@triton.jit
def gemv(
    a,
    b,
    sfa,
    sfb,
    c,
    M,
    K,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    bytes_, blocks = tl.arange(0, STEP // 2), tl.arange(0, STEP // BLOCK)
    row = (batch * M + tl.minimum(rows, M - 1))[:, None]  # of all batches
    column = (batch * PADDED + columns)[:, None]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, K, STEP):
        i, j = (k // 2 + bytes_)[None, :], (k // BLOCK + blocks)[None, :]
        there, scaled = i < K // 2, j < K // BLOCK
        x = tl.load(a + row * (K // 2) + i, there, 0)
        y = tl.load(b + column * (K // 2) + i, there, 0)
        x_scale = tl.load(sfa + row * (K // BLOCK) + j, scaled, 0.0)
        y_scale = tl.load(sfb + column * (K // BLOCK) + j, scaled, 0.0)
        sums = tl.dot_scaled(x, x_scale, "e2m1", y.T, y_scale, "e2m1", sums)
    first = tl.sum(tl.where(columns[None, :] == 0, sums, 0.0), 1)
    tl.store(c + batch * M + rows, first.to(tl.float16), rows < M)


def custom_kernel(data):
    """a, b, sfa and sfb have K in neighbouring bytes, then rows, then batches."""
    a, b, sfa, sfb, _, _, c = data
    m, _, l = c.shape
    k = a.shape[1] * 2
    codes = (tensor.view(torch.uint8) for tensor in (a, b))
    grid = (triton.cdiv(m, ROWS), l)
    gemv[grid](*codes, sfa, sfb, c, m, k, PADDED, ROWS, COLUMNS, STEP, BLOCK, num_stages=3)
    return c
