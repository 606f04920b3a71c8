"""Small CuTe DSL kernels for test_dsl_kernels.py. Shapes are in the docstrings."""

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync, tcgen05

from tests.b200.host.dsl.dsl_gemm import MNK, operands, partition

THREADS = 128
TILE = (32, 64)  # rows, columns of a copied tile
RING = 4  # CTAs of a cluster


# --- elementwise ------------------------------------------------------------------------------


@cute.kernel
def scaled_sum_kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    a, b = x[(None, at)].load(), y[(None, at)].load()
    out[(None, at)].store(a * factor + b)


@cute.jit
def scaled_sum(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32):
    """out = factor * x + y; x, y, out: [n] f32, n a multiple of 512; 16 bytes a thread."""
    parts = [cute.zipped_divide(t, (4,)) for t in (x, y, out)]
    blocks = cute.size(x) // (4 * THREADS)
    scaled_sum_kernel(*parts, factor).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


# --- TMA copy ---------------------------------------------------------------------------------


@cute.kernel
def tma_copy_kernel(
    load: cute.CopyAtom, source: cute.Tensor, store: cute.CopyAtom, target: cute.Tensor
):
    row, column, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.utils.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float32, cute.make_ordered_layout(TILE, (1, 0)), 128)
    barrier = smem.allocate_array(cutlass.Int64)
    one = cute.make_layout(1)
    from_tile = cute.local_tile(source, TILE, (row, column))
    to_tile = cute.local_tile(target, TILE, (row, column))
    s_in, g_in = cpasync.tma_partition(
        load, 0, one, cute.group_modes(tile, 0, 2), cute.group_modes(from_tile, 0, 2)
    )
    s_out, g_out = cpasync.tma_partition(
        store, 0, one, cute.group_modes(tile, 0, 2), cute.group_modes(to_tile, 0, 2)
    )
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, TILE[0] * TILE[1] * 4)
        cute.copy(load, g_in, s_in, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    if warp == 0:
        cute.copy(store, s_out, g_out)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def tma_copy(source: cute.Tensor, target: cute.Tensor):
    """target = source, both [rows, columns] f32; a CTA a tile; tiles may reach over the edge."""
    layout = cute.make_ordered_layout(TILE, (1, 0))
    load, source_map = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), source, layout, TILE
    )
    store, target_map = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), target, layout, TILE
    )
    grid = (*[cute.ceil_div(n, t) for n, t in zip(source.shape, TILE)], 1)
    tma_copy_kernel(load, source_map, store, target_map).launch(grid=grid, block=(64, 1, 1))


# --- GEMM -------------------------------------------------------------------------------------


@cute.struct
class GemmStorage:
    loaded: cute.struct.MemRange[cutlass.Int64, 1]
    done: cute.struct.MemRange[cutlass.Int64, 1]
    finished: cute.struct.MemRange[cutlass.Int64, 1]
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
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.utils.SmemAllocator()
    storage = smem.allocate(GemmStorage)
    sA = smem.allocate_tensor(cutlass.Float16, a_layout.outer, 128, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(cutlass.Float16, b_layout.outer, 128, swizzle=b_layout.inner)
    loaded, done, taddr = (
        storage.loaded.data_ptr(),
        storage.done.data_ptr(),
        storage.taddr.data_ptr(),
    )
    finished = storage.finished.data_ptr()
    if warp == 0:
        cute.arch.alloc_tmem(64, taddr)
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(loaded, 1)
            cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_init(finished, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()

    tA, tB, to_a, from_a, to_b, from_b, gC = partition(mma, load_a, mA, load_b, mB, mC, sA, sB)
    pointer = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, taddr)
    acc = cute.make_tensor(pointer, mma.make_fragment_C(mma.partition_shape_C(MNK[:2])).layout)
    if warp == 0:
        for k in cutlass.range_constexpr(k_tiles):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(loaded, (MNK[0] + MNK[1]) * MNK[2] * 2)
            cute.copy(load_a, from_a[(None, k)], to_a[(None, 0)], tma_bar_ptr=loaded)
            cute.copy(load_b, from_b[(None, k)], to_b[(None, 0)], tma_bar_ptr=loaded)
            cute.arch.mbarrier_wait(loaded, k % 2)
            for step in cutlass.range_constexpr(cute.size(tA, mode=[2])):
                at = (None, None, step, 0)
                mma.set(tcgen05.Field.ACCUMULATE, k + step > 0)
                cute.gemm(mma, acc, tA[at], tB[at], acc)
            with cute.arch.elect_one():
                tcgen05.commit(done)
            cute.arch.mbarrier_wait(done, k % 2)
        with cute.arch.elect_one():
            tcgen05.commit(finished)
    cute.arch.mbarrier_wait(finished, 0)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), cutlass.Float32)
    copy = tcgen05.make_tmem_copy(atom, acc[(None, None), 0, 0]).get_slice(thread)
    target = copy.partition_D(gC[(None, None), 0, 0])
    registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
    cute.copy(copy, copy.partition_S(acc[(None, None), 0, 0]), registers)
    cute.autovec_copy(registers, target)
    cute.arch.barrier()
    if warp == 0:
        cute.arch.dealloc_tmem(pointer, 64)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """c = a b^T; a: [128, k] f16, b: [64, k] f16, c: [128, 64] f32; k a multiple of 64."""
    mma, load_a, mA, load_b, mB, a_layout, b_layout, k_tiles = operands(a, b, 1)
    gemm_kernel(mma, load_a, mA, load_b, mB, c, a_layout, b_layout, k_tiles).launch(
        grid=(1, 1, 1), block=(THREADS, 1, 1)
    )


# --- cluster ----------------------------------------------------------------------------------


@cute.kernel
def ring_kernel(x: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    smem = cutlass.utils.SmemAllocator()
    mine = smem.allocate_array(cutlass.Float32, THREADS)
    there = cute.arch.map_dsmem_ptr(mine, (rank + 1) % RING)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    at = block * THREADS + thread
    llvm.inline_asm(
        None,
        [(there + thread).toint().ir_value(), x[at].ir_value()],
        "st.shared::cluster.f32 [$0], $1;",
        "r,f",
        has_side_effects=True,
    )
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    out[at] = cute.make_tensor(mine, cute.make_layout(THREADS))[thread]


@cute.jit
def ring(x: cute.Tensor, out: cute.Tensor):
    """Each CTA of a cluster of 4 hands its 128 values of x (f32) to the next one."""
    ctas = cute.size(x) // THREADS
    ring_kernel(x, out).launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), cluster=(RING, 1, 1))


# --- atomics ----------------------------------------------------------------------------------


@cute.kernel
def histogram_kernel(x: cute.Tensor, counts: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    bin_ = x[block * THREADS + thread]
    cute.arch.atomic_add(counts.iterator + bin_, cutlass.Int32(1))


@cute.jit
def histogram(x: cute.Tensor, counts: cute.Tensor):
    """counts[v] += occurrences of v in x; both i32; the size of x is a multiple of 128."""
    blocks = cute.size(x) // THREADS
    histogram_kernel(x, counts).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


# --- printing ---------------------------------------------------------------------------------


@cute.kernel
def say_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 2:
        cute.printf("thread %d has %f, 100%%", thread, x[thread])


@cute.jit
def say(x: cute.Tensor):
    """Prints x[2], f32."""
    say_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))
