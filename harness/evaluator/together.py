"""Which shapes of a command's cases are called once more, in one process, as a board calls them.

A board starts a process for all shapes of a mode; here each case has one to itself. What is kept
between calls under a key that lacks a size would not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.cases import Case, format_args

BUDGET = 60.0  # seconds that the shapes together took as cases
TITLE = "in one process: {}"


def further(
    jobs: Sequence[Job], cases: Sequence[Case], outcomes: Sequence[Outcome]
) -> Iterator[tuple[Case, Job]]:
    """For each problem whose cases are all right, a job that calls several of its shapes."""
    if len(outcomes) < len(cases):
        return
    for name, problem in {case.problem.name: case.problem for case in cases}.items():
        mine = [i for i, case in enumerate(cases) if case.problem.name == name]
        if not all(outcomes[i].good for i in mine):
            continue
        seconds = {_shape(cases[i]): outcomes[i].seconds for i in reversed(mine)}
        first = {_shape(cases[i]): i for i in reversed(mine)}
        chosen = [first[shape] for shape in _chosen(seconds, jobs[0].device == "cuda")]
        if len(chosen) > 1:
            args = tuple(jobs[i].args for i in sorted(chosen))
            text = TITLE.format(", ".join(format_args(a) for a in args))
            job = replace(jobs[mine[0]], mode="together", together=args, args=args[0])
            yield Case(problem, args[0], text), replace(job, trace="", plot="")


def _shape(case: Case) -> tuple[Any, ...]:
    return tuple(sorted((key, value) for key, value in case.args.items() if key != "seed"))


def _chosen(seconds: dict[tuple[Any, ...], float], everything: bool) -> list[tuple[Any, ...]]:
    """Shapes that fit the budget. First two that differ in one size, which a key may lack."""
    cheapest = sorted(seconds, key=seconds.__getitem__)
    if everything:
        return cheapest
    pairs = [p for p in combinations(cheapest, 2) if sum(a != b for a, b in zip(*p)) == 1]
    together = {pair: sum(map(seconds.__getitem__, pair)) for pair in pairs}
    pair = min(together, key=together.__getitem__, default=())
    found, left = [], BUDGET
    for shape in (*(pair if pair and together[pair] <= BUDGET else ()), *cheapest):
        if shape not in found and (seconds[shape] <= left or len(found) < 2):
            found.append(shape)
            left -= seconds[shape]
    return found
