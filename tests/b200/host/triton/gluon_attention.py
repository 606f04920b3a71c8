"""A small attention in Gluon, softmax(q k') v of 128 rows at a time, with mistakes of a name.

MISTAKE: "" for the kernel as it is meant. Lines that reports have to name are marked. "columns" and
"quarter" are those that Triton's compiler refuses.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
)

TILE, TOKENS, WIDE = 128, 64, 64  # rows of a tile, keys, columns of a head
# A row a thread, where warp 1 asks for rows 64 to 95 and warp 2 for rows 32 to 63.
OTHER_QUARTER = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1 << bit] for bit in range(6)],
        lane_bases=[[1 << bit, 0] for bit in range(5)],
        warp_bases=[[64, 0], [32, 0]],
        block_bases=[],
        shape=[128, 64],
    )
)


@gluon.jit
def fetched(pointer, stride, ROWS: gl.constexpr, WIDE: gl.constexpr, layout: gl.constexpr):
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, WIDE, gl.SliceLayout(0, layout))
    return gl.load(pointer + rows[:, None] * stride + columns[None, :])


@gluon.jit
def attention(q, k, v, out, TILES: gl.constexpr, HEADS: gl.constexpr, MISTAKE: gl.constexpr):
    """q, out: [TILES * 128, HEADS, 64]; k, v: [HEADS, 64, 64]. A CTA has a head."""
    head = gl.program_id(0)
    row: gl.constexpr = HEADS * 64
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 64], gl.bfloat16)
    keys: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    tmem: gl.constexpr = TensorMemoryLayout([128, 64], col_stride=1)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [128, 64], wide)
    p_smem = gl.allocate_shared_memory(gl.bfloat16, [128, 64], wide)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [64, 64], keys)
    v_smem = gl.allocate_shared_memory(gl.bfloat16, [64, 64], keys)
    scores = allocate_tensor_memory(gl.float32, [128, 64], tmem)
    if MISTAKE == "columns":
        more: gl.constexpr = TensorMemoryLayout([128, 128], col_stride=1)
        sums = scores._reinterpret(gl.float32, [128, 128], more).slice(64, 64)
    else:
        sums = allocate_tensor_memory(gl.float32, [128, 64], tmem)
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    k_smem.store(fetched(k + head * 64 * 64, 64, 64, 64, flat))
    v_smem.store(fetched(v + head * 64 * 64, 64, 64, 64, flat))
    for tile in range(TILES):
        q_smem.store(fetched(q + tile * 128 * row + head * 64, row, 128, 64, flat))
        fence_async_shared()
        goes_on = tile > 0 if MISTAKE == "goes_on" else False
        tcgen05_mma(q_smem, k_smem.permute((1, 0)), scores, use_acc=goes_on)  # mark: mma
        tcgen05_commit(done)
        mbarrier.wait(done, 0)
        if MISTAKE == "quarter":
            s = scores.load(OTHER_QUARTER)
        else:
            s = scores.load()
        p = gl.exp(s - gl.max(s, 1)[:, None])
        p_smem.store((p / gl.sum(p, 1)[:, None]).to(gl.bfloat16))
        fence_async_shared()
        tcgen05_mma(p_smem, v_smem, sums, use_acc=False)
        tcgen05_commit(done)
        mbarrier.wait(done, 1)
        READ: gl.constexpr = 16 if MISTAKE == "few_read" else 64
        o = gl.convert_layout(sums.slice(0, READ).load(), flat)  # mark: load
        rows = gl.arange(0, 128, gl.SliceLayout(1, flat))
        columns = gl.arange(0, READ, gl.SliceLayout(0, flat))
        step: gl.constexpr = 64 if MISTAKE == "stride" else row
        at = out + (tile * 128 + rows[:, None]) * step + head * 64 + columns[None, :]
        gl.store(at, o)  # mark: store


def run(tensors: tuple[torch.Tensor, ...], mistake: str) -> None:
    """tensors: q, k, v (bfloat16) and out (float32)."""
    q, k = tensors[:2]
    attention[(k.shape[0],)](*tensors, q.shape[0] // TILE, k.shape[0], mistake, num_warps=4)
