"""Planted bugs in CuTe DSL: what is said of them names lines of Python source."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

import b200
from b200 import EmulatorError
from tests.planted_bugs import dsl_kernels
from tests.planted_bugs.case import Outcome
from tests.planted_bugs.listing import Listing


@functools.cache
def _compiled(kernel: Callable, bug: str):
    arguments = [from_dlpack(t, assumed_align=16) for t in ARGUMENTS[kernel]()]
    return cute.compile(kernel, *arguments, bug)


def _gemm_arguments() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (128, 256), (64, 256)
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in shapes)
    return [a, b, torch.zeros(128, 64)]


def _negate_arguments() -> list[torch.Tensor]:
    return [torch.arange(64.0 * 128).reshape(64, 128), torch.zeros(64, 128)]


ARGUMENTS = {dsl_kernels.gemm: _gemm_arguments, dsl_kernels.negate: _negate_arguments}
EXPECTED = {
    dsl_kernels.gemm: lambda a, b: (a.double() @ b.double().T).float(),
    dsl_kernels.negate: lambda x: -x,
}


@dataclass(frozen=True)
class DslPlantedBug:
    """A PlantedBug (case.py) whose kernel is a function of dsl_kernels.py with a bug of a name."""

    name: str
    title: str
    kernel: Callable
    bug: str
    kind: str
    words: tuple[str, ...]
    marks: tuple[str, ...]
    schedule: str | None = None
    file: str = "dsl_kernels.py"

    def run(self, bug: bool, schedule: str | None = None) -> tuple[Listing, Outcome]:
        gpu = b200.install(check=True, schedule=schedule or self.schedule)
        try:
            return Listing(self.kernel.__wrapped__.__code__.co_filename), self._run(gpu, bug)
        finally:
            b200.install(check=True)

    def _run(self, gpu, bug: bool) -> Outcome:
        tensors = ARGUMENTS[self.kernel]()
        arguments = [from_dlpack(t, assumed_align=16) for t in tensors]
        try:
            _compiled(self.kernel, self.bug if bug else "")(*arguments)
        except EmulatorError as error:
            return Outcome(list(error.findings), str(error), error.kind)
        right = torch.equal(tensors[-1], EXPECTED[self.kernel](*tensors[:-1]))
        return Outcome(list(gpu.launches[-1].findings), right=right)


GEMM, NEGATE = dsl_kernels.gemm, dsl_kernels.negate
PLANTED = [
    DslPlantedBug(
        "dsl_full_wait_phase_off",
        "the MMA warp waits for the parity of the phase before",
        GEMM,
        "full_parity",
        "race",
        ("reads shared memory before the TMA load", "phase off", "MMA warp 1"),
        ("mma", "a", "wait full"),
        schedule="late",
    ),
    DslPlantedBug(
        "dsl_no_empty_wait",
        "the load warp does not wait until a stage is free",
        GEMM,
        "no_empty_wait",
        "race",
        ("into it is under way", "load warp 0"),
        ("a",),
    ),
    DslPlantedBug(
        "dsl_no_init_fence",
        "mbarrier_init without mbarrier_init_fence",
        GEMM,
        "no_init_fence",
        "protocol",
        ("without a fence after its initialisation", "fence.mbarrier_init"),
        ("init full",),
    ),
    DslPlantedBug(
        "dsl_no_commit",
        "nothing commits the accumulator",
        GEMM,
        "no_commit",
        "deadlock",
        ("nobody has ever arrived", "tcgen05.commit"),
        ("wait done", "init done"),
    ),
    DslPlantedBug(
        "dsl_no_accumulator_wait",
        "the epilogue does not wait for the accumulator",
        GEMM,
        "no_done_wait",
        "race",
        (
            "tcgen05.ld reads tensor memory before the tcgen05.mma that writes it has committed",
            "MMA warp 1",
        ),
        ("tmem load", "mma"),
    ),
    DslPlantedBug(
        "dsl_first_16_columns",
        "the epilogue's copy atom takes 16 of the 64 columns",
        GEMM,
        "first_16_columns",
        "coverage",
        ("part of the accumulator is never read", "columns [16, 64)"),
        ("tmem load", "mma"),
    ),
    DslPlantedBug(
        "dsl_tmem_not_freed",
        "dealloc_tmem is missing",
        GEMM,
        "no_dealloc",
        "lifetime",
        ("tensor memory is not deallocated",),
        ("alloc",),
    ),
    DslPlantedBug(
        "dsl_commit_of_all_lanes",
        "tcgen05.commit without elect_one",
        GEMM,
        "commit_of_all_lanes",
        "protocol",
        ("32 lanes of one warp arrive on an mbarrier of count 1", "MMA warp 1"),
        ("commit of all lanes", "init empty"),
    ),
    DslPlantedBug(
        "dsl_expect_of_all_lanes",
        "mbarrier_arrive_and_expect_tx without elect_one",
        GEMM,
        "expect_of_all_lanes",
        "fault",
        ("lanes of one warp arrive on an mbarrier of count 1", "there are more arrivals"),
        ("expect", "init full"),
    ),
    DslPlantedBug(
        "dsl_half_stride",
        "the tensor of a TMA load has half of the rows' stride",
        NEGATE,
        "half_stride",
        "coverage",
        ("the rows of a tensormap overlap", "a row is 512 bytes, the next begins 256 bytes"),
        ("load",),
    ),
    DslPlantedBug(
        "dsl_padded_stride",
        "the tensor of a TMA load has the stride of padded rows",
        NEGATE,
        "padded_stride",
        "coverage",
        ("its strides are not the tensor's", "a stride of 576 bytes", "512, 4 bytes"),
        ("load",),
    ),
    DslPlantedBug(
        "dsl_column_not_advanced",
        "every CTA of a row loads its first tile",
        NEGATE,
        "column_not_advanced",
        "coverage",
        ("a part of the rows of", "is never loaded", "of the innermost dimension, of 128"),
        ("load",),
    ),
    DslPlantedBug(
        "dsl_coordinates_swapped",
        "local_tile takes the tile (column, row)",
        NEGATE,
        "swapped",
        "coverage",
        ("lies wholly outside of its tensor", "two may be swapped"),
        ("load",),
    ),
    DslPlantedBug(
        "dsl_same_tile",
        "two CTAs store the same tile",
        NEGATE,
        "same_tile",
        "global",
        ("two CTAs write the same address",),
        ("store",),
    ),
    DslPlantedBug(
        "dsl_no_proxy_fence",
        "a TMA store reads what threads have written, without a proxy fence",
        NEGATE,
        "no_proxy_fence",
        "proxy",
        ("the TMA store reads what st.shared wrote", "fence.proxy.async.shared::cta"),
        ("store", "write"),
    ),
    DslPlantedBug(
        "dsl_store_before_barrier",
        "the warp that stores does not wait for the others",
        NEGATE,
        "no_barrier",
        "race",
        ("the TMA store",),
        ("store", "write"),
    ),
    DslPlantedBug(
        "dsl_exit_before_store_is_done",
        "no wait for the TMA store before the end",
        NEGATE,
        "no_store_wait",
        "lifetime",
        ("may still read shared memory", "wait_group.read"),
        ("store",),
    ),
]
