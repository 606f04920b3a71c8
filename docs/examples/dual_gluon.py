"""An NVFP4 dual gemm in Gluon: c = silu(a b1^T) * (a b2^T), a tile of 128 x 64 a CTA, two stages.

All four warps do everything: one thread asks for the loads and the MMAs, all bring the scales to
tensor memory. A TMA load gives zeros beyond m, n and k. `custom_kernel` is what eval.py calls.
Run it without a B200: python eval.py test dual --submission docs/examples/dual_gluon.py
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma_scaled,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS, COLUMNS, STEP = 128, 64, 256  # of a tile; of K
BLOCK = 16  # values that share a scale


@gluon.jit
def load(k, stage, row, column, a, b1, b2, a_bufs, b1_bufs, b2_bufs, full):
    """Ask for the codes of a K-step."""
    bar = full.index(stage)
    mbarrier.expect(bar, a.block_type.nbytes + 2 * b1.block_type.nbytes)
    tma.async_load(a, [row, k // 2], bar, a_bufs.index(stage))
    tma.async_load(b1, [column, k // 2], bar, b1_bufs.index(stage))
    tma.async_load(b2, [column, k // 2], bar, b2_bufs.index(stage))


@gluon.jit
def bring_scales(scales, first_row, end, k, K, tmem, BLOCK: gl.constexpr):
    """Scale factors of a K-step, a row a thread, from global to tensor memory."""
    rows: gl.constexpr = tmem.shape[0]
    blocks: gl.constexpr = tmem.shape[1]
    lay: gl.constexpr = gl.BlockedLayout([1, blocks], [32, 1], [gl.num_warps(), 1], [1, 0])
    i = first_row + gl.arange(0, rows, layout=gl.SliceLayout(1, lay))
    j = k // BLOCK + gl.arange(0, blocks, layout=gl.SliceLayout(0, lay))
    inside = (i < end)[:, None] & (j < K // BLOCK)[None, :]
    found = gl.load(scales + i[:, None] * (K // BLOCK) + j[None, :], inside, 0.0)
    tmem.store(gl.convert_layout(found, tmem.get_reg_layout()))


@gluon.jit
def dual_gemm(a, b1, b2, c, sfa, sfb1, sfb2, STEP: gl.constexpr, BLOCK: gl.constexpr):
    rows: gl.constexpr = a.block_type.shape[0]
    columns: gl.constexpr = b1.block_type.shape[0]
    row = gl.program_id(0) * rows
    column = gl.program_id(1) * columns
    M, N, K = a.shape[0], b1.shape[0], a.shape[1] * 2
    a_bufs = gl.allocate_shared_memory(a.dtype, [2] + a.block_type.shape, a.layout)
    b1_bufs = gl.allocate_shared_memory(b1.dtype, [2] + b1.block_type.shape, b1.layout)
    b2_bufs = gl.allocate_shared_memory(b2.dtype, [2] + b2.block_type.shape, b2.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
    mbarrier.init(done, count=1)
    sums: gl.constexpr = TensorMemoryLayout([rows, columns], col_stride=1)
    p1 = allocate_tensor_memory(gl.float32, [rows, columns], sums)
    p2 = allocate_tensor_memory(gl.float32, [rows, columns], sums)
    scales: gl.constexpr = TensorMemoryScalesLayout()
    ta = allocate_tensor_memory(gl.float8e4nv, [rows, STEP // BLOCK], scales)
    t1 = allocate_tensor_memory(gl.float8e4nv, [columns, STEP // BLOCK], scales)
    t2 = allocate_tensor_memory(gl.float8e4nv, [columns, STEP // BLOCK], scales)

    load(0, 0, row, column, a, b1, b2, a_bufs, b1_bufs, b2_bufs, full)
    for k in range(0, K, STEP):
        step = k // STEP
        stage = step % 2
        if k + STEP < K:  # the other stage is free: the MMAs of the step before are done
            load(k + STEP, 1 - stage, row, column, a, b1, b2, a_bufs, b1_bufs, b2_bufs, full)
        bring_scales(sfa, row, M, k, K, ta, BLOCK)
        bring_scales(sfb1, column, N, k, K, t1, BLOCK)
        bring_scales(sfb2, column, N, k, K, t2, BLOCK)
        mbarrier.wait(full.index(stage), step // 2 & 1)
        x = a_bufs.index(stage)
        y1 = b1_bufs.index(stage).permute((1, 0))
        y2 = b2_bufs.index(stage).permute((1, 0))
        tcgen05_mma_scaled(x, y1, p1, ta, t1, "e2m1", "e2m1", use_acc=k > 0)
        tcgen05_mma_scaled(x, y2, p2, ta, t2, "e2m1", "e2m1", use_acc=k > 0)
        tcgen05_commit(done)
        mbarrier.wait(done, step & 1)

    lay: gl.constexpr = p1.get_reg_layout()
    left, right = p1.load(lay), p2.load(lay)
    i = row + gl.arange(0, rows, layout=gl.SliceLayout(1, lay))
    j = column + gl.arange(0, columns, layout=gl.SliceLayout(0, lay))
    inside = (i < M)[:, None] & (j < N)[None, :]
    found = left / (1 + gl.exp(-left)) * right
    gl.store(c + i[:, None] * N + j[None, :], found.to(gl.float16), inside)


def described(codes, rows):
    box = [rows, STEP // 2]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.uint8)
    return TensorDescriptor.from_tensor(codes.view(torch.uint8), box, layout)


def custom_kernel(data):
    """Matrices have K (c: N) in neighbouring bytes, then rows, then batches."""
    a, b1, b2, sfa, sfb1, sfb2, _, _, _, c = data
    m, n, l = c.shape
    for i in range(l):
        codes = (
            described(x[:, :, i], rows) for x, rows in ((a, ROWS), (b1, COLUMNS), (b2, COLUMNS))
        )
        others = (x[:, :, i] for x in (c, sfa, sfb1, sfb2))
        grid = (triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS))
        dual_gemm[grid](*codes, *others, STEP, BLOCK, num_warps=4)
    return c
