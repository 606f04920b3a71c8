"""The launches whose forms need a row: the seam to a submission.

It takes what `eval.py tune` takes (evaluator/case/configs.py: `pick`, `legal_configs`, `estimate`)
and `clusters_at_once(size)`, if the submission has that.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.evaluator import cases
from harness.evaluator.case import configs
from harness.evaluator.cases import Case
from harness.qualify import covering
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


class Submission:
    """A submission's module, and its custom_kernel for data on the CPU. It chooses by its estimate:
    nothing is measured, should a B200 be there.
    """

    def __init__(self, module: Any, kernel: Callable[[Any], Any]):
        self.module, self.kernel = module, kernel
        if hasattr(module, "is_b200"):
            module.is_b200 = lambda groups: False
        self._own = {name: getattr(module, name, None) for name in ("pick", "clusters_at_once")}

    @classmethod
    def of(cls, kernel: Callable[[Any], Any]) -> Submission:
        """The submission that harness.evaluator.case.loading loaded last."""
        return cls(sys.modules["submission"], kernel)

    def reckon_with(self, table: tuple[int, ...] | None) -> None:
        """Have it think that a chip holds so many clusters at a time."""
        own = self._own["clusters_at_once"]
        if own is not None:
            told = own if table is None else lambda size: table[size - 1]
            self.module.clusters_at_once = told
        self.forget_choices()

    def forget_choices(self, compiled: bool = False) -> None:
        """Have it choose anew for problems that it has met. What it compiled may stay, unless it is
        to be compiled and loaded anew, too.
        """
        if hasattr(self.module, "CHOICES"):
            self.module.CHOICES = type(self.module.CHOICES)()
        for name, value in vars(self.module).items():
            if compiled or name != "compile_kernel":
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()

    def picked(self, data: Any) -> dict[str, Any]:
        """The fields of its pick for `data`."""
        return dataclasses.asdict(self.module.pick(self._problem(data)))

    def legal(self, data: Any) -> list[dict[str, Any]]:
        """The fields of all that it chooses from for `data`."""
        return [dataclasses.asdict(c) for c in self.module.legal_configs(self._problem(data))]

    def _problem(self, data: Any) -> Any:
        self.forget_choices()
        return configs.problem_of(self.module, self.kernel, data)

    def run(self, data: Any, config: Mapping[str, Any]) -> Any:
        """The kernel's result for `data` in the configuration with these fields."""
        self.forget_choices()
        configs.fix(self.module, dict(config))
        try:
            return self.kernel(data)
        finally:
            self.module.pick = self._own["pick"]


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
    for i in found:
        yield Wanted(*pool[i], "covering set")
