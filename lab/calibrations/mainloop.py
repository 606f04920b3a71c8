"""Compares the one-SM main-loop sweep of SemiAnalysis with the clock.

For a tile, a number of stages and a data type of the sweep, a CuTe DSL kernel of the same shape
(one warp loads A and B by TMA, one issues the MMAs) is compiled and run in the emulator at 1.3 GHz,
on one SM. Its launch is timed with two lengths of the loop; the difference gives ns an iteration.
The sweep repeats each case, so a working set that fits in the L2 as one die sees it (63 MB) is read
from there; larger ones come from DRAM.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.blackwell_helpers as sm100
import torch
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_ptr

from b200.chip.gpu import Gpu
from b200.clock import Options, timed_machine
from lab.calibrations.bench_kernels import Errors, arguments, overrides, table, write

K = 131072
CLOCK_GHZ = 1.3
L2_BYTES = 63e6
SHORT, LONG = 24, 88  # iterations of the two launches
TYPES = {"BF16": (cutlass.BFloat16, 2, 16), "FP8_E4M3": (cutlass.Float8E4M3FN, 1, 32)}


class MainLoop:
    """D = A B^T of one tile, without an epilogue. tile: (M, N, K); dtype: of A and B."""

    def __init__(self, tile: tuple[int, int, int], stages: int, dtype, instruction_k: int):
        self.tile, self.stages, self.dtype = tile, stages, dtype
        self.instruction = (tile[0], tile[1], instruction_k)

    @cute.jit
    def __call__(self, a_ptr: cute.Pointer, b_ptr: cute.Pointer, k_tiles: cutlass.Int32):
        m, n, _ = self.tile
        a = cute.make_tensor(a_ptr, cute.make_layout((m, K, 1), stride=(K, 1, m * K)))
        b = cute.make_tensor(b_ptr, cute.make_layout((n, K, 1), stride=(K, 1, n * K)))
        major: Any = tcgen05.OperandMajorMode.K
        group = tcgen05.CtaGroup.ONE
        mma = sm100.make_trivial_tiled_mma(
            self.dtype, major, major, cutlass.Float32, group, self.tile[:2]
        )
        a_layout = sm100.make_smem_layout_a(mma, self.tile, self.dtype, self.stages)
        b_layout = sm100.make_smem_layout_b(mma, self.tile, self.dtype, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp(group)
        a_atom, a_tensor = cute.nvgpu.make_tiled_tma_atom_A(
            load, a, cute.select(a_layout, mode=[0, 1, 2]), self.tile, mma
        )
        b_atom, b_tensor = cute.nvgpu.make_tiled_tma_atom_B(
            load, b, cute.select(b_layout, mode=[0, 1, 2]), self.tile, mma
        )
        self.kernel(mma, a_atom, a_tensor, b_atom, b_tensor, a_layout, b_layout, k_tiles).launch(
            grid=(1, 1, 1), block=(128, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        a_atom: cute.CopyAtom,
        mA: cute.Tensor,
        b_atom: cute.CopyAtom,
        mB: cute.Tensor,
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
        k_tiles: cutlass.Int32,
    ) -> None:
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = utils.SmemAllocator()
        barriers = smem.allocate_array(cutlass.Int64, 2 * self.stages)
        done = smem.allocate_array(cutlass.Int64, 1)
        slot = smem.allocate_array(cutlass.Int32, 1)
        sA = smem.allocate_tensor(self.dtype, a_layout.outer, 1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(self.dtype, b_layout.outer, 1024, swizzle=b_layout.inner)
        one = cute.size_in_bytes(self.dtype, cute.select(a_layout, mode=[0, 1, 2]))
        both = one + cute.size_in_bytes(self.dtype, cute.select(b_layout, mode=[0, 1, 2]))
        thread = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        producer, consumer = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=thread,
            consumer_group=thread,
            tx_count=both,
            barrier_storage=barriers,
        ).make_participants()
        if warp == 0:
            cute.arch.alloc_tmem(512, slot)
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        gA = cute.local_tile(mA, self.tile, (0, 0, None, 0), proj=(1, None, 1))
        gB = cute.local_tile(mB, self.tile, (0, 0, None, 0), proj=(None, 1, 1))
        own = mma.get_slice(0)
        tCgA, tCgB = own.partition_A(gA), own.partition_B(gB)
        tCrA, tCrB = mma.make_fragment_A(sA), mma.make_fragment_B(sB)
        acc = mma.make_fragment_C(mma.partition_shape_C(self.tile[:2]))
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, slot)
        tCtAcc = cute.make_tensor(tmem, acc.layout)
        tAsA, tAgA = cpasync.tma_partition(
            a_atom, 0, cute.make_layout(1), cute.group_modes(sA, 0, 3), cute.group_modes(tCgA, 0, 3)
        )
        tBsB, tBgB = cpasync.tma_partition(
            b_atom, 0, cute.make_layout(1), cute.group_modes(sB, 0, 3), cute.group_modes(tCgB, 0, 3)
        )
        if warp == 2:
            for _ in cutlass.range(k_tiles, unroll=1):
                empty = producer.acquire_and_advance()
                cute.copy(
                    a_atom,
                    tAgA[None, empty.count],
                    tAsA[None, empty.index],
                    tma_bar_ptr=empty.barrier,
                )
                cute.copy(
                    b_atom,
                    tBgB[None, empty.count],
                    tBsB[None, empty.index],
                    tma_bar_ptr=empty.barrier,
                )
        if warp == 1:
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(k_tiles, unroll=1):
                full = consumer.wait_and_advance()
                for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # pyright: ignore
                    at = (None, None, k, full.index)
                    cute.gemm(mma, tCtAcc, tCrA[at], tCrB[at], tCtAcc)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            with cute.arch.elect_one():
                tcgen05.commit(done)
        cute.arch.mbarrier_wait(done, 0)
        cute.arch.sync_threads()
        if warp == 0:
            cute.arch.relinquish_tmem_alloc_permit()
            cute.arch.dealloc_tmem(tmem, 512)


def ns_an_iteration(gpu: Gpu, row: dict, constants: dict[str, float]) -> float:
    """Modelled ns of one iteration for a row of the sweep."""
    m, n, k = (int(row[f"TILE_{x}"]) for x in "MNK")
    dtype, size, instruction_k = TYPES[row["dtype"]]
    resident = (m + n) * K * size <= L2_BYTES
    options = Options(clock_ghz=CLOCK_GHZ, arithmetic=False, cold=not resident, constants=constants)
    gpu.machine = timed_machine(gpu.memory, options)
    kernel = MainLoop((m, n, k), int(row["STAGES"]), dtype, instruction_k)
    a, b = (torch.empty(rows * K * size, dtype=torch.uint8) for rows in (m, n))
    pointers = [
        make_ptr(dtype, t.data_ptr(), cute.AddressSpace.gmem, assumed_align=16) for t in (a, b)
    ]
    compiled = cute.compile(kernel, *pointers, cutlass.Int32(SHORT))
    times = []
    for k_tiles in (SHORT, LONG):
        compiled(*pointers, cutlass.Int32(k_tiles))
        times.append(gpu.launches[-1].time.time_us)
    return (times[1] - times[0]) * 1e3 / (LONG - SHORT)


def main(argv: list[str], gpu: Gpu) -> None:
    """Run the command. gpu: the one that runs the DSL's launches (b200.install)."""
    parser = arguments("mainloop", __doc__)
    parser.add_argument(
        "--step", type=int, default=9, help="every how manieth row of the sweep (default 9)"
    )
    options = parser.parse_args(argv)
    rows = [
        r
        for r in table(options.data / "sa_cutlass_mainloop_1p3GHz.csv")
        if r["dtype"] in TYPES
        and r["time_ms"]
        and int(r["STAGES"]) >= 2
        and float(r["time_ms"]) > 0
    ]
    errors = Errors("ns")
    for i, row in enumerate(rows[:: 1 if options.all else options.step]):
        m, n, k = (int(row[f"TILE_{x}"]) for x in "MNK")
        measured = float(row["time_ms"]) * 1e6 / (K // k)
        resident = (m + n) * K * TYPES[row["dtype"]][1] <= L2_BYTES
        label = f"{row['dtype']} {m}x{n}x{k}, {row['STAGES']} stages"
        modelled = ns_an_iteration(gpu, row, overrides(options.set))
        errors.add("in the L2" if resident else "from DRAM", i, label, modelled, measured)
        if options.rows:
            print(
                f"  {label:36} modelled {modelled:8.1f}  measured {measured:8.1f}  "
                f"{modelled / measured - 1:+6.1%}",
                flush=True,
            )
    errors.print(False)
    write(options.out, errors, dsl=version("nvidia-cutlass-dsl"))
