"""Configurations of submission.py and problems that use them: one a lever, and a covering set."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import reference
import submission
from submission import Config, Problem, Shape
from utils import tensors_of

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
    return Problem(1, (Shape(m, n, k, l),))


def dual(n: int, m: int, k: int, l: int = 1) -> Problem:
    return Problem(2, (Shape(m, n, k, l),))


def gemv(n: int, k: int, l: int = 1) -> Problem:
    """n: rows of the matrix, which a case file calls m."""
    return Problem(1, (Shape(1, n, k, l),), is_gemv=True)


def group(*sizes: tuple[int, int, int]) -> Problem:
    """sizes: (m, n, k) of each group, the order of a case file."""
    return Problem(1, tuple(Shape(m, n, k, 1) for m, n, k in sizes))


def case_of(problem: Problem, seed: int = 1111) -> dict[str, Any]:
    """The arguments of generate_input for a problem."""
    first, groups = problem.groups[0], problem.groups
    if len(groups) > 1:
        sizes = {"m": tuple(p.shared for p in groups), "n": tuple(p.own for p in groups)}
        sizes |= {"k": tuple(p.k for p in groups), "g": len(groups)}
        return {"problem": "nvfp4_group_gemm", **sizes, "seed": seed}
    sizes = {"k": first.k, "l": first.l, "seed": seed}
    if problem.is_gemv:
        return {"problem": "nvfp4_gemv", "m": first.own, **sizes}
    name = "nvfp4_dual_gemm" if problem.num_products == 2 else "nvfp4_gemm"
    return {"problem": name, "m": first.shared, "n": first.own, **sizes}


def inputs(problem: Problem, seed: int, kind: str = "official") -> tuple:
    """Official inputs of a problem."""
    return reference.generate_input(**case_of(problem, seed), inputs=kind)


def poison(result: torch.Tensor | list[torch.Tensor]) -> None:
    """Fill the output with NaN, so that what the kernel does not write is seen."""
    for tensor in tensors_of(result):
        tensor.fill_(float("nan"))


def configured(config: Config) -> Callable[[tuple], None]:
    """The kernel with this configuration, whatever it would pick."""

    def kernel(data: tuple) -> None:
        groups, _ = submission.unpack(data)
        submission.launch(submission.problem_of(data, groups), groups, config)

    return kernel


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
    narrow: dict[str, Any] = {"tile_n": 8}
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


# One case a lever: the structure it adds, on a shape with partial tiles in every direction.
LEVER_CASES = {
    "one CTA": (Config(), gemm(256, 100, 1088)),
    "pair": (Config(cta_group=2), gemm(400, 60, 576)),
    "wide pair": (Config(cta_group=2, tile_n=128), gemm(384, 200, 576)),
    "256 tokens": (Config(tile_n=256), gemm(144, 250, 512)),
    "192 tokens": (Config(tile_n=192), gemm(144, 380, 320)),
    "two accumulators": (Config(persistent=True), gemm(384, 200, 512, 2)),
    "shared weights": (Config(cluster_n=2), gemm(272, 200, 1024)),
    "pairs that share weights": (Config(cta_group=2, cluster_n=2), gemm(640, 200, 512)),
    "K split": (Config(split_k=4, tile_n=128), gemm(256, 100, 2112)),
    "K split of 4": (Config(split_k=4), gemm(258, 64, 2368)),
    "K split of pairs": (Config(cta_group=2, split_k=2), gemm(512, 128, 1024)),
    "K split of a dual": (Config(split_k=2), dual(256, 128, 1024)),
    "two products": (Config(), dual(256, 70, 1024)),
    "two products, short K": (Config(), dual(256, 64, 256)),
    "narrow stores": (Config(), gemm(130, 37, 192, 3)),
    "tokens as rows": (Config(swap_ab=False), gemm(200, 140, 576, 2)),
    "tokens as rows of pairs that share them": (
        Config(swap_ab=False, cta_group=2, cluster_n=2),
        dual(272, 400, 1088),
    ),
    "tokens as rows, K split of a dual": (Config(swap_ab=False, split_k=4), dual(80, 40, 1280)),
    "tokens as rows, narrow stores": (Config(swap_ab=False), dual(130, 37, 192, 3)),
    "tokens as rows, two accumulators": (
        Config(swap_ab=False, tile_n=192, persistent=True),
        group((200, 380, 512), (30, 200, 320)),
    ),
    "groups": (
        Config(cta_group=2, tile_n=256, persistent=True),
        group((40, 256, 256), (200, 384, 512), (130, 512, 768)),
    ),
    "vector": (Config(tile_n=8, persistent=True), gemv(300, 4096, 2)),
    "vector, K split": (Config(tile_n=8, split_k=4), gemv(300, 4096, 2)),
}
