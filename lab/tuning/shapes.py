"""The shapes that are studied: the benchmarks, random ones, and lines between and around them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import task
from lab.kernel_cases import dual, gemm, gemv, group
from lab.tables.peers import SHAPES
from submission import Problem

SEED = 17  # of the random shapes whose times the coefficients of `estimate` were fitted to


def form(problem: task.Problem, args: task.CaseArgs) -> Problem:
    """What the kernel makes of a case."""
    a: Any = args
    if problem.grouped:
        return group(*zip(a["m"], a["n"], a["k"]))
    if problem.short == "gemv":
        return gemv(a["m"], a["k"], a["l"])
    return {"gemm": gemm, "dual": dual}[problem.short](a["n"], a["m"], a["k"], a["l"])


def benchmarks() -> dict[str, Problem]:
    """Benchmark shapes by name, "gemm 1" for the first of gemm."""
    forms = [form(p, benchmark.args) for p in task.PROBLEMS.values() for benchmark in p.benchmarks]
    return dict(zip(SHAPES.values(), forms))


def random_shapes(count: int, seed: int = SEED) -> dict[str, Problem]:
    """Shapes of the benchmarks' sizes and around them, the four problems by turns."""
    rng, found = random.Random(seed), {}

    def size(low: int, high: int, multiple: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))) / multiple) * multiple

    for number in range(count):
        rows, tokens, k = size(1024, 8192, 128), size(8, 512, 8), size(1024, 16384, 256)
        turn = number % 4
        if turn == 0:
            found[f"{number} gemv"] = gemv(rows, k, rng.choice((1, 2, 4, 8)))
        elif turn < 3:
            name, of = (("gemm", gemm), ("dual", dual))[turn - 1]
            found[f"{number} {name}"] = of(rows, tokens, k)
        else:
            sizes = [size(32, 384, 8) for _ in range(rng.choice((2, 4, 8)))]
            found[f"{number} group"] = group(*((m, rows, min(k, 8192)) for m in sizes))
    return found if seed == SEED else {f"{name}, seed {seed}": p for name, p in found.items()}


def sweep_shapes() -> Iterator[tuple[tuple[str, int], Problem]]:
    """(line, value of what varies), problem: one of M, N, K at a time, between the benchmarks."""
    for m in (8, 16, 40, 64, 96, 128, 200, 256, 384, 512):
        yield ("gemm n=4096 k=7168, over m", m), gemm(4096, m, 7168)
    for n in (1024, 2048, 3072, 4096, 5120, 6144, 7168, 9216):
        yield ("gemm m=128 k=4096, over n", n), gemm(n, 128, 4096)
    for k in (256, 512, 1024, 2048, 4096, 7168, 12288, 16384):
        yield ("gemm m=128 n=4096, over k", k), gemm(4096, 128, k)
    for m in (64, 128, 192, 256, 384, 512):
        yield ("dual n=3072 k=4096, over m", m), dual(3072, m, 4096)
    for rows in (1024, 2048, 4096, 7168, 12288):
        yield ("gemv k=7168, over m", rows), gemv(rows, 7168)
