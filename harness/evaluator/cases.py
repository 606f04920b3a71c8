"""Cases: case files, what is legal, which problem a case belongs to, random legal ones.

A case file has a case a line, `m: 128; k: 256; l: 1; seed: 1111`, with lists as `[96, 128]` or
`(96, 128)` for the groups of nvfp4_group_gemm (gpu-mode/kernelbot writes such files).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task import PROBLEMS, SEED, CaseArgs, Problem

GEMV_ROWS = 128  # that b of a gemv is padded to
MOST_DIGITS = 30  # of a number; no legal size or seed has more
K_MULTIPLE = 64  # one MMA takes 64 elements of K

_PAIR = re.compile(r"\s*([A-Za-z_]+)\s*:\s*([+-]?\d+|\[[^\]]*\]|\([^)]*\))\s*", re.ASCII)
_EXAMPLE = "m: 128; k: 256; l: 1; seed: 1111"


class CaseError(ValueError):
    """A case that cannot be run: one line that says what was expected and what came."""


@dataclass(frozen=True)
class Case:
    """A legal case of a problem. text: as in a case file, before any secret seed is mixed in."""

    problem: Problem
    args: CaseArgs
    text: str


def parse(text: str) -> dict[str, int | tuple[int, ...]]:
    """The keys and values of a line. Raises CaseError."""
    args: dict[str, int | tuple[int, ...]] = {}
    for part in filter(str.strip, text.split(";")):
        match = _PAIR.fullmatch(part)
        if match is None:
            raise CaseError(
                f"malformed case {_cut(text)!r}: {_cut(part.strip())!r} is not 'key: number' as in"
                f" {_EXAMPLE!r}"
            )
        key, value = match.groups()
        if key in args:
            raise CaseError(f"malformed case {text!r}: {key} is given twice")
        args[key] = _list(value, text) if value[0] in "[(" else _number(value, text)
    if not args:
        raise CaseError(f"malformed case {text!r}: expected something like {_EXAMPLE!r}")
    return args


def _list(value: str, text: str) -> tuple[int, ...]:
    items = [item.strip() for item in value[1:-1].split(",")]
    if items and not items[-1]:
        items.pop()  # as in (1,)
    if not all(re.fullmatch(r"[+-]?\d+", item, re.ASCII) for item in items):
        raise CaseError(f"malformed case {_cut(text)!r}: {_cut(value)!r} is not a list of numbers")
    return tuple(_number(item, text) for item in items)


def _number(value: str, text: str) -> int:
    if len(value) > MOST_DIGITS:
        raise CaseError(f"malformed case {_cut(text)!r}: a number of {len(value)} digits")
    return int(value)


def _cut(text: str) -> str:
    """Enough of a text to be recognised in a message."""
    return text if len(text) <= 200 else f"{text[:197]}..."


def format_args(args: CaseArgs) -> str:
    """A line of a case file."""
    shown = ((k, list(v) if isinstance(v, tuple) else v) for k, v in args.items())
    return "; ".join(f"{key}: {value}" for key, value in shown)


def read_lines(path: Path) -> list[str]:
    """The lines of a case file that hold a case. Raises CaseError if there are none."""
    try:
        lines = [
            line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"cannot read the case file {path}: {error}") from None
    if not lines:
        raise CaseError(f"the case file {path} holds no case; a case looks like {_EXAMPLE!r}")
    return lines


def make_case(problem: Problem, args: CaseArgs, text: str | None = None) -> Case:
    """A case of `problem`, checked; a missing seed becomes the official one. Raises CaseError."""
    args = {"seed": SEED, **args}
    if wrong := _wrong_keys(problem, args):
        raise CaseError(
            f"{wrong} in {_cut(text or format_args(args))!r}: a case of {problem.name} has the keys"
            f" {', '.join(problem.keys)}"
        )
    ordered = {key: args[key] for key in problem.keys}
    illegal = _illegal_groups(ordered) if problem.grouped else _illegal_sizes(ordered)
    if illegal:
        raise CaseError(f"illegal case {format_args(ordered)!r} of {problem.name}: {illegal}")
    return Case(problem, ordered, text or format_args(ordered))


def _wrong_keys(problem: Problem, args: CaseArgs) -> str:
    """Which keys a case lacks and which it should not have, "" if it is all right."""
    missing = [key for key in problem.keys if key not in args]
    unknown = [key for key in args if key not in problem.keys]
    said = [f"{', '.join(missing)} missing"] if missing else []
    said += [f"{', '.join(unknown)} unknown"] if unknown else []
    return ", ".join(said)


def bytes_needed(case: Case) -> int:
    """The least memory that a test of a case takes: inputs and result, each twice. 0 where the
    problem is the user's own.
    """
    a = case.args
    if case.problem.name not in PROBLEMS:
        return 0
    groups = zip(a["m"], a["n"], a["k"]) if case.problem.grouped else [_flat_sizes(case)]
    batch, weights = a.get("l", 1), 2 if case.problem.short == "dual" else 1
    total = 0
    for m, n, k in groups:
        # A half byte a code; a byte for 16 of them, stored in two orders.
        stored = GEMV_ROWS if case.problem.short == "gemv" else n
        total += batch * ((m + weights * stored) * (k // 2 + k // 8) + 2 * m * n)
    return 2 * total


def _flat_sizes(case: Case) -> tuple[int, int, int]:
    return case.args["m"], case.args.get("n", 1), case.args["k"]


def _illegal_sizes(args: CaseArgs) -> str:
    """Why the sizes of a case (or of one group) are illegal; empty if they are legal."""
    for key, value in args.items():
        if not isinstance(value, int):
            return f"{key} must be a number, got {list(value)}"
    if not 0 <= args["seed"] < 2**63:
        return f"seed must be in [0, 2^63), got {args['seed']}"
    for key in ("m", "n", "k", "l"):
        if args.get(key, 1) < 1:
            return f"{key} must be at least 1, got {args[key]}"
    if args["k"] % K_MULTIPLE:
        return f"k must be a multiple of {K_MULTIPLE}, got {args['k']}"
    return ""


def _illegal_groups(args: CaseArgs) -> str:
    groups = args["g"]
    if not isinstance(groups, int) or groups < 1:
        return f"g must be a number of groups, at least 1, got {groups}"
    for key in ("m", "n", "k"):
        if not isinstance(args[key], tuple) or len(args[key]) != groups:
            return f"{key} must be a list of g = {groups} numbers, got {args[key]}"
    for index in range(groups):
        illegal = _illegal_sizes(
            {**{key: args[key][index] for key in ("m", "n", "k")}, "seed": args["seed"]}
        )
        if illegal:
            return f"group {index}: {illegal}"
    return ""


def infer_problem(lines: Sequence[CaseArgs]) -> Problem:
    """The one problem these cases can belong to.

    The keys tell gemv and group from the rest. gemm and dual have the same keys; they are told
    apart only if every case is an official case (seed aside) of one of them and not of the other.
    Raises CaseError where that fails.
    """
    keys = {key for line in lines for key in line} | {"seed"}
    fitting = [p for p in PROBLEMS.values() if keys == set(p.keys)]
    if len(fitting) > 1:
        fitting = [p for p in fitting if all(_shape(line) in _official_shapes(p) for line in lines)]
    if len(fitting) == 1:
        return fitting[0]
    if not any(keys == set(p.keys) for p in PROBLEMS.values()):
        forms = "; ".join(
            f"{p.short} has {', '.join(p.keys)}, {_wrong_keys(p, dict.fromkeys(keys, 0))}"
            for p in PROBLEMS.values()
        )
        raise CaseError(
            f"cannot tell the problem of {_cut(format_args(lines[0]))!r}: no problem has these"
            f" keys: {forms}; the seed may be left out"
        )
    raise CaseError(
        f"cannot tell the problem of {format_args(lines[0])!r}: name one of {', '.join(PROBLEMS)} "
        "(argument --problem, or environment NVFP4_PROBLEM)"
    )


def _shape(args: CaseArgs) -> tuple[Any, ...]:
    return tuple(sorted((key, value) for key, value in args.items() if key != "seed"))


def _official_shapes(problem: Problem) -> set[tuple[Any, ...]]:
    return {_shape(args) for args in (*problem.tests, *(b.args for b in problem.benchmarks))}


def official(problem: Problem, mode: str, smallest: int | None = None) -> list[Case]:
    """The leaderboard's cases: its tests, the first of them for diff, its benchmarks otherwise.

    smallest: only so many of them, those that take the least memory.
    """
    if mode == "diff":
        return [make_case(problem, problem.tests[0])]
    rows = problem.tests if mode == "test" else [b.args for b in problem.benchmarks]
    found = [make_case(problem, args) for args in rows]
    kept = sorted(found, key=bytes_needed)[:smallest]
    return [case for case in found if case in kept]


def quick(problem: Problem, seed: int) -> list[Case]:
    """The smallest official test, and a random shape: seconds each in the emulator."""
    return [*official(problem, "test", smallest=1), *random_cases(problem, 1, seed)]


def with_secret(cases: Iterable[Case], secret: int | None) -> list[Case]:
    """The same cases with a secret seed paired into theirs (Cantor), as the leaderboards do."""
    if secret is None:
        return list(cases)

    def mixed(seed: int) -> int:
        return (seed + (seed + secret) * (seed + secret + 1) // 2) % 2**64

    return [Case(c.problem, {**c.args, "seed": mixed(c.args["seed"])}, c.text) for c in cases]


def random_cases(problem: Problem, count: int, seed: int) -> list[Case]:
    """`count` legal cases of odd sizes, emulated in seconds; the same for the same seed."""
    rng = random.Random(f"{problem.name} {seed}")
    return [make_case(problem, _random_args(problem, rng)) for _ in range(count)]


def _random_args(problem: Problem, rng: random.Random) -> CaseArgs:
    def k(most: int) -> int:
        return K_MULTIPLE * rng.randint(1, most)

    draw_seed = rng.randrange(2**31)
    if problem.grouped:
        groups = rng.randint(1, 8)
        sizes = [(rng.randint(1, 200), rng.randint(1, 300), k(8)) for _ in range(groups)]
        m, n, ks = zip(*sizes)
        return {"m": m, "n": n, "k": ks, "g": groups, "seed": draw_seed}
    args = {"m": rng.randint(1, 300), "n": rng.randint(1, 400), "k": k(16), "l": rng.randint(1, 3)}
    if "n" not in problem.keys:
        args = {"m": rng.randint(1, 700), "k": k(32), "l": rng.randint(1, 3)}
    return {**args, "seed": draw_seed}
