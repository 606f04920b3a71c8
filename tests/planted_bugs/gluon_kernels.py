"""A Gluon kernel with bugs of a name: c = a @ b.T by TMA, mbarriers and tcgen05, a role a partition.

BUG: "" for the kernel as it is meant. Lines that reports have to name are marked.
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
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

try:  # Triton 3.8
    load, store = tma.async_load, tma.async_store
except AttributeError:
    load, store = tma.async_copy_global_to_shared, tma.async_copy_shared_to_global

ROWS, COLUMNS, STEP, STAGES = 128, 64, 64, 2  # of a CTA's tile; of K; buffers


@gluon.jit
def load_and_store(a, b, c, a_bufs, b_bufs, c_smem, empty, full, stored, K, BUG: gl.constexpr):
    stages: gl.constexpr = a_bufs.shape[0]
    step: gl.constexpr = a.block_type.shape[1]
    for k in range(0, K, step):
        i = k // step % stages
        phase = k // step // stages & 1
        if BUG != "no_empty_wait":
            mbarrier.wait(empty.index(i), phase ^ 1)
        ready = full.index(i)
        if BUG == "too_many_bytes":
            mbarrier.expect(ready, 2 * a.block_type.nbytes + b.block_type.nbytes)  # mark: too many
        elif BUG == "too_few_bytes":
            mbarrier.expect(ready, a.block_type.nbytes)  # mark: too few
        else:
            mbarrier.expect(ready, a.block_type.nbytes + b.block_type.nbytes)
        load(a, [0, k], ready, a_bufs.index(i))  # mark: load a
        load(b, [0, k], ready, b_bufs.index(i))  # mark: load b
    mbarrier.wait(stored, 0)
    store(c, [0, 0], c_smem)  # mark: store
    tma.store_wait(pendings=0)


@gluon.jit
def multiply(a, a_bufs, b_bufs, empty, full, acc, done, K, BUG: gl.constexpr):
    stages: gl.constexpr = a_bufs.shape[0]
    step: gl.constexpr = a.block_type.shape[1]
    for k in range(0, K, step):
        i = k // step % stages
        phase = k // step // stages & 1
        if BUG == "phase_off":
            mbarrier.wait(full.index(i), phase ^ 1)  # mark: wrong phase
        elif BUG != "no_full_wait":
            mbarrier.wait(full.index(i), phase)  # mark: wait full
        x, y = a_bufs.index(i), b_bufs.index(i).permute((1, 0))
        tcgen05_mma(x, y, acc, use_acc=k > 0)  # mark: mma
        tcgen05_commit(empty.index(i))
    if BUG != "no_commit":
        tcgen05_commit(done)


@gluon.jit
def finish(c_smem, acc, done, stored, BUG: gl.constexpr):
    if BUG != "no_done_wait":
        mbarrier.wait(done, 0)  # mark: wait done
    c_smem.store(acc.load().to(c_smem.dtype))  # mark: store shared
    if BUG != "no_fence":
        fence_async_shared()
    mbarrier.arrive(stored, count=1)


@gluon.jit
def matmul(a, b, c, K, STAGES: gl.constexpr, BUG: gl.constexpr):
    a_bufs = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)
    b_bufs = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    c_smem = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    stored = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=1)
        mbarrier.init(full.index(i), count=1)
    mbarrier.init(done, count=1)
    mbarrier.init(stored, count=1)
    rows: gl.constexpr = c.block_type.shape[0]
    columns: gl.constexpr = c.block_type.shape[1]
    tmem: gl.constexpr = TensorMemoryLayout([rows, columns], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [rows, columns], tmem)
    gl.warp_specialize(
        [
            (finish, (c_smem, acc, done, stored, BUG)),
            (load_and_store, (a, b, c, a_bufs, b_bufs, c_smem, empty, full, stored, K, BUG)),
            (multiply, (a, a_bufs, b_bufs, empty, full, acc, done, K, BUG)),
        ],
        [1, 1],
        [24, 24],
    )


def descriptor(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)
    return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)


def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, bug: str) -> None:
    """a: [ROWS, K], b: [COLUMNS, K], c: [ROWS, COLUMNS], all float16."""
    tensors = descriptor(a, ROWS, STEP), descriptor(b, COLUMNS, STEP), descriptor(c, ROWS, COLUMNS)
    matmul[(1,)](*tensors, a.shape[1], STAGES, bug, num_warps=4)
