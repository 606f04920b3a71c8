"""What GEMMs in CuTe DSL of one tile share: the operands on the host, their partition in a kernel."""

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import cpasync, tcgen05

MNK = (128, 64, 64)  # of the only tile


def operands(a: cute.Tensor, b: cute.Tensor, stages: int):
    """a: [128, k] f16, b: [64, k] f16, k a multiple of 64; the MMA, the TMA atoms with their
    tensors, the layouts of both in shared memory, and the number of k-tiles.
    """
    op = tcgen05.MmaF16BF16Op(
        cutlass.Float16,
        cutlass.Float32,
        (MNK[0], MNK[1], 16),
        tcgen05.CtaGroup.ONE,
        tcgen05.OperandSource.SMEM,
        cutlass.utils.LayoutEnum.ROW_MAJOR.mma_major_mode(),
        cutlass.utils.LayoutEnum.ROW_MAJOR.mma_major_mode(),
    )
    mma = cute.make_tiled_mma(op)
    a_layout = sm100.make_smem_layout_a(mma, MNK, cutlass.Float16, stages)
    b_layout = sm100.make_smem_layout_b(mma, MNK, cutlass.Float16, stages)
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    one_a, one_b = (cute.select(x, mode=[0, 1, 2]) for x in (a_layout, b_layout))
    load_a, mA = cute.nvgpu.make_tiled_tma_atom_A(load, a, one_a, MNK, mma)
    load_b, mB = cute.nvgpu.make_tiled_tma_atom_B(load, b, one_b, MNK, mma)
    k_tiles = a.shape[1] // MNK[2]
    return mma, load_a, mA, load_b, mB, a_layout, b_layout, k_tiles


def partition(mma, load_a, mA, load_b, mB, mC, sA, sB):
    """Fragments of both operands, (shared, global) memory of each for TMA, and global C."""
    part = mma.get_slice(0)
    gA = part.partition_A(cute.local_tile(mA, MNK, (0, 0, None), proj=(1, None, 1)))
    gB = part.partition_B(cute.local_tile(mB, MNK, (0, 0, None), proj=(None, 1, 1)))
    gC = part.partition_C(cute.local_tile(mC, MNK, (0, 0, None), proj=(1, 1, None)))
    tA, tB = mma.make_fragment_A(sA), mma.make_fragment_B(sB)
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        load_a, 0, one, cute.group_modes(sA, 0, 3), cute.group_modes(gA, 0, 3)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, 0, one, cute.group_modes(sB, 0, 3), cute.group_modes(gB, 0, 3)
    )
    return tA, tB, to_a, from_a, to_b, from_b, gC
