"""The seam to a submission: what it picks, what is legal, a run of one configuration.

It takes what `eval.py tune` takes (evaluator/case/configs.py: `pick`, `legal_configs`, `estimate`)
and `clusters_at_once(size)`, if the submission has that.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

from harness.evaluator.case import configs


class Submission:
    """A submission's module, and its custom_kernel for data on the CPU."""

    def __init__(self, module: Any, kernel: Callable[[Any], Any]):
        self.module, self.kernel = module, kernel
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
