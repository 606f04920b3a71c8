"""The four NVFP4 problems: names, input types, official cases, speed of light, best times.

On a leaderboard this file is replaced by the leaderboard's own; `submission.py` takes nothing from
it but `input_t` and `output_t`, which both have. Importing it needs nothing beyond the standard
library. Source: gpu-mode/reference-kernels, problems/nvidia (cases, speed of light at 1.5 GHz); the
best times are those published by contestants for one B200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

_Flat = "tuple[torch.Tensor, ...]"
_Grouped = (
    "tuple[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], "
    "list[tuple[torch.Tensor, torch.Tensor]], "
    "list[tuple[torch.Tensor, torch.Tensor]], "
    "list[tuple[int, int, int, int]]]"
)

# What custom_kernel receives.
# gemv, gemm: (a, b, sfa, sfb, sfa_permuted, sfb_permuted, c)
# dual gemm: (a, b1, b2, sfa, sfb1, sfb2, sfa_permuted, sfb1_permuted, sfb2_permuted, c)
# group gemm, each a list over groups: ([(a, b, c)], [(sfa, sfb)], on the CPU,
#     [(sfa_permuted, sfb_permuted)], [(m, n, k, l)])
input_t = TypeVar("input_t", bound=f"{_Flat} | {_Grouped}")
# What it returns: c, or the list of c.
output_t = TypeVar("output_t", bound="torch.Tensor | list[torch.Tensor]")

CaseArgs = Mapping[str, Any]  # key -> int; sizes of group gemm: tuple of ints

SEED = 1111
INPUT_KINDS = ("official", "quantized", "full")  # made by reference.generate_input


@dataclass(frozen=True)
class Benchmark:
    """A timed case. Times in microseconds on one B200.

    sol_us: speed of light as the leaderboard states it. best_us: best published time, by best_by.
    """

    args: CaseArgs
    sol_us: float
    best_us: float
    best_by: str


@dataclass(frozen=True)
class Problem:
    """A leaderboard: its names, its keys in the order of a case file, its official cases."""

    name: str
    short: str
    keys: tuple[str, ...]
    tests: tuple[CaseArgs, ...]
    benchmarks: tuple[Benchmark, ...]

    @property
    def grouped(self) -> bool:
        return "g" in self.keys


def _cases(keys: tuple[str, ...], *rows: tuple) -> tuple[CaseArgs, ...]:
    return tuple({**dict(zip(keys, row)), "seed": SEED} for row in rows)


def _benchmarks(keys: tuple[str, ...], *rows: tuple) -> tuple[Benchmark, ...]:
    """rows: (sizes, sol_us, best_us, best_by)."""
    cases = _cases(keys, *(row[0] for row in rows))
    return tuple(Benchmark(args, *row[1:]) for args, row in zip(cases, rows))


def _groups(m: tuple, n: tuple, k: tuple) -> CaseArgs:
    return {"m": m, "n": n, "k": k, "g": len(m), "seed": SEED}


_GEMV = ("m", "k", "l")
_GEMM = ("m", "n", "k", "l")

GEMV = Problem(
    name="nvfp4_gemv",
    short="gemv",
    keys=(*_GEMV, "seed"),
    tests=_cases(
        _GEMV,
        (128, 256, 1),
        (128, 1536, 1),
        (128, 3072, 1),
        (256, 7168, 1),
        (256, 7168, 1),
        (2432, 4608, 2),
        (384, 7168, 2),
        (512, 512, 2),
        (512, 4096, 2),
        (512, 1536, 2),
    ),
    benchmarks=_benchmarks(
        _GEMV,
        ((7168, 16384, 1), 8.622, 18.4, "CUDA cores, raw CUDA"),
        ((4096, 7168, 8), 17.275, 28.0, "CUDA cores, raw CUDA"),
        ((7168, 2048, 4), 4.317, 12.4, "CUDA cores, raw CUDA"),
    ),
)

GEMM = Problem(
    name="nvfp4_gemm",
    short="gemm",
    keys=(*_GEMM, "seed"),
    tests=_cases(
        _GEMM,
        (128, 256, 256, 1),
        (128, 1536, 7168, 1),
        (128, 3072, 1536, 1),
        (256, 7168, 256, 1),
        (256, 7168, 2048, 1),
        (2304, 4608, 7168, 1),
        (384, 7168, 2304, 1),
        (512, 512, 7168, 1),
        (512, 4096, 512, 1),
        (512, 1536, 7168, 1),
    ),
    benchmarks=_benchmarks(
        _GEMM,
        ((128, 7168, 16384, 1), 8.994, 18.8, "1-SM, swapped operands"),
        ((128, 4096, 7168, 1), 2.354, 10.3, "1-SM, swapped operands"),
        ((128, 7168, 2048, 1), 1.333, 6.53, "CuTe DSL"),
    ),
)

DUAL = Problem(
    name="nvfp4_dual_gemm",
    short="dual",
    keys=(*_GEMM, "seed"),
    tests=_cases(
        _GEMM,
        (1536, 512, 7168, 1),
        (256, 512, 256, 1),
        (1536, 512, 7168, 1),
        (3072, 1024, 1536, 1),
        (7168, 1024, 256, 1),
        (7168, 2304, 2048, 1),
        (4608, 384, 7168, 1),
        (7168, 384, 2304, 1),
        (512, 768, 7168, 1),
        (4096, 768, 512, 1),
    ),
    benchmarks=_benchmarks(
        _GEMM,
        ((256, 4096, 7168, 1), 4.708, 12.4, "2-SM, CuTe DSL and CUDA"),
        ((512, 4096, 7168, 1), 8.714, 15.3, "2-SM, CuTe DSL"),
        ((256, 3072, 4096, 1), 2.125, 9.43, "2-SM, CUDA"),
        ((512, 3072, 7168, 1), 6.535, 14.4, "2-SM, CuTe DSL"),
    ),
)

GROUP = Problem(
    name="nvfp4_group_gemm",
    short="group",
    keys=("m", "n", "k", "g", "seed"),
    tests=(
        _groups((96, 128), (128, 256), (256, 512)),
        _groups((256, 72), (512, 384), (256, 256)),
        _groups((128, 128), (128, 256), (512, 256)),
        _groups((80, 128, 256), (384, 256, 128), (256, 512, 256)),
        _groups((64, 72, 96), (128, 384, 512), (512, 512, 256)),
        _groups((64, 256, 128), (768, 128, 256), (512, 256, 512)),
        _groups((128, 128, 64), (256, 512, 512), (768, 256, 768)),
        _groups((128,) * 4, (128,) * 4, (512, 256, 512, 256)),
        _groups((40, 56, 384, 512), (512, 384, 256, 128), (256,) * 4),
        _groups((512, 384, 256, 128), (256,) * 4, (512, 768, 512, 768)),
    ),
    benchmarks=(
        Benchmark(
            _groups((80, 176, 128, 72, 64, 248, 96, 160), (4096,) * 8, (7168,) * 8),
            18.833,
            27.9,
            "2-SM, swapped operands, CUDA",
        ),
        Benchmark(
            _groups((40, 76, 168, 72, 164, 148, 196, 160), (7168,) * 8, (2048,) * 8),
            10.667,
            18.8,
            "2-SM, swapped operands, CUDA",
        ),
        Benchmark(_groups((192, 320), (3072,) * 2, (4096,) * 2), 2.406, 8.48, "2-SM, CUDA"),
        Benchmark(_groups((128, 384), (4096,) * 2, (1536,) * 2), 1.525, 6.43, "2-SM, CUDA"),
    ),
)

PROBLEMS: dict[str, Problem] = {p.name: p for p in (GEMV, GEMM, DUAL, GROUP)}


def find_problem(name: str) -> Problem:
    """The problem of a leaderboard name (`nvfp4_gemv`) or its short form (`gemv`).

    Raises ValueError, naming the problems there are.
    """
    for problem in PROBLEMS.values():
        if name in (problem.name, problem.short):
            return problem
    known = ", ".join(f"{p.name} ({p.short})" for p in PROBLEMS.values())
    raise ValueError(f"unknown problem {name!r}: expected one of {known}")
