"""The launches whose forms need a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.evaluator import cases
from harness.evaluator.cases import Case
from harness.qualify import covering
from harness.qualify.submission import Submission
from task import PROBLEMS

# How many clusters of 1, 2, ... 8 CTAs may be resident at a time: what chips may answer. None: what
# the submission takes for granted.
CLUSTER_TABLES: dict[str, tuple[int, ...] | None] = {
    "its own": None,
    "GPCs of 20 and of 18 SMs": (148, 74, 48, 34, 26, 24, 16, 16),
    "hardly an SM left over": (148, 74, 48, 36, 28, 24, 20, 18),
    "pairs left over, too": (148, 72, 44, 34, 26, 22, 16, 16),
}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A case, the fields of the configuration that it shall run with, why, and on a chip that holds
    how many clusters.
    """

    case: Case
    config: Mapping[str, Any]
    why: str
    table: tuple[int, ...] | None = None


def official() -> list[Case]:
    """The tests and benchmarks of all problems."""
    return [
        case
        for problem in PROBLEMS.values()
        for mode in ("test", "benchmark")
        for case in cases.official(problem, mode)
    ]


def picks(submission: Submission, data_of: Callable[[Case], Any]) -> Iterator[Wanted]:
    """What is picked for each official case under the cluster tables, once each."""
    for case in official():
        seen: list[dict[str, Any]] = []
        for name, table in CLUSTER_TABLES.items():
            submission.reckon_with(table)
            config = submission.picked(data_of(case))
            if config not in seen:
                seen.append(config)
                yield Wanted(case, config, f"picked, clusters: {name}", table)
        submission.reckon_with(None)


def covering_set(submission: Submission, data_of: Callable[[Case], Any]) -> Iterator[Wanted]:
    """Configurations that together have every pair of settings of any that is legal."""
    pool = [
        (case, config)
        for case in covering.shapes(small=False)
        for config in submission.legal(data_of(case))
    ]
    found = covering.covering([covering.settings(c.problem.short, config) for c, config in pool])
    for i in sorted(found):  # those of a case together: its input is drawn once
        yield Wanted(*pool[i], "covering set")
