"""An NVFP4 GEMM in CuTe DSL on the library's own pipelines, with planted bugs.

Warps 0-3 store, warp 4 multiplies, warp 5 loads; two stages for operands and scale factors, one
accumulator for the tiles that the only CTA computes one after the other. `bug` names the bug at
compile time, "" compiles the corrected twin. A comment `mark:` gives a line the name by which the
planted bugs (pipelines.py) hold the report against it.
"""

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.blackwell_helpers as sm100
import cutlass.utils.blockscaled_layout as blockscaled
from cutlass.cute.nvgpu import cpasync, tcgen05

MNK = (128, 128, 256)
STEP = 64  # of K in an instruction
STAGES = 2
VECTOR = 16  # of K under a scale factor
STORERS, MULTIPLIER, LOADER = 128, 4, 5  # threads; warps
THREADS = 192
COLUMNS = 256
FP4, SCALE = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN
Role = pipeline.PipelineUserType


@cute.struct
class Storage:
    operands: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
    accumulator: cute.struct.MemRange[cutlass.Int64, 2]
    taddr: cute.struct.MemRange[cutlass.Int32, 1]


@cute.jit
def load_tiles(ab, loads, tiles, k_tiles, bug: cutlass.Constexpr):
    """The load warp. loads: (atom, global, shared) of each operand."""
    role = Role.Consumer if cutlass.const_expr(bug == "load_phase") else Role.Producer
    state = pipeline.make_pipeline_state(role, STAGES)
    for tile in cutlass.range_constexpr(tiles):
        for k in cutlass.range_constexpr(k_tiles):
            ab.producer_acquire(state)  # mark: acquire
            for i in cutlass.range_constexpr(len(loads)):
                atom, source, target = loads[i]
                at = (None, tile, k) if cutlass.const_expr(i % 2) else (None, 0, k)
                barrier = ab.producer_get_barrier(state)
                into = target[(None, state.index)]
                cute.copy(atom, source[at], into, tma_bar_ptr=barrier)  # mark: load
            state.advance()


@cute.jit
def copy_scales(copies, index):
    """Scale factors of a stage to tensor memory."""
    for copy, source, target in copies:
        at = source[(None, None, None, None, index)]
        cute.copy(copy, at, target)  # mark: copy


@cute.jit
def multiply_stage(mma, acc, operands, scales, index, bug: cutlass.Constexpr):
    """The k-blocks of a stage."""
    (tA, tB), (tSFA, tSFB) = operands, scales
    blocks = cute.size(tA, mode=[2])
    for k in cutlass.range_constexpr(
        blocks - 1 if cutlass.const_expr(bug == "k_block_dropped") else blocks
    ):
        step = min(k, blocks - 2) if cutlass.const_expr(bug == "k_block_doubled") else k
        step_a = 0 if cutlass.const_expr(bug == "sfa_not_advanced") else step
        step_b = 0 if cutlass.const_expr(bug == "sfb_not_advanced") else step
        step_a = step ^ 1 if cutlass.const_expr(bug == "sfa_swapped") else step_a
        mma.set(tcgen05.Field.SFA, tSFA[(None, None, step_a)].iterator)
        mma.set(tcgen05.Field.SFB, tSFB[(None, None, step_b)].iterator)
        at = (None, None, step, index)
        cute.gemm(mma, acc, tA[at], tB[at], acc)  # mark: mma
        if cutlass.const_expr(bug != "accumulate_never"):
            mma.set(tcgen05.Field.ACCUMULATE, True)


@cute.jit
def multiply_tiles(
    ab, done, mma, acc, operands, staged, scales, tiles, k_tiles, bug: cutlass.Constexpr
):
    """The MMA warp."""
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), SCALE)
    copies = ()
    for shared, target in zip(staged, scales):
        to = cute.filter_zeros(target)
        copy = tcgen05.make_s2t_copy(atom, to)
        mine = copy.get_slice(0)
        source = tcgen05.get_s2t_smem_desc_tensor(copy, mine.partition_S(cute.filter_zeros(shared)))
        copies = (*copies, (copy, source, mine.partition_D(to)))
    state = pipeline.make_pipeline_state(Role.Consumer, STAGES)
    out = pipeline.make_pipeline_state(Role.Producer, 1)
    mma.set(tcgen05.Field.ACCUMULATE, False)
    for _ in cutlass.range_constexpr(tiles):
        done.producer_acquire(out)
        if cutlass.const_expr(bug != "accumulate_not_reset"):
            mma.set(tcgen05.Field.ACCUMULATE, False)
        for _ in cutlass.range_constexpr(k_tiles):
            ab.consumer_wait(state)  # mark: wait full
            if cutlass.const_expr(bug == "accumulate_reset"):
                mma.set(tcgen05.Field.ACCUMULATE, False)
            copy_scales(copies, state.index)
            multiply_stage(mma, acc, operands, scales, state.index, bug)
            if cutlass.const_expr(bug != "stage_not_released"):
                ab.consumer_release(state)  # mark: release
            state.advance()
        if cutlass.const_expr(bug != "no_commit"):
            done.producer_commit(out)  # mark: commit
        out.advance()


@cute.jit
def store_tiles(done, acc, gC, thread, tiles, bug: cutlass.Constexpr):
    """The epilogue warps."""
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x128), cutlass.Float32)
    copy = tcgen05.make_tmem_copy(atom, acc)
    mine = copy.get_slice(thread)
    source, targets = mine.partition_S(acc), mine.partition_D(gC)
    shape = targets[(None, None, None, None, 0, 0)].shape
    registers = cute.make_rmem_tensor(shape, cutlass.Float32)
    state = pipeline.make_pipeline_state(Role.Consumer, 1)
    for tile in cutlass.range_constexpr(tiles):
        if cutlass.const_expr(bug != "no_accumulator_wait"):
            done.consumer_wait(state)  # mark: wait done
        cute.copy(copy, source, registers)  # mark: tmem load
        target = targets[(None, None, None, None, 0, tile)]
        cute.autovec_copy(registers, target)
        cute.arch.fence_view_async_tmem_load()
        if cutlass.const_expr(bug == "released_by_one_warp"):
            with cute.arch.elect_one():
                done.consumer_release(state)  # mark: elected release
        else:
            done.consumer_release(state)  # mark: release accumulator
        state.advance()


@cute.kernel
def kernel(
    mma: cute.TiledMma,
    atoms,
    tensors,
    c: cute.Tensor,
    layouts,
    nbytes: cutlass.Constexpr,
    bug: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    storage = smem.allocate(Storage)
    a_layout, b_layout, sfa_layout, sfb_layout = layouts
    sA = smem.allocate_tensor(FP4, a_layout.outer, 1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(FP4, b_layout.outer, 1024, swizzle=b_layout.inner)
    sSFA = smem.allocate_tensor(SCALE, sfa_layout, 128)
    sSFB = smem.allocate_tensor(SCALE, sfb_layout, 128)

    # Pipelines: the load warp fills stages for the MMA warp, which fills the accumulator for 128
    # threads. Every thread of the epilogue arrives.
    group, agent = pipeline.CooperativeGroup, pipeline.Agent.Thread
    few = {"count_of_warps": 4, "count_of_one": 1}.get(bug, STORERS)
    more = {"expect_too_few": -2048, "expect_too_many": 1024}.get(bug, 0)
    ab = pipeline.PipelineTmaUmma.create(  # mark: create operands
        barrier_storage=storage.operands.data_ptr(),
        num_stages=STAGES,
        producer_group=group(agent),
        consumer_group=group(agent, 1),
        tx_count=nbytes + more,
    )
    done = pipeline.PipelineUmmaAsync.create(  # mark: create accumulator
        barrier_storage=storage.accumulator.data_ptr(),
        num_stages=1,
        producer_group=group(agent),
        consumer_group=group(agent, few),
    )
    taddr = storage.taddr.data_ptr()
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, taddr)
    cute.arch.barrier()
    pointer = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, taddr)

    # Tensor memory: accumulator | scale factors of A | of B
    shape = mma.partition_shape_C(MNK[:2])
    acc = cute.make_tensor(pointer, mma.make_fragment_C(shape).layout)
    one = (None, None, None, 0)
    t_sfa = blockscaled.make_tmem_layout_sfa(mma, MNK, VECTOR, cute.slice_(sfa_layout, one))
    t_sfb = blockscaled.make_tmem_layout_sfb(mma, MNK, VECTOR, cute.slice_(sfb_layout, one))
    behind = tcgen05.find_tmem_tensor_col_offset(acc)
    if cutlass.const_expr(bug == "scales_over_accumulator"):
        behind = behind // 2
    at_sfa = cute.recast_ptr(pointer + behind, dtype=SCALE)
    tSFA = cute.make_tensor(at_sfa, t_sfa)
    if cutlass.const_expr(bug != "sfb_over_sfa"):
        behind = behind + tcgen05.find_tmem_tensor_col_offset(tSFA)
    tSFB = cute.make_tensor(cute.recast_ptr(pointer + behind, dtype=SCALE), t_sfb)

    part = mma.get_slice(0)
    loads = ()
    for i, (tensor, shared) in enumerate(zip(tensors, (sA, sB, sSFA, sSFB))):
        is_a = i % 2 == 0
        cut = cute.slice_(MNK, (None, 0, None) if is_a else (0, None, None))
        tiles_of = cute.local_tile(tensor, cut, (None, None))
        mine = part.partition_A(tiles_of) if is_a else part.partition_B(tiles_of)
        to, source = cpasync.tma_partition(
            atoms[i],
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 3),
            cute.group_modes(mine, 0, 3),
        )
        if cutlass.const_expr(i >= 2):
            to, source = cute.filter_zeros(to), cute.filter_zeros(source)
        loads = (*loads, (atoms[i], source, to))
    gC = part.partition_C(cute.local_tile(c, MNK[:2], (None, None)))
    tiles, k_tiles = cute.size(gC, mode=[4]), cute.size(loads[0][1], mode=[2])

    tA = mma.make_fragment_A(sA)
    operands, scales = (tA, mma.make_fragment_B(sB)), (tSFA, tSFB)
    if warp == LOADER:
        if cutlass.const_expr(bug == "registers_of_one_warp"):
            cute.arch.warpgroup_reg_dealloc(40)  # mark: registers
        load_tiles(ab, loads, tiles, k_tiles, bug)
    if warp == MULTIPLIER:
        multiply_tiles(ab, done, mma, acc, operands, (sSFA, sSFB), scales, tiles, k_tiles, bug)
    if warp < MULTIPLIER:
        store_tiles(done, acc, gC, thread, tiles, bug)
    cute.arch.barrier()
    if warp == 0:
        cute.arch.dealloc_tmem(pointer, COLUMNS)


@cute.jit
def gemm(
    a: cute.Pointer,
    b: cute.Pointer,
    sfa: cute.Pointer,
    sfb: cute.Pointer,
    c: cute.Tensor,
    k: cutlass.Constexpr,
    bug: cutlass.Constexpr,
):
    """c = (a * sfa) (b * sfb)^T; a: [m, k] and b: [n, k] e2m1, scale factors in atoms of 128 x 4,
    c: [m, n] f32; m = 128, n a multiple of 128, k of 256.
    """
    m, n = c.shape
    rows = (m, k), (n, k)
    pair = [
        cute.make_tensor(p, cute.make_ordered_layout(shape, (1, 0)))
        for p, shape in zip((a, b), rows)
    ]
    factors = [
        cute.make_tensor(p, blockscaled.tile_atom_to_shape_SF((*shape, 1), VECTOR))
        for p, shape in zip((sfa, sfb), rows)
    ]
    op = tcgen05.MmaMXF4NVF4Op(
        SCALE, (MNK[0], MNK[1], STEP), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
    )
    mma = cute.make_tiled_mma(op)
    layouts = (
        sm100.make_smem_layout_a(mma, MNK, FP4, STAGES),
        sm100.make_smem_layout_b(mma, MNK, FP4, STAGES),
        blockscaled.make_smem_layout_sfa(mma, MNK, VECTOR, STAGES),
        blockscaled.make_smem_layout_sfb(mma, MNK, VECTOR, STAGES),
    )
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    atoms, tensors, nbytes = (), (), 0
    for i, (tensor, layout) in enumerate(zip((*pair, *factors), layouts)):
        one = cute.slice_(layout, (None, None, None, 0))
        if cutlass.const_expr(bug == "no_swizzle" and i == 0):
            one = one.outer
        make = cute.nvgpu.make_tiled_tma_atom_A if i % 2 == 0 else cute.nvgpu.make_tiled_tma_atom_B
        kind = {"internal_type": cutlass.Int16} if i >= 2 else {}
        if cutlass.const_expr(i >= 2):
            tensor = tensor[(None, None, 0)]
        atom, mapped = make(load, tensor, one, MNK, mma, (1, 1, 1, 1), **kind)
        atoms, tensors = (*atoms, atom), (*tensors, mapped)
        nbytes += cute.size_in_bytes(FP4 if i < 2 else SCALE, one)
    kernel(mma, atoms, tensors, c, layouts, nbytes, bug).launch(
        grid=(1, 1, 1), block=(THREADS, 1, 1)
    )
