"""Planted bugs in an NVFP4 GEMM on the CuTe DSL's own pipelines: named with line, operand and cause."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack, make_ptr

from b200 import EmulatorError
from reference import generate_input, ref_kernel
from tests.planted_bugs import pipeline_kernels
from tests.planted_bugs.case import Outcome
from tests.planted_bugs.dsl import DslPlantedBug

K = 512


@functools.cache
def _inputs() -> tuple:
    return generate_input("nvfp4_gemm", m=128, n=256, k=K, l=1, seed=1)


def _arguments(weights, tokens, weight_scales, token_scales, c) -> list:
    types = pipeline_kernels.FP4, pipeline_kernels.SCALE
    tensors = (weights, types[0], 16), (tokens, types[0], 16)
    tensors += (weight_scales, types[1], 32), (token_scales, types[1], 32)
    place = cute.AddressSpace.gmem
    pointers = [make_ptr(t, x.data_ptr(), place, assumed_align=n) for x, t, n in tensors]
    return [*pointers, from_dlpack(c, assumed_align=16)]


@functools.cache
def _compiled(bug: str):
    arguments = _arguments(*_tensors(), torch.zeros(128, 256))
    return cute.compile(pipeline_kernels.gemm, *arguments, K, bug)


def _tensors() -> tuple:
    a, b, _, _, sfa, sfb, _ = _inputs()
    return a, b, sfa, sfb


@dataclass(frozen=True)
class PipelinePlantedBug(DslPlantedBug):
    """A PlantedBug whose kernel is pipeline_kernels.gemm with a bug of a name.

    slow: not in the default run of the tests, since every bug is a kernel to compile.
    """

    slow: bool = True

    def _run(self, gpu, bug: bool) -> Outcome:
        weights, tokens, weight_scales, token_scales = _tensors()
        c = torch.zeros(128, 256)
        compiled = _compiled(self.bug if bug else "")
        try:
            compiled(*_arguments(weights, tokens, weight_scales, token_scales, c))
        except EmulatorError as error:
            return Outcome(list(getattr(error, "findings", ())), str(error), error.kind)
        right = torch.equal(c.half(), ref_kernel(_inputs())[..., 0])
        return Outcome(list(gpu.launches[-1].findings), right=right)


def planted(bug: str, title: str, kind: str, words, marks, slow: bool = True, schedule=None):
    return PipelinePlantedBug(
        f"pipeline_{bug}",
        title,
        pipeline_kernels.gemm,
        bug,
        kind,
        tuple(words),
        tuple(marks),
        schedule,
        "pipeline_kernels.py",
        slow,
    )


STEP = "called by multiply_tiles at"
PLANTED = [
    planted(
        "count_of_warps",
        "the accumulator's pipeline counts four warps, all their threads arrive",
        "deadlock",
        ("4 warps, 32 lanes of each arrive on an mbarrier of count 4", "elect_one"),
        ("release accumulator", "create accumulator"),
        slow=False,
    ),
    planted(
        "count_of_one",
        "the accumulator's pipeline counts one thread of 128",
        "deadlock",
        ("4 warps, 32 lanes of each arrive on an mbarrier of count 1",),
        ("release accumulator", "create accumulator"),
    ),
    planted(
        "released_by_one_warp",
        "one lane of each warp arrives, the pipeline counts all threads",
        "deadlock",
        ("4 of 128 arrivals have come", "a count of its initialisation that is too high"),
        ("elected release", "create accumulator"),
    ),
    planted(
        "expect_too_few",
        "the pipeline's tx_count lacks the scale factors of B",
        "race",
        ("2048 bytes in expect_tx", "copies of", "token_scales"),
        ("load",),
        slow=False,
    ),
    planted(
        "expect_too_many",
        "the pipeline's tx_count is larger than the stage",
        "deadlock",
        ("more bytes were announced by expect_tx", "1024 too many"),
        ("wait full", "load"),
    ),
    planted(
        "stage_not_released",
        "the MMA warp never gives a stage back",
        "deadlock",
        ("nobody has ever arrived on it",),
        ("acquire", "create operands"),
    ),
    planted(
        "no_commit",
        "nothing commits the accumulator",
        "deadlock",
        ("nobody has ever arrived on it", "tcgen05.commit"),
        ("wait done", "create accumulator"),
    ),
    planted(
        "no_accumulator_wait",
        "the epilogue does not wait for the accumulator",
        "race",
        ("tcgen05.ld reads tensor memory before", "in store_tiles, called by kernel at"),
        ("tmem load", "mma"),
        slow=False,
    ),
    planted(
        "load_phase",
        "the load warp starts with the state of a consumer",
        "deadlock",
        ("nobody has ever arrived", "the first wait of a producer for a free stage must pass"),
        ("acquire",),
    ),
    planted(
        "sfa_not_advanced",
        "every k-block takes the first scale factors of A",
        "product",
        ("the scale factors of A are those of the K-step before", "A: weights", STEP),
        ("mma",),
    ),
    planted(
        "sfa_swapped",
        "neighbouring k-blocks take each other's scale factors of A",
        "product",
        ("the scale factors of A go the other way", "weights", STEP),
        ("mma",),
    ),
    planted(
        "sfb_not_advanced",
        "every k-block takes the first scale factors of B",
        "product",
        ("the scale factors of B are those of the K-step before", "B: tokens", STEP),
        ("mma",),
    ),
    planted(
        "k_block_dropped",
        "the last k-block of each stage is left out",
        "product",
        ("a part of what the TMA load brings is never read", "4096 of 16384", "a k-block"),
        ("load",),
        slow=False,
    ),
    planted(
        "k_block_doubled",
        "the last but one k-block counts twice, the last not at all",
        "product",
        ("a K-step is counted twice", "A: weights, B: tokens", STEP),
        ("mma",),
    ),
    planted(
        "sfb_over_sfa",
        "the scale factors of B lie over those of A",
        "product",
        ("the scale factors of A and of B are read from the same columns", "of token_scales"),
        ("mma", "copy"),
        slow=False,
    ),
    planted(
        "scales_over_accumulator",
        "the scale factors lie over the upper half of the accumulator",
        "product",
        ("lie where tcgen05.mma has put its accumulator", "of A"),
        ("mma",),
        slow=False,
    ),
    planted(
        "accumulate_never",
        "no MMA accumulates",
        "product",
        ("starts a new sum over one that nobody has read", "accumulate flag is never set"),
        ("mma",),
    ),
    planted(
        "accumulate_reset",
        "every k-tile starts the sum anew",
        "product",
        ("starts a new sum over one that nobody has read", "reset for each k-tile"),
        ("mma",),
    ),
    planted(
        "accumulate_not_reset",
        "the second tile adds to the first",
        "accumulator",
        ("accumulates on values that tcgen05.ld has taken already",),
        ("mma", "tmem load"),
    ),
    planted(
        "no_swizzle",
        "A is loaded without the swizzle that the MMA reads it with",
        "product",
        ("operand A is read with 128-byte swizzle, and was loaded with none", "of weights"),
        ("mma", "load"),
        slow=False,
    ),
    planted(
        "registers_of_one_warp",
        "only the load warp of its warpgroup executes setmaxnreg",
        "protocol",
        ("is executed by a part of a warpgroup only",),
        ("registers",),
    ),
]
