"""Kernels in CuTe DSL with planted bugs: a GEMM through two stages, a copy through shared memory.

`bug` names the bug at compile time, "" compiles the corrected twin. A comment `mark:` gives a line
the name by which the planted bugs (dsl.py) hold the report against it.
"""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from tests.b200.host.dsl.dsl_gemm import MNK, operands, partition

THREADS = 128
STAGES = 2
STAGE_BYTES = (MNK[0] + MNK[1]) * MNK[2] * 2
TILE = (16, 64)  # rows, columns of a copied tile


# --- GEMM: warp 0 loads, warp 1 multiplies, all four store --------------------------------------


@cute.struct
class Storage:
    full: cute.struct.MemRange[cutlass.Int64, STAGES]
    empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    done: cute.struct.MemRange[cutlass.Int64, 1]
    taddr: cute.struct.MemRange[cutlass.Int32, 1]


@cute.kernel
def gemm_kernel(
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    mA: cute.Tensor,
    load_b: cute.CopyAtom,
    mB: cute.Tensor,
    mC: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    k_tiles: cutlass.Constexpr,
    bug: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.utils.SmemAllocator()
    storage = smem.allocate(Storage)
    sA = smem.allocate_tensor(cutlass.Float16, a_layout.outer, 128, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(cutlass.Float16, b_layout.outer, 128, swizzle=b_layout.inner)
    full, empty = storage.full.data_ptr(), storage.empty.data_ptr()
    done, taddr = storage.done.data_ptr(), storage.taddr.data_ptr()
    if warp == 0:
        cute.arch.alloc_tmem(64, taddr)  # mark: alloc
        with cute.arch.elect_one():
            for s in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(full + s, 1)  # mark: init full
                cute.arch.mbarrier_init(empty + s, 1)  # mark: init empty
            cute.arch.mbarrier_init(done, 1)  # mark: init done
        if cutlass.const_expr(bug != "no_init_fence"):
            cute.arch.mbarrier_init_fence()
    cute.arch.barrier()

    tA, tB, to_a, from_a, to_b, from_b, gC = partition(mma, load_a, mA, load_b, mB, mC, sA, sB)
    pointer = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, taddr)
    acc = cute.make_tensor(pointer, mma.make_fragment_C(mma.partition_shape_C(MNK[:2])).layout)
    if warp == 0:
        for k in cutlass.range_constexpr(k_tiles):
            s, phase = k % STAGES, k // STAGES % 2
            if cutlass.const_expr(bug != "no_empty_wait"):
                cute.arch.mbarrier_wait(empty + s, phase ^ 1)
            if cutlass.const_expr(bug == "expect_of_all_lanes"):
                cute.arch.mbarrier_arrive_and_expect_tx(full + s, STAGE_BYTES)  # mark: expect
            else:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + s, STAGE_BYTES)
            cute.copy(load_a, from_a[(None, k)], to_a[(None, s)], tma_bar_ptr=full + s)  # mark: a
            cute.copy(load_b, from_b[(None, k)], to_b[(None, s)], tma_bar_ptr=full + s)  # mark: b
    if warp == 1:
        for k in cutlass.range_constexpr(k_tiles):
            s, phase = k % STAGES, k // STAGES % 2
            off = 1 if cutlass.const_expr(bug == "full_parity") else 0
            cute.arch.mbarrier_wait(full + s, phase ^ off)  # mark: wait full
            for step in cutlass.range_constexpr(cute.size(tA, mode=[2])):
                at = (None, None, step, s)
                mma.set(tcgen05.Field.ACCUMULATE, k + step > 0)
                cute.gemm(mma, acc, tA[at], tB[at], acc)  # mark: mma
            if cutlass.const_expr(bug == "commit_of_all_lanes"):
                tcgen05.commit(empty + s)  # mark: commit of all lanes
            else:
                with cute.arch.elect_one():
                    tcgen05.commit(empty + s)
        if cutlass.const_expr(bug != "no_commit"):
            with cute.arch.elect_one():
                tcgen05.commit(done)
    if cutlass.const_expr(bug != "no_done_wait"):
        cute.arch.mbarrier_wait(done, 0)  # mark: wait done
    columns = 16 if cutlass.const_expr(bug == "first_16_columns") else 64
    repeats = tcgen05.Repetition.x16 if columns == 16 else tcgen05.Repetition.x64
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(repeats), cutlass.Float32)
    tile = (MNK[0], columns)
    tAcc = cute.local_tile(acc[(None, None), 0, 0], tile, (0, 0))
    tC = cute.local_tile(gC[(None, None), 0, 0], tile, (0, 0))
    copy = tcgen05.make_tmem_copy(atom, tAcc).get_slice(thread)
    target = copy.partition_D(tC)
    registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
    cute.copy(copy, copy.partition_S(tAcc), registers)  # mark: tmem load
    cute.autovec_copy(registers, target)
    cute.arch.barrier()
    if cutlass.const_expr(bug != "no_dealloc"):
        if warp == 0:
            cute.arch.dealloc_tmem(pointer, 64)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, bug: cutlass.Constexpr):
    """c = a b^T; a: [128, k] f16, b: [64, k] f16, c: [128, 64] f32; k a multiple of 64."""
    mma, load_a, mA, load_b, mB, a_layout, b_layout, k_tiles = operands(a, b, STAGES)
    gemm_kernel(mma, load_a, mA, load_b, mB, c, a_layout, b_layout, k_tiles, bug).launch(
        grid=(1, 1, 1), block=(THREADS, 1, 1)
    )


# --- copy: load a tile, change it, store it -----------------------------------------------------


@cute.kernel
def negate_kernel(
    load: cute.CopyAtom,
    source: cute.Tensor,
    store: cute.CopyAtom,
    target: cute.Tensor,
    bug: cutlass.Constexpr,
):
    row, column, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.utils.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float32, cute.make_ordered_layout(TILE, (1, 0)), 128)
    barrier = smem.allocate_array(cutlass.Int64)
    one = cute.make_layout(1)
    at = (column, row) if cutlass.const_expr(bug == "swapped") else (row, column)
    at = (row, 0) if cutlass.const_expr(bug == "column_not_advanced") else at
    to = (row // 2, column) if cutlass.const_expr(bug == "same_tile") else (row, column)
    s_in, g_in = cpasync.tma_partition(
        load,
        0,
        one,
        cute.group_modes(tile, 0, 2),
        cute.group_modes(cute.local_tile(source, TILE, at), 0, 2),
    )
    s_out, g_out = cpasync.tma_partition(
        store,
        0,
        one,
        cute.group_modes(tile, 0, 2),
        cute.group_modes(cute.local_tile(target, TILE, to), 0, 2),
    )
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, TILE[0] * TILE[1] * 4)
        cute.copy(load, g_in, s_in, tma_bar_ptr=barrier)  # mark: load
    cute.arch.mbarrier_wait(barrier, 0)
    for i in cutlass.range_constexpr(TILE[0] * TILE[1] // THREADS):
        place = (i * THREADS // TILE[1] + thread // TILE[1], thread % TILE[1])
        tile[place] = -tile[place]  # mark: write
    if cutlass.const_expr(bug != "no_proxy_fence"):
        cute.arch.fence_view_async_shared()
    if cutlass.const_expr(bug != "no_barrier"):
        cute.arch.barrier()
    if warp == 0:
        cute.copy(store, s_out, g_out)  # mark: store
        cute.arch.cp_async_bulk_commit_group()
        if cutlass.const_expr(bug != "no_store_wait"):
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def negate(source: cute.Tensor, target: cute.Tensor, bug: cutlass.Constexpr):
    """target = -source, both [rows, columns] f32; a CTA a tile."""
    layout = cute.make_ordered_layout(TILE, (1, 0))
    if cutlass.const_expr(bug == "half_stride"):
        rows = cute.make_layout(source.shape, stride=(source.shape[1] // 2, 1))
        source = cute.make_tensor(source.iterator, rows)
    if cutlass.const_expr(bug == "padded_stride"):
        rows = cute.make_layout((56, source.shape[1]), stride=(source.shape[1] + 16, 1))
        source = cute.make_tensor(source.iterator, rows)
    load, source_map = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), source, layout, TILE
    )
    store, target_map = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), target, layout, TILE
    )
    grid = (*[cute.ceil_div(n, t) for n, t in zip(source.shape, TILE)], 1)
    negate_kernel(load, source_map, store, target_map, bug).launch(grid=grid, block=(THREADS, 1, 1))
