"""Runs submission.py in the emulator under a chosen configuration, and makes the configurations."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import b200
import reference
import submission
from submission import Config, GemmShape, Problem

# Of a process whose compiled functions keep their PTX and cubin; 4.5.2 and 4.8.1 spell it apart.
KEEP_CODE = {
    "CUTE_DSL_ARCH": "sm_100a",
    "CUTE_DSL_KEEP": "ptx,cubin",
    "CUTE_DSL_KEEP_PTX": "1",
    "CUTE_DSL_KEEP_CUBIN": "1",
}

# What each lever may be set to in the covering set.
LEVERS: dict[str, tuple] = {
    "tile_n": (8, 48, 64, 128, 192, 256),
    "swap_ab": (True, False),
    "cta_group": (1, 2),
    "split_k": (1, 2, 4),
    "cluster_n": (1, 2),
    "persistent": (False, True),
}


# Weights (N) come first here, then tokens (M).


def gemm(n: int, m: int, k: int, l: int = 1) -> Problem:
    return Problem(1, (GemmShape(m, n, k, l),))


def dual(n: int, m: int, k: int, l: int = 1) -> Problem:
    return Problem(2, (GemmShape(m, n, k, l),))


def gemv(n: int, k: int, l: int = 1) -> Problem:
    """n: rows of the matrix, which a case file calls m."""
    return Problem(1, (GemmShape(1, n, k, l),), is_gemv=True)


def group(*sizes: tuple[int, int, int]) -> Problem:
    """sizes: (m, n, k) of each group, the order of a case file."""
    return Problem(1, tuple(GemmShape(m, n, k, 1) for m, n, k in sizes))


def epilogue_warps(config: Config, problem: Problem) -> int:
    """Two a quarter of tensor memory where a tile has work for them."""
    return 8 if problem.num_products * config.tile_n >= 128 else 4


def shapes_of(problem: Problem) -> tuple[list[tuple[int, int, int, int]], str]:
    """(m, n, k, l) of each group as a case file has them, and the problem's kind as in task.py."""
    if problem.is_gemv:
        return [(p.n, 1, p.k, p.l) for p in problem.groups], "gemv"
    kind = "dual" if problem.num_products == 2 else "group" if len(problem.groups) > 1 else "gemm"
    return [tuple(p) for p in problem.groups], kind


def inputs(problem: Problem, seed: int, kind: str = "official") -> tuple:
    """Official inputs of a problem."""
    first = problem.groups[0]
    args: dict[str, Any] = {"seed": seed, "inputs": kind}
    if len(problem.groups) > 1:
        columns = zip(*(p[:3] for p in problem.groups))
        sizes = dict(zip("mnk", columns), g=len(problem.groups))
        return reference.generate_input("nvfp4_group_gemm", **sizes, **args)
    args |= {"k": first.k, "l": first.l}
    if problem.is_gemv:
        return reference.generate_input("nvfp4_gemv", m=first.n, **args)
    name = "nvfp4_dual_gemm" if problem.num_products == 2 else "nvfp4_gemm"
    return reference.generate_input(name, m=first.m, n=first.n, **args)


def poison(result: torch.Tensor | list[torch.Tensor]) -> None:
    """Fill the output with NaN, so that what the kernel does not write is seen."""
    for tensor in result if isinstance(result, list) else [result]:
        tensor.fill_(float("nan"))


def run(data: tuple, config: Config | None = None, schedule: str | None = None) -> Any:
    """The result of a checked launch in the emulator; AssertionError with the errors that it has."""
    gpu = b200.install(check=True, schedule=schedule)
    groups, result = submission.unpack(data)
    poison(result)
    submission.launch(submission.problem_of(data, groups), groups, config)
    # Remarks are no errors: a tile that is not full loads whole boxes and reads whole chunks.
    errors = [finding for finding in gpu.launches[-1].findings if finding.severity == "error"]
    assert not errors, f"{config}\n" + "\n".join(str(finding) for finding in errors[:3])
    return result


def verify(
    problem: Problem,
    config: Config | None = None,
    seed: int = 1111,
    schedule: str | None = None,
    kind: str = "official",
) -> None:
    """The kernel's result is the reference's, with no finding of the checker."""
    data = inputs(problem, seed, kind)
    result = run(data, config, schedule)
    right, report = reference.check_implementation(data, result)
    assert right, f"{problem}\n{config}\n{report}"


def legal(config: Config, problem: Problem) -> bool:
    try:
        submission.check(config, problem)
    except ValueError:
        return False
    return True


def random_config(rng: random.Random, fixed: dict[str, Any]) -> Config:
    return Config(**{name: rng.choice(values) for name, values in LEVERS.items()} | fixed)


def small_problem(config: Config, rng: random.Random) -> Problem:
    """A problem that uses all of `config`: several and partial tiles, where it allows them."""
    tile = config.tile_n
    tokens = rng.choice((tile - 3, tile, tile + 5)) if tile % 64 == 0 else max(1, tile - 3)
    rows = rng.choice((128, 256, 336)) + rng.choice((0, 0, 2))  # 32-byte stores, or 2
    if not config.swap_ab:
        rows, tokens = tokens, rows
    k = submission.TILE_K * rng.choice((config.split_k, config.split_k + 2)) + rng.choice((0, 64))
    batch = rng.choice((1, 2))
    if rng.random() < 0.3:
        return dual(rows, tokens, k, batch)
    if rng.random() < 0.4:
        return group((tokens, rows, k), (max(1, tokens // 2), rows + 128, k + 128))
    return gemm(rows, tokens, k, batch)


def repaired(config: Config, pinned: Sequence[str], rng: random.Random) -> Iterator[Config]:
    """Configurations near `config` that keep the pinned levers: others are reset one by one."""
    yield config
    names = [name for name in LEVERS if name not in pinned]
    rng.shuffle(names)
    for name in names:
        for value in LEVERS[name]:
            yield dataclasses.replace(config, **{name: value})
        default = {field.name: field.default for field in dataclasses.fields(Config)}[name]
        config = dataclasses.replace(config, **{name: default})


def legal_pair(pair: dict[str, Any], rng: random.Random, tries: int = 60) -> tuple | None:
    """A legal (configuration, problem) with both settings of `pair`, or None if none is found."""
    narrow = {"tile_n": 8}
    for attempt in range(tries):
        start = (Config(**pair), Config(**narrow | pair), random_config(rng, pair))[attempt % 3]
        for config in repaired(start, list(pair), rng):
            problem = small_problem(config, rng)
            if legal(config, problem):
                return config, problem
    return None


def covering_set(seed: int = 0) -> tuple[list[tuple[Config, Problem]], list[dict[str, Any]]]:
    """Cases in which every pair of lever settings occurs, and the pairs for which none is legal."""
    rng = random.Random(seed)
    pairs = [
        {a: x, b: y}
        for a, b in itertools.combinations(LEVERS, 2)
        for x, y in itertools.product(LEVERS[a], LEVERS[b])
    ]
    rng.shuffle(pairs)
    cases, impossible = [], []
    seen: set[tuple] = set()

    def settings(config: Config) -> set[tuple]:
        values = [(name, getattr(config, name)) for name in LEVERS]
        return set(itertools.combinations(values, 2))

    for pair in pairs:
        if tuple(pair.items()) in seen:
            continue
        found = [case for _ in range(4) if (case := legal_pair(pair, rng))]
        if not found:
            impossible.append(pair)
            continue
        best = max(found, key=lambda case: len(settings(case[0]) - seen))
        seen |= settings(best[0])
        cases.append(best)
    return cases, impossible
