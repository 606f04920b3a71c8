"""Published times of NVIDIA's example kernels for the leaderboards against the model: python
bench/published_templates.py PROBLEMS [--only gemm]

PROBLEMS is the folder problems/nvidia of gpu-mode/reference-kernels: its CuTe DSL examples for
NVFP4 gemm and gemv were timed on a B200 by their author (pull requests 74 and 75 there: mean and
best of 200 single calls between two events, the L2 cleared before each). No constant of the model
was chosen by these times.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path

import torch
from calibration import overrides

import emulator
from emulator.timing import Options
from emulator.timing.protocol import reported


@dataclass(frozen=True)
class Case:
    """A shape and its published times: the mean and the best of 200 calls, microseconds."""

    example: str
    m: int
    n: int
    k: int
    l: int  # noqa: E741 -- the name of the batch in the examples
    mean_us: float
    best_us: float | None


CASES = (
    Case("nvfp4_gemm/submission.py", 7168, 128, 16384, 1, 122.58, 115.71),
    Case("nvfp4_gemv/template_cute.py", 7168, 1, 16384, 1, 265.70, 257.06),
    Case("nvfp4_gemv/template_cute.py", 4096, 1, 7168, 8, 147.86, None),
)


def load(path: Path):
    """The example as a module; its `task` only names types."""
    task = types.ModuleType("task")
    task.input_t = task.output_t = tuple
    sys.modules["task"] = task
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors(case: Case) -> tuple:
    """What the examples take: two fp4 values a byte, scale factors, an fp16 output; all zero."""

    def operand(rows: int) -> torch.Tensor:
        return torch.zeros(case.l, rows, case.k // 2, dtype=torch.uint8).permute(1, 2, 0)

    def scales(rows: int) -> torch.Tensor:
        return torch.zeros(case.l * -(-rows // 128) * 128 * (case.k // 16), dtype=torch.uint8)

    weights_n = 128 if case.n == 1 else case.n
    out = torch.zeros(case.l, case.m, case.n, dtype=torch.float16).permute(1, 2, 0)
    operands = operand(case.m), operand(weights_n)
    return *operands, None, None, scales(case.m), scales(weights_n), out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", type=Path)
    parser.add_argument("--only", default="", help="examples whose path has this (gemv: minutes)")
    parser.add_argument("--clock", type=float, default=1.965, help="GHz")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    timing = Options(
        clock_ghz=options.clock,
        arithmetic=False,
        dirty_l2=True,
        constants=overrides(options.set),
    )
    gpu = emulator.install(timing=timing)
    for case in (case for case in CASES if options.only in case.example):
        start, before = time.time(), len(gpu.launches)
        load(options.problems / case.example).custom_kernel(tensors(case))
        result = reported(gpu.launches[before:], calls=1)
        best = f", best {case.best_us:.1f}" if case.best_us else ""
        print(
            f"{case.example} {case.m} x {case.n} x {case.k} x {case.l}: modelled"
            f" {result.time_us:.1f} us, bound by {result.bound_by}; measured mean"
            f" {case.mean_us:.1f}{best}: {result.time_us / case.mean_us - 1:+.1%} of the mean"
            f" ({time.time() - start:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
